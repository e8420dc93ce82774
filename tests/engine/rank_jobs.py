"""Jobs of two ranks under a launcher, small and eager."""

from __future__ import annotations

from pathlib import Path

from bexplore.engine.process.launcher import Launcher
from bexplore.engine.process.limits import StageLimits
from bexplore.engine.runner import EngineRunner, RunnerSettings
from bexplore.job import CompileSettings, Job, Parallelism
from bexplore.measurement.probe import Compilation, Observation, Probe
from tests.builders import DEVICE, JOBS

NUM_RANKS = 2
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SILENCE_S = 6.0  # of a rank that hangs, in these tests


def job(fault: str = "none", rank: int = 0, at: int = 3, **parallelism) -> Job:
    shared = Parallelism(**parallelism or {"data_parallel_shard_degree": NUM_RANKS})
    arguments = {"fault": fault, "fault_rank": rank, "fault_at": at}
    paths = {"model": "rank_faults:model", "batch": "rank_faults:batch", "loss": "rank_faults:loss"}
    return Job(
        workload="imported",
        model=paths | {"arguments": arguments},
        import_root=str(JOBS),
        compile=CompileSettings(enabled=False),
        device=DEVICE,
        num_replicas=shared.num_replicas,
        parallelism=shared,
    )


def settings(folder: Path, one: Job, *, kind: str = "torchrun", num_ranks: int = NUM_RANKS) -> RunnerSettings:
    return RunnerSettings(
        job=one,
        run_dir=folder,
        replica_batch_size=16,
        launcher=Launcher(kind=kind, num_ranks=num_ranks),
        environment=ONE_THREAD,
    )


def probe(size: int = 4, number: int = 0) -> Probe:
    return Probe(number=number, micro_batch_size=size, compilation=Compilation.EAGER, max_passes=3, time_limit_s=120.0)


def run(folder: Path, one: Job, **launched) -> Observation:
    limits = StageLimits(step_limit_s=SILENCE_S, floor_s=SILENCE_S)
    with EngineRunner(settings(folder, one, **launched), limits=limits) as runner:
        return runner(probe())
