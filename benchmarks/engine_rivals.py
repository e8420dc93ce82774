"""What a user would pick instead, on the same job under the same cap of memory.

`python -m benchmarks.engine_rivals NAME CONFIG` prints one JSON object: the answer, and each size that was tried with
the steps that it ran. On the CPU nothing runs out of memory by itself, so that every rival works under the limit that
the engine's own worker puts on its process; torch's allocator then raises the error that these packages know. On CUDA
the cap is a fraction of the device.

Lightning's finders and accelerate's run eagerly, as their users do: with torch.compile each of their trials would
compile. Doubling compiles as `torch.compile` does by default, which turns to a symbolic size at the second one, and
keeps the fastest size that it saw, not the largest.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.engine_jobs import load
from bexplore.config.config import Config

STEPS_PER_TRIAL = 3  # Lightning's default, and here everybody's
FIRST_SIZE = 2  # Lightning's default
ACCELERATE_START = 128  # accelerate's default
NUM_SAMPLES = 1024  # of the data set that a finder draws from


class Trials:
    """Which sizes were tried, in order, and how many steps each ended."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []

    def begin(self, size: int) -> None:
        if not self._rows or self._rows[-1][0] != size or self._rows[-1][1] >= STEPS_PER_TRIAL:
            self._rows.append([size, 0])

    def end(self) -> None:
        self._rows[-1][1] += 1

    def as_list(self) -> list[list[int]]:
        return [list(row) for row in self._rows]


def main(arguments: list[str]) -> None:
    name, config = arguments
    began_s = time.perf_counter()
    trials = Trials()
    answer = RIVALS[name](load(Path(config)), trials)
    print(json.dumps({"answer": answer, "trials": trials.as_list(), "search_s": time.perf_counter() - began_s}))


@contextmanager
def capped(config: Config, workload: Any = None) -> Iterator[None]:
    """Hold this process to the memory that the configuration gives a job, as the engine holds its worker.

    Args:
        config: Says the budget and the device.
        workload: What is built already; None where the block builds it.
    """
    import torch

    from bexplore.engine.worker.own_process import DataLimit
    from bexplore.engine.worker.peak_memory import storage_bytes
    from bexplore.engine.worker.torch_private import around_compilations

    budget_bytes = config.settings.memory_budget_bytes(0)
    assert budget_bytes is not None, "a job of this benchmark says its memory"
    if torch.device(config.job.device).type == "cuda":
        total_bytes = torch.cuda.get_device_properties(config.job.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget_bytes / total_bytes))
        yield
        return
    modules = [] if workload is None else workload.compiled_modules
    alive = storage_bytes([list(module.parameters()) for module in modules])
    limit = DataLimit(budget_bytes)
    with limit.around_steps(alive), around_compilations(limit.lift, limit.lower):
        yield


@contextmanager
def told_as_out_of_memory() -> Iterator[None]:
    """Under a cap oneDNN says "could not create a primitive", which no finder knows; it is given torch's own words."""
    try:
        yield
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory") from error


def lightning(mode: str) -> Callable[[Config, Trials], int | None]:
    def find(config: Config, trials: Trials) -> int | None:
        import logging
        import warnings

        import torch
        from lightning.pytorch import LightningModule, Trainer
        from lightning.pytorch.tuner import Tuner
        from torch.utils.data import DataLoader

        from bexplore.job import Precision
        from bexplore.workloads import build

        warnings.filterwarnings("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        workload = build(config.job)
        assert workload.loss_module is not None
        samples = _samples(workload.make_batch(NUM_SAMPLES))

        class Training(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.batch_size = FIRST_SIZE
                self.loss_module = workload.loss_module

            def training_step(self, batch: Any, _index: int) -> Any:
                trials.begin(_num_samples(batch))
                with told_as_out_of_memory():
                    return self.loss_module(*batch)

            def on_train_batch_end(self, *_: Any) -> None:
                trials.end()

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW(self.parameters(), **config.job.optimizer_arguments)

            def train_dataloader(self) -> Any:
                return DataLoader(samples, batch_size=self.batch_size)

        is_cuda = config.job.device.startswith("cuda")
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                accelerator="gpu" if is_cuda else "cpu",
                devices=1,
                precision="bf16-mixed" if config.job.precision is Precision.AUTOCAST_BFLOAT16 else "32-true",
                max_epochs=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder,
            )
            with capped(config, workload):
                return Tuner(trainer).scale_batch_size(
                    Training(), mode=mode, steps_per_trial=STEPS_PER_TRIAL, init_val=FIRST_SIZE
                )

    return find


def accelerate(config: Config, trials: Trials) -> int | None:
    from accelerate.utils import find_executable_batch_size

    from bexplore.workloads import build

    @find_executable_batch_size(starting_batch_size=ACCELERATE_START)
    def train(batch_size: int) -> int:
        workload = build(config.job)  # inside, as accelerate's guide asks, so that nothing of a failed try stays alive
        batch = workload.make_batch(batch_size)
        trials.begin(batch_size)
        for _ in range(STEPS_PER_TRIAL):
            with told_as_out_of_memory():
                workload.forward_backward(batch)
                workload.update()
            trials.end()
        return batch_size

    with capped(config):
        return train()


def doubling(config: Config, trials: Trials) -> int | None:
    import torch

    from bexplore.workloads import build

    workload = build(config.job)
    for module in workload.compiled_modules:
        module.compile()
    size, speeds = FIRST_SIZE, dict[int, float]()
    with capped(config, workload):
        while True:
            batch = workload.make_batch(size)
            trials.begin(size)
            times_s = []
            try:
                for _ in range(STEPS_PER_TRIAL):
                    began_s = time.perf_counter()
                    workload.forward_backward(batch)
                    workload.update()
                    if config.job.device.startswith("cuda"):
                        torch.cuda.synchronize()
                    times_s.append(time.perf_counter() - began_s)
                    trials.end()
            except RuntimeError as error:
                if "memory" not in str(error) and "could not create a primitive" not in str(error):
                    raise
                return max(speeds, key=lambda known: speeds[known], default=None)
            speeds[size] = size / statistics.median(times_s[1:])  # the first step compiles
            size *= 2


def _samples(batch: Any) -> list[Any]:
    """A batch as a list of samples, which the default collation puts together again."""
    from torch.utils._pytree import tree_map

    return [tree_map(lambda leaf, index=index: leaf[index].cpu(), batch) for index in range(_num_samples(batch))]


def _num_samples(batch: Any) -> int:
    from torch.utils._pytree import tree_leaves

    return int(tree_leaves(batch)[0].shape[0])


RIVALS: dict[str, Callable[[Config, Trials], int | None]] = {
    "lightning_power": lightning("power"),
    "lightning_binsearch": lightning("binsearch"),
    "accelerate": accelerate,
    "doubling_compiled": doubling,
}
# Whether the program that a rival runs is compiled, which is the one that must survive.
COMPILED_RIVALS = ("doubling_compiled",)


if __name__ == "__main__":
    main(sys.argv[1:])
