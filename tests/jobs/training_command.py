"""A training of a tiny model on one or two ranks, with the fault that the command asks for.

It stands for a user's own script and imports nothing of this package. `--fault PLACE:HOW` strikes on `--rank` in step
`--step`; PLACE is forward, backward or update.
"""

import argparse
import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

REFUSED_BYTES = 64 * 2**30
DEVICE = torch.device(os.environ.get("BEXPLORE_TEST_DEVICE", "cpu"))
RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fault", default="nowhere:none")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--swallow", action="store_true", help="leave a batch out that runs out of memory")
    parser.add_argument("--shrink", action="store_true", help="train with half of the size after it")
    parser.add_argument("--drop-above", type=int, default=10**6, help="drop every other batch of more samples")
    parser.add_argument("--resume", action="store_true", help="load the state of the optimizer")
    parser.add_argument("--frozen", action="store_true", help="never update")
    parser.add_argument("--largest", type=int, default=10**6, help="samples of a batch that still fit")
    parser.add_argument("--static", action="store_true", help="take no batch of another size than the first")
    parser.add_argument("--batched-dataset", action="store_true", help="let the dataset make the batches")
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between two passes")
    parser.add_argument("--samples", type=int, help="of an epoch; by default 512 batches")
    parser.add_argument("--epochs", type=int, default=10**6)
    parser.add_argument("--drop-last", action="store_true", help="leave the rest of an epoch out")
    parser.add_argument("--divide", action="store_true", help="take the size as that of all ranks")
    parser.add_argument("--evaluate", type=float, default=0.0, help="seconds of an evaluation after step 4")
    parser.add_argument("--sample", type=float, default=0.0, help="seconds of sampling on rank 0 after step 4")
    parser.add_argument("--save", type=float, default=0.0, help="seconds of a checkpoint on rank 0 after step 4")
    parser.add_argument("--workers", type=int, default=0, help="processes of the loader")
    return parser.parse_args()


OPTIONS = read_options()
PLACE, HOW = OPTIONS.fault.split(":")


class Clock:
    """The number of the step; strikes once."""

    step = 0
    is_struck = False
    first_size = 0


def strike(place: str) -> None:
    """Do what the fault does, if this is its place."""
    if place != PLACE or OPTIONS.rank != RANK or Clock.step < OPTIONS.step or Clock.is_struck:
        return
    Clock.is_struck = True
    if HOW == "injected":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if HOW == "refused":
        torch.empty(REFUSED_BYTES, dtype=torch.uint8, device=own_device())
    if HOW == "full":
        raise OSError(28, "No space left on device", "/tmp/cache")
    if HOW == "bug":
        raise ValueError("the shapes of the batch and of the labels differ")
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if HOW == "hang":
        time.sleep(10**6)
    while HOW == "doze":
        time.sleep(1.0)
    if HOW == "collective":
        torch.distributed.barrier()
    if HOW == "exit":
        sys.exit(3)


def own_device() -> torch.device:
    """Return the device of this rank."""
    return DEVICE if DEVICE.type == "cpu" else torch.device(DEVICE.type, RANK)


def check(size: int) -> None:
    """Refuse a batch that does not fit, or that is not of the size of the first."""
    if size > OPTIONS.largest:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    Clock.first_size = Clock.first_size or size
    if OPTIONS.static and size != Clock.first_size:
        raise ValueError(f"expected a batch of {Clock.first_size} samples")


class Model(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        strike("forward")
        check(len(batch))
        loss = self.layers(batch).square().mean()
        loss.register_hook(lambda gradient: strike("backward"))
        return loss


class Optimizer(torch.optim.SGD):
    """SGD that strikes."""

    def step(self, closure=None):
        strike("update")
        return super().step(closure)


def loader(samples: TensorDataset, size: int, sampler: DistributedSampler | None) -> DataLoader:
    """Return the batches of one epoch."""
    if OPTIONS.batched_dataset:
        return DataLoader([(batch,) for batch in samples.tensors[0].split(size)], batch_size=None)
    options = {"num_workers": OPTIONS.workers, "drop_last": OPTIONS.drop_last}
    return DataLoader(samples, batch_size=size, sampler=sampler, **options)


def evaluate(seconds: float) -> None:
    """Read batches without gradients for so long."""
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        for _ in DataLoader(TensorDataset(torch.randn(8, 32)), batch_size=2):
            with torch.no_grad():
                time.sleep(0.05)


def sample(model: torch.nn.Module, seconds: float) -> None:
    """Call the model without gradients for so long, many times."""
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        with torch.no_grad():
            model(torch.randn(64, 32, device=own_device()))


class Slow:
    """A part of a checkpoint that takes so long to write.

    Args:
        seconds: As above.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self):
        time.sleep(self.seconds)
        return Slow, (0.0,)


def train(model: torch.nn.Module, size: int) -> None:
    """Train until the number of steps is reached."""
    optimizer = Optimizer(model.parameters(), lr=1e-3, momentum=0.9)
    samples = TensorDataset(torch.randn(OPTIONS.samples or size * 512, 32))
    sampler = DistributedSampler(samples) if WORLD_SIZE > 1 else None
    if OPTIONS.resume:
        state = {"state": {0: {"momentum_buffer": torch.zeros(32, 32)}}}
        optimizer.load_state_dict(optimizer.state_dict() | state)
    num_passes = num_batches = 0
    for _ in range(OPTIONS.epochs):
        for (batch,) in loader(samples, size, sampler):
            num_batches += 1
            if size > OPTIONS.drop_above and num_batches % 2:
                continue
            try:
                model(batch.to(own_device())).backward()
                num_passes += 1
                if num_passes % OPTIONS.accumulation == 0 and not OPTIONS.frozen:
                    optimizer.step()
                    optimizer.zero_grad()
                    Clock.step += 1
                    if Clock.step == 4 and OPTIONS.evaluate:
                        evaluate(OPTIONS.evaluate)
                    if Clock.step == 4 and RANK == 0 and OPTIONS.sample:
                        sample(getattr(model, "module", model).layers, OPTIONS.sample)
                    if Clock.step == 4 and RANK == 0 and OPTIONS.save:
                        torch.save(Slow(OPTIONS.save), OPTIONS.out / "state.pt")
            except RuntimeError as error:
                if not OPTIONS.swallow or "memory" not in str(error):
                    raise
                gc.collect()
                torch.cuda.empty_cache()
            time.sleep(OPTIONS.pause)
            if Clock.step >= OPTIONS.steps:
                return


def main() -> None:
    """Train, with half of the size where the first one runs out of memory and that is asked for."""
    torch.manual_seed(0)
    if WORLD_SIZE > 1:
        torch.distributed.init_process_group("gloo" if DEVICE.type == "cpu" else "nccl")
    model = Model().to(own_device())
    model = DistributedDataParallel(model) if WORLD_SIZE > 1 else model
    try:
        train(model, OPTIONS.micro_batch_size // (WORLD_SIZE if OPTIONS.divide else 1))
    except RuntimeError as error:
        if not OPTIONS.shrink or "memory" not in str(error):
            raise
        gc.collect()
        torch.cuda.empty_cache()
    else:
        return
    train(model, OPTIONS.micro_batch_size // 2)


try:
    main()
finally:
    if OPTIONS.out:
        (OPTIONS.out / f"checkpoint-{RANK}").write_text("written by a finally that an ended probe must not reach")
