"""One program for all sizes of a search, where the compiler would choose other kernels for larger ones."""

from __future__ import annotations

import pytest

# 2^31 elements are reached at 1,024 samples (64 x 32,768 logits each), a normalization's reductions are one kernel from
# 640 samples on (64 rows of 128 numbers each, 5 * 2^20 in all).
PROGRAM = """
    from bexplore.engine.protocol.messages import RunProbe
    from bexplore.engine.protocol.messages import SharedMode
    from bexplore.engine.worker.measuring import measure
    from bexplore.engine.worker.session import Session
    from bexplore.engine.worker.torch_private import make_limits_loud
    from bexplore.job import Job
    from bexplore.measurement.probe import Compilation, Probe

    MODEL = {{
        "vocab_size": 32768, "hidden_size": 128, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 64
    }}

    def probe(size):
        return Probe(number=0, micro_batch_size=size, compilation=Compilation.SHARED, max_passes=3)

    if __name__ == "__main__":
        make_limits_loud()
        data = {{"sequence_length": 64}}
        job = Job(workload="decoder", model=MODEL, data=data, sequence_length=64, device="cuda:0")
        request = RunProbe(job=job, probe=probe(8), shared_mode=SharedMode.DYNAMIC, largest_size={largest})
        session = Session(request, report=lambda **_: None)
        session.prepare(8)
        session.watch.take()
        for size in {sizes}:
            facts = measure(session, probe(size), pass_budget_s=0.1)
            print(facts["num_recompiles"], *facts["details"].get("recompile_reasons", ()))
"""


def num_recompiles(emulate, sizes: tuple[int, ...], largest: int | None) -> list[int]:
    return [int(line.split()[0]) for line in emulate(PROGRAM.format(sizes=sizes, largest=largest))]


def test_one_program_serves_all_sizes_across_the_end_of_32_bits(emulate):
    assert num_recompiles(emulate, (8, 1, 2, 700, 1100), largest=1200) == [0, 1, 0, 0, 0]


@pytest.mark.parametrize(("sizes", "largest"), [((8, 700), None), ((8, 900, 1100), 1000)])
def test_a_size_beyond_the_largest_is_compiled_again(emulate, sizes, largest):
    assert num_recompiles(emulate, sizes, largest) == [*[0] * (len(sizes) - 1), 1]
