"""The end of an exploration: the measurements that follow the search, and the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.diagnosis.bottlenecks import JobEvidence, find_bottlenecks
from bexplore.engine.protocol.answers import EagerComparison, judge
from bexplore.engine.runner import EngineRunner
from bexplore.exploration.emulated import without_clock, without_speeds
from bexplore.exploration.variants import operations_over_file
from bexplore.job import Mode
from bexplore.measurement.probe import Compilation, Observation
from bexplore.run.facts import Facts
from bexplore.run.fingerprint import search_settings
from bexplore.run.parts.checks import (
    Bottleneck,
    ChecksPart,
    not_compared_in_command,
    not_compared_on_emulated_device,
)
from bexplore.run.parts.search import LIMITS
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run
from bexplore.run.selection import TracedVariant
from bexplore.search.policy.decision import StopReason
from bexplore.search.result import Result
from bexplore.trace.cost_model import CostModel, MemoryByLength


def is_for_request(stored: RunResult, config: Config) -> bool:
    """Return whether a stored result is for the batch size and the steps of a configuration."""
    batch = stored.batch
    is_same_batch = (batch.batch_size, batch.replica_batch_size) == (config.batch_size, config.replica_batch_size)
    is_same_rule = (batch.divisibility, batch.keep_batch_size) == (config.divisibility, config.settings.keep_batch_size)
    return is_same_batch and is_same_rule and stored.answer.training_samples == config.training_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The steps after the search."""

    config: Config  # the job, with the settings of the recommended variant
    # Ran its probes; its last worker still holds the recommended program. None where the user's own command ran them,
    # and nothing further is measured.
    runner: EngineRunner | None
    run: Run  # the run on disk
    cost_model: CostModel | None  # the trace; None for none
    device_info: Mapping[str, Any]  # torch's description of the device
    elapsed_s: Callable[[], float]  # seconds since the exploration began
    # Seconds of a real step of the user's global batch size; None where none was run.
    verified_step_time_s: float | None = None
    memory_by_length: MemoryByLength | None = None  # traces at several lengths of samples; None where all are as long
    variant: int = 0  # number of the recommended variant
    searched: Sequence[TracedVariant] = ()  # all variants of the search; empty for a job with one
    _eager_by_size: dict[int, EagerComparison | None] = field(default_factory=dict, init=False)

    @property
    def _engine(self) -> EngineRunner:
        assert self.runner is not None  # only what the engine ran is measured further
        return self.runner

    def compare_eager(self, searched: Result) -> None:
        """Compare the search's answer with eager passes, where that is wanted, while its worker is alive."""
        if searched.recommendation is not None:
            self._eager(self._facts(searched).ran)

    def result(self, searched: Result) -> RunResult:
        """Make the remaining measurements, keep the artifacts, and write the result of an uninterrupted run."""
        facts = self._facts(searched)
        known = RunResult.find(facts, str(self.run.directory))
        if searched.recommendation is None:
            return known
        is_interrupted = searched.stop_reason == StopReason.INTERRUPTED
        is_left = self.runner is None or not known.is_estimated  # of a command nothing more is measured
        measured = self._measure(facts, known, is_interrupted=is_interrupted) if is_left else known
        checks = replace(measured.checks, bottlenecks=self._bottlenecks(facts, measured))
        limit = getattr(search_settings(self.config), LIMITS.get(measured.search.stop_reason, ""), None)
        search = replace(measured.search, elapsed_s=self.elapsed_s(), limit=limit)
        finished = replace(measured, checks=checks, search=search)
        if finished.is_emulated:
            finished = without_speeds(finished)
        elif self.config.is_emulated:
            finished = without_clock(finished)
        if not is_interrupted:
            self.run.write_result(finished)
            self._remove_artifacts(facts.ran)
        return finished

    def _facts(self, searched: Result) -> Facts:
        """Return what all parts of the result are computed from."""
        best = searched.recommendation
        return Facts(
            config=self.config,
            searched=searched,
            observations=self.run.journal.read(),
            elapsed_s=self.elapsed_s(),
            device_info=self.device_info,
            memory_by_length=self.memory_by_length,
            verified_step_time_s=self.verified_step_time_s,
            variant=self.variant,
            variants=self.searched,
            operations_over_file=operations_over_file(self.searched, self.variant, best.micro_batch_size)
            if best and self.searched
            else None,
        )

    @property
    def _has_not_run(self) -> bool:
        return bool(self.device_info.get("is_emulated") or self.device_info.get("is_estimated"))

    def _measure(self, facts: Facts, known: RunResult, *, is_interrupted: bool) -> RunResult:
        """Add the eager comparison, the loader's speed, the gradient check and the kept artifacts."""
        ran = facts.ran
        if self.runner is None:
            return replace(known, checks=ChecksPart(gradient_equivalence=not_compared_in_command(ran)))
        artifacts_dir = self._artifacts_dir(ran)
        if is_interrupted:
            return replace(known, program=replace(known.program, artifacts_dir=artifacts_dir))
        size = known.micro_batch_size
        assert size is not None  # the caller has checked it
        checks = ChecksPart(loader=self._loader(size), gradient_equivalence=self._gradient_equivalence(facts.own, size))
        program = replace(known.program, eager=self._eager(ran), artifacts_dir=artifacts_dir)
        return replace(known, checks=checks, program=program)

    def _eager(self, verified: Observation | None) -> EagerComparison | None:
        """Compare eager with compiled passes, once, where the configuration requests it."""
        is_wanted = self.config.settings.compile.enabled == "both" and not self._has_not_run
        if not is_wanted or verified is None or verified.probe.compilation is not Compilation.EXACT:
            return None
        size, tolerance = verified.micro_batch_size, self.config.settings.tolerance
        if size not in self._eager_by_size:
            answer = self._engine.compare_eager(micro_batch_size=size, tolerance=tolerance)
            found = None if answer is None else judge(answer, micro_batch_size=size, tolerance=tolerance)
            self._eager_by_size[size] = found
        return self._eager_by_size[size]

    def _artifacts_dir(self, verified: Observation | None) -> str | None:
        """Return the compiler cache of the recommended size; None where nothing was compiled."""
        kept = None if verified is None else self._engine.settings.artifacts_dir(verified.micro_batch_size)
        return str(kept) if kept is not None and any(kept.glob("??/*")) else None

    def _remove_artifacts(self, verified: Observation | None) -> None:
        """Delete the compiler caches of other sizes than the recommended one, which an earlier result may name."""
        if self.runner is None or verified is None:
            return
        kept: Path = self._engine.settings.artifacts_dir(verified.micro_batch_size)
        of_variants = self.run.directory.resolve().glob("variant_*/compiled/*")
        for folder in {*kept.parent.glob("*"), *kept.parents[1].glob("compiled/*"), *of_variants}:
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _gradient_equivalence(self, observations: Sequence[Observation], size: int) -> dict[str, Any] | None:
        """Compare the gradients of the recommended split with those of the smallest measured one."""
        smallest = min((o.micro_batch_size for o in observations if o.is_measured), default=size)
        if self.config.mode is Mode.EVAL or smallest == size:
            return None
        if self._has_not_run:
            return not_compared_on_emulated_device()
        return self._engine.gradient_equivalence(base_micro_batch_size=smallest, micro_batch_size=size)

    def _loader(self, size: int) -> dict[str, Any] | None:
        """Time the user's own data loader; None where the configuration names none."""
        has_loader = self.config.job.model.get("loader") and not self._has_not_run
        return self._engine.time_loader(size) if has_loader else None

    def _bottlenecks(self, facts: Facts, result: RunResult) -> tuple[Bottleneck, ...]:
        batch = result.batch.nearest
        evidence = JobEvidence(
            job=self.config.job,
            observations=facts.own,
            micro_batch_size=result.micro_batch_size,
            accumulation_steps=None if batch is None else batch.accumulation_steps,
            # The trace is of the longest samples, and passes are of typical ones.
            cost_model=self.cost_model if self.config.job.lengths is None else None,
            device_info=self.device_info,
            loader=result.checks.loader,
            maximum=self.config.maximum,
            parallel=result.parallel,
            is_of_command=self.config.command is not None,
        )
        return find_bottlenecks(evidence)
