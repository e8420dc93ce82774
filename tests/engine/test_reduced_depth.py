"""Two depths of a model, in workers."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bexplore.api import explore
from bexplore.engine.reduced_depth import ReducedDepthRunner
from bexplore.exploration.base import ExploreOptions
from bexplore.job import CompileSettings, Job
from bexplore.measurement.depth_extrapolation import Depths
from bexplore.measurement.probe import Compilation, Outcome, Probe
from tests.builders import imported_job

SHALLOW = Depths(whole=8, block_share=0.9, high=4)
MODEL = {"vocab_size": 64, "hidden_size": 32, "num_heads": 2, "max_position_embeddings": 16}
REDUCED = Probe(number=0, micro_batch_size=4, max_passes=3, compilation=Compilation.REDUCED)


def deep_job(num_layers: int = 8, *, backend: str = "aot_eager_decomp_partition") -> Job:
    """`aot_eager_decomp_partition` decomposes and partitions as Inductor does but builds nothing."""
    model, settings = MODEL | {"num_layers": num_layers}, CompileSettings(backend=backend)
    return Job(workload="decoder", model=model, data={"sequence_length": 16}, sequence_length=16, compile=settings)


@pytest.mark.on_device
def test_two_depths_tell_the_peak_of_the_whole_one_and_compile_once_each(run_on):
    with ReducedDepthRunner(run_on(deep_job()), SHALLOW) as runner:
        reduced, another = (runner(dataclasses.replace(REDUCED, micro_batch_size=size)) for size in (4, 6))
        shared = runner(dataclasses.replace(REDUCED, compilation=Compilation.SHARED))

    assert reduced.outcome is Outcome.MEASURED, reduced.reason
    assert reduced.probe.compilation is Compilation.REDUCED
    assert reduced.peak_memory_bytes == pytest.approx(shared.peak_memory_bytes, rel=0.03)
    by_depth = reduced.details["pass_times_s_by_depth"]
    assert set(by_depth) == {"1", "4"}
    assert all(len(times) >= 3 for times in by_depth.values())
    assert (reduced.num_graphs, another.num_graphs) == (2, 0)


def test_a_model_that_needs_every_block_is_run_whole_instead_and_says_so(run_on):
    with ReducedDepthRunner(run_on(imported_job("counted")), SHALLOW) as runner:
        first, second = runner(REDUCED), runner(REDUCED)

    assert [item.outcome for item in (first, second)] == [Outcome.MEASURED] * 2, first.reason
    assert {item.probe.compilation for item in (first, second)} == {Compilation.SHARED}
    assert "full depth" in first.warnings[-1]
    assert first.needs_full_depth
    assert second.worker == first.worker


def test_an_exploration_at_reduced_depth_says_so_and_how_well_it_predicted(tmp_path):
    config = {
        "train_input": {"batch_size": 16, "micro_batch_size": {"explore": {"min": 1, "max": 4}}},
        "model": {"name": "gpt2", "num_hidden_layers": 8, "filter_size": 64, "dropout_rate": 0.0}
        | {key: value for key, value in MODEL.items()},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.001},
        "explore": {"device": "cpu", "memory_budget": "1GiB", "depth": "reduced", "max_probes": 4}
        | {"compile": {"backend": "aot_eager_decomp_partition"}},
    }
    path = tmp_path / "deep.yaml"
    path.write_text(json.dumps(config))

    events = list(explore(path, ExploreOptions(model_dir=str(tmp_path / "runs"))))

    result = events[-1].result
    kinds = [event.observation.probe.compilation for event in events if hasattr(event, "observation")]
    assert kinds[0] is Compilation.SHARED
    assert Compilation.REDUCED in kinds
    assert kinds[-1] is Compilation.EXACT
    assert 0.1 < result.full_over_reduced < 10.0  # passes of a millisecond, on whatever machine
    assert json.loads((events[-1].run.directory / "result.json").read_text())["full_over_reduced"] is not None
