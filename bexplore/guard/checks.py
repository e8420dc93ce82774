"""The checks behind the fixtures of `bexplore.pytest_plugin`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bexplore.config.load import load_config
from bexplore.engine.program_client import metrics_in_worker
from bexplore.exploration.setup import with_loader_lengths
from bexplore.guard.guard import EXACT, GuardOptions, guard, update_baseline
from bexplore.guard.report import Report, Tier, Verdict
from bexplore.trace.program_metrics import ProgramMetrics

UNDECIDED = (Verdict.TOOLCHAIN_CHANGED, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compares jobs with their baselines.

    Attributes:
        root: Folder that the paths are relative to.
        model_dir: Folder of the results.
        is_update: Whether to write the baselines instead.
    """

    root: Path
    model_dir: Path
    is_update: bool

    def report(
        self, config: str | Path, *, baseline: str | Path, overrides: tuple[str, ...] = (), portable: bool = False
    ) -> Report | None:
        """Compare the exact facts of a job with its baseline; None where the baseline was written instead."""
        options = GuardOptions(
            baseline_path=self.root / baseline,
            tiers=frozenset({Tier.ANY_MACHINE}) if portable else EXACT,
            model_dir=str(self.model_dir),
        )
        loaded = with_loader_lengths(load_config(self.root / config, overrides=overrides))
        if self.is_update:
            update_baseline(loaded, options)
            return None
        return guard(loaded, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Finds the exact facts of jobs, each once.

    Attributes:
        root: Folder that the paths are relative to.
        log_path: The workers' log.
    """

    root: Path
    log_path: Path
    _known: dict[tuple[str, tuple[str, ...]], ProgramMetrics] = field(default_factory=dict)

    def __call__(self, config: str | Path, overrides: tuple[str, ...] = ()) -> ProgramMetrics:
        """Return the facts of a job's program, traced for the CPU."""
        key = (str(config), tuple(overrides))
        if key not in self._known:
            read = with_loader_lengths(load_config(self.root / config, overrides=overrides))
            loaded = read.on_device("cpu")
            self._known[key], _ = metrics_in_worker(loaded.job, self.log_path, device="cpu")
        return self._known[key]
