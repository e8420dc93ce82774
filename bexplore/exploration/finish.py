"""The end of an exploration: the measurements that follow the search, and the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.config.sections.variants import changes_training
from bexplore.diagnosis.bottlenecks import JobEvidence, find_bottlenecks
from bexplore.engine.eager_comparison import EagerComparison, judge
from bexplore.engine.runner import EngineRunner
from bexplore.exploration.emulated import without_speeds
from bexplore.exploration.estimated import estimated
from bexplore.exploration.variants import operations_over_file
from bexplore.job import Mode
from bexplore.job.batching import GlobalBatchSize, near_value_message, split, valid_global_batch_sizes
from bexplore.measurement.probe import Compilation, Observation
from bexplore.run.bottleneck import Bottleneck
from bexplore.run.lengths_result import lengths_result
from bexplore.run.parallel_result import one_rank_caution, parallel_result, pass_times_by_kind, ranks_of
from bexplore.run.result import FailureGroup, KeepsBatchSize, RunResult, ValidBatchSize
from bexplore.run.run_directory import Run
from bexplore.run.selection import TracedVariant
from bexplore.run.settings_result import over_file, pareto_front, points_of
from bexplore.search.policy.decision import StopReason
from bexplore.search.policy.first_probe import without_numbers
from bexplore.search.posterior.posterior import CredibleBand
from bexplore.search.recommendation import Speed
from bexplore.search.result import Result, SecondAnswer, samples_are_seen
from bexplore.trace.cost_model import CostModel, MemoryByLength


def global_batch_sizes(config: Config, micro_batch_size: int) -> tuple[GlobalBatchSize, ...]:
    """Return the global batch sizes that are valid with a micro-batch size, around the configuration's own."""
    return valid_global_batch_sizes(
        micro_batch_size,
        config.num_replicas,
        config.batch_size,
        config.divisibility,
        tokens_per_sample=config.job.tokens_per_sample,
    )


def batch_size_request(config: Config) -> dict[str, Any]:
    """Return the fields of the result that depend on the configuration's batch size and steps alone."""
    return {
        "batch_size": config.batch_size,
        "replica_batch_size": config.replica_batch_size,
        "divisibility": config.divisibility.value,
        "keep_batch_size": config.explore.keep_batch_size,
        "training_samples": config.training_samples,
    }


def keeps_batch_size(
    config: Config, second: SecondAnswer | None, observations: Sequence[Observation]
) -> KeepsBatchSize | None:
    """Return the fastest size that keeps the user's global batch size; None where there is none."""
    if second is None or config.batch_size is None:
        return None
    best = second.recommendation
    cut = split(config.batch_size, config.num_replicas, best.micro_batch_size, config.divisibility)
    ran = _told(verified_by(observations, best.micro_batch_size), best.speeds)
    return KeepsBatchSize(
        micro_batch_size=best.micro_batch_size,
        accumulation_steps=cut.accumulation_steps,
        samples_per_s=best.samples_per_s,
        relative_performance=best.relative_performance,
        confidence=best.confidence,
        over_recommended=second.over_recommended,
        free_micro_batch_size=second.free_micro_batch_size,
        compilation=ran.probe.compilation.value if ran else None,
        step_time_s=step_time_s(ran, cut.accumulation_steps),
    )


def verified_by(observations: Sequence[Observation], micro_batch_size: int) -> Observation | None:
    """Return the observation that verifies a size: the latest as the training runs, else the latest.

    Those of all ranks go before those of one.

    None where there is none: another explorer of a shared study may have measured the size.
    """
    own = [o for o in observations if o.is_measured and o.micro_batch_size == micro_batch_size]
    together = [o for o in own if ranks_of(o)] or own
    exact = [o for o in together if not o.probe.compilation.is_for_search]
    return next(reversed(exact or together), None)


def _told(ran: Observation | None, speeds: Sequence[Speed]) -> Observation | None:
    """Return the observation that verifies a size, with the times of the size's estimate."""
    return None if ran is None else estimated(ran, speeds)


def step_time_s(observation: Observation | None, accumulation_steps: int) -> float | None:
    """Return the seconds of one optimizer step: its passes, the last of which may reduce gradients, and one update.

    They hold the communication of replicas where all ranks ran. None where nothing was timed, or where a step of one
    pass was and one of several is wanted, whose other passes reduce nothing.
    """
    if observation is None or not observation.is_measured:
        return None
    update_s = observation.update_time_s if observation.update_times_s else 0.0
    inner_s, last_s = pass_times_by_kind(observation)
    if last_s is None:
        return accumulation_steps * observation.pass_time_s + update_s
    if accumulation_steps == 1:
        return last_s + update_s
    return None if inner_s is None else (accumulation_steps - 1) * inner_s + last_s + update_s


def not_compared_in_command(ran: Observation | None) -> dict[str, Any]:
    """Return what is known of the gradients of a training command, whose batches are its own."""
    coupled = (ran.details.get("batch_coupled") if ran else None) or ()
    message = "Gradients of two micro-batch sizes were not compared: a training command has batches of its own."
    if coupled:
        names = ", ".join(coupled)
        message += (
            f" It has {names}, with which the result of a sample depends on its batch: the size changes the training."
        )
    return {"same": None, "message": message, "modules": list(coupled)}


def not_compared_on_emulated_device() -> dict[str, Any]:
    """Return what is known of gradients on a device that computes nothing."""
    message = "Gradients of two micro-batch sizes were not compared: the device is emulated, and computes nothing."
    return {"same": None, "message": message, "modules": []}


def failures_of(observations: Sequence[Observation]) -> tuple[FailureGroup, ...]:
    """Group the failed probes by reasons that differ in more than numbers."""
    by_reason: dict[tuple[str, str], list[Observation]] = {}
    for observation in observations:
        if not observation.is_measured:
            key = (observation.outcome.value, without_numbers(observation.reason))
            by_reason.setdefault(key, []).append(observation)
    return tuple(
        FailureGroup(
            outcome=alike[0].outcome.value,
            reason=alike[0].reason,
            traceback_text=alike[0].traceback_text,
            micro_batch_sizes=tuple(sorted({observation.micro_batch_size for observation in alike})),
        )
        for alike in by_reason.values()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The steps after the search.

    Attributes:
        config: The job, with the settings of the recommended variant.
        runner: Ran its probes; its last worker still holds the recommended program. None where the user's own command
            ran them, and nothing further is measured.
        run: The run on disk.
        cost_model: The trace; None for none.
        memory_by_length: Traces at several lengths of samples; None where all are as long.
        device_info: torch's description of the device.
        elapsed_s: Seconds since the exploration began.
        verified_step_time_s: Seconds of a real step of the user's global batch size; None where none was run.
        variant: Number of the recommended variant.
        searched: All variants of the search; empty for a job with one.
    """

    config: Config
    runner: EngineRunner | None
    run: Run
    cost_model: CostModel | None
    device_info: Mapping[str, Any]
    elapsed_s: Callable[[], float]
    verified_step_time_s: float | None = None
    memory_by_length: MemoryByLength | None = None
    variant: int = 0
    searched: Sequence[TracedVariant] = ()
    _eager_by_size: dict[int, EagerComparison | None] = field(default_factory=dict, init=False)

    @property
    def _engine(self) -> EngineRunner:
        assert self.runner is not None  # only what the engine ran is measured further
        return self.runner

    def compare_eager(self, searched: Result) -> None:
        """Compare the search's answer with eager passes, where that is wanted, while its worker is alive."""
        if searched.recommendation is not None:
            self._eager(verified_by(self._own(self.run.journal.read()), searched.recommendation.micro_batch_size))

    def _own(self, observations: Sequence[Observation]) -> list[Observation]:
        """Return the observations of the recommended variant."""
        return [one for one in observations if one.probe.variant == self.variant]

    def result(self, searched: Result) -> RunResult:
        """Make the remaining measurements, keep the artifacts, and write the result of an uninterrupted run."""
        observations = self.run.journal.read()
        known = self._known(searched, observations)
        if searched.recommendation is None:
            return known
        is_interrupted = searched.stop_reason == StopReason.INTERRUPTED
        own = self._own(observations)
        measured = self._measured(own, known, is_interrupted=is_interrupted)
        found = self._bottlenecks(own, measured)
        finished = replace(measured, bottlenecks=found, elapsed_s=self.elapsed_s())
        if finished.is_emulated:
            finished = without_speeds(finished)
        if not is_interrupted:
            self.run.write_result(finished)
        return finished

    def _known(self, searched: Result, observations: Sequence[Observation]) -> RunResult:
        """Return the part of the result that needs no further measurement."""
        further = searched.next_probe
        known = RunResult(
            base_micro_batch_size=searched.base_micro_batch_size,
            stop_reason=str(searched.stop_reason),
            num_probes=len(observations),
            elapsed_s=self.elapsed_s(),
            training_time_s=further.training_time_s if further else None,
            next_probe_s=further.cost_s if further else None,
            next_probe_saves=further.saves if further else None,
            smallest_within_tolerance=searched.smallest_within_tolerance,
            memory_saved_bytes=searched.memory_saved_bytes,
            exact_over_shared=searched.exact_over_shared,
            peak_memory_bytes=searched.peak_memory_bytes,
            resident_memory_bytes=searched.resident_memory_bytes,
            memory_headroom_bytes=searched.memory_headroom_bytes,
            outcomes=dict(searched.outcomes),
            runs_at=searched.runs_at,
            failures=failures_of(observations),
            warnings=(*self._caution_of_emulation(), *self._caution_of_one_rank(observations), *searched.warnings),
            device_info=dict(self.device_info),
            throughput_band=CredibleBand.from_posterior(searched.posterior and searched.posterior.part(self.variant)),
            run_dir=str(self.run.directory),
        )
        if searched.recommendation is None:
            return known
        recommended = self._recommended(known, searched, self._own(observations))
        return replace(recommended, **self._of_settings(searched, observations)) if self.searched else recommended

    @property
    def _is_emulated(self) -> bool:
        return bool(self.device_info.get("is_emulated"))

    def _caution_of_emulation(self) -> tuple[str, ...]:
        if not self._is_emulated:
            return ()
        name = self.device_info.get("device_name")
        return (
            f"{name} is emulated: its memory, and which sizes fit, are as on a real one; no speed was measured, and a "
            "smaller size may be as fast: bexplore explore on the device itself finds it",
        )

    def _of_settings(self, searched: Result, observations: Sequence[Observation]) -> dict[str, Any]:
        """Return what the result tells of the settings: what they gain, cost and change, and the front."""
        best, posterior = searched.recommendation, searched.posterior
        assert best is not None  # the caller has checked it
        settings = [one.settings for one in self.searched]
        found: dict[str, Any] = {
            "variant": self.variant,
            "base_variant": best.base_variant,
            "settings": dict(settings[self.variant]),
            "operations_over_file": operations_over_file(self.searched, self.variant, best.micro_batch_size),
            "changes_training": changes_training(settings[self.variant], settings[0]),
        }
        if posterior is None:
            return found
        over = over_file(posterior, best.micro_batch_size, self.variant)
        models = [one.cost_model for one in self.searched]
        return found | {
            "settings_over_file": over and over.speed,
            "settings_over_file_interval": over and over.interval,
            "pareto_front": pareto_front(points_of(posterior, observations, settings, models)),
        }

    def _recommended(self, known: RunResult, searched: Result, observations: Sequence[Observation]) -> RunResult:
        """Add the recommendation and the batch sizes that are valid with it."""
        best = searched.recommendation
        assert best is not None  # the caller has checked it
        size = best.micro_batch_size
        ran = _told(verified_by(observations, size), best.speeds)
        observations = [estimated(one, best.speeds) for one in observations]
        return replace(
            known,
            **batch_size_request(self.config),
            micro_batch_size=size,
            relative_performance=best.relative_performance,
            relative_performance_interval=best.relative_performance_interval,
            confidence=best.confidence,
            samples_per_s=best.samples_per_s,
            total_samples_per_s=self._total(best.samples_per_s, ran),
            pass_time_s=size / best.samples_per_s,
            update_time_s=ran.update_time_s if ran is not None and ran.update_times_s else None,
            speeds=best.speeds,
            regret_bound_90=best.regret_bound_90,
            left_to_gain=best.left_to_gain,
            global_batch_sizes=tuple(
                ValidBatchSize(
                    global_batch_size=one.global_batch_size,
                    accumulation_steps=one.accumulation_steps,
                    num_tokens=one.num_tokens,
                    step_time_s=self._real_step_s(one) or step_time_s(ran, one.accumulation_steps),
                    is_measured=self._real_step_s(one) is not None,
                )
                for one in global_batch_sizes(self.config, size)
            ),
            num_replicas=None if self.config.command is None else self.config.num_replicas,
            batch_message=self._batch_message(size),
            keeps_batch_size=keeps_batch_size(self.config, searched.second_answer, observations),
            predicted_peak_memory_bytes=ran.probe.predicted_peak_memory_bytes if ran else None,
            compilation=ran.probe.compilation.value if ran else None,
            optimizers=ran.details.get("optimizers") if ran else None,
            samples_are_seen=samples_are_seen([ran] if ran else []),
            parallel=parallel_result(self.config.job.parallelism, ran, observations),
            lengths=lengths_result(
                self.config.job,
                size,
                ran,
                is_in_tokens=self.config.request.is_in_tokens,
                memory=self.memory_by_length,
                budget_bytes=ran.memory_budget_bytes if ran else None,
            ),
        )

    def _caution_of_one_rank(self, observations: Sequence[Observation]) -> tuple[str, ...]:
        """Warn of times that hold no communication, because one rank of several ran alone."""
        parallelism, measured = self.config.job.parallelism, [o for o in observations if o.is_measured]
        if not parallelism.is_distributed or not measured or any(map(ranks_of, measured)):
            return ()
        return (one_rank_caution(parallelism),)

    def _total(self, samples_per_s: float, ran: Observation | None) -> float | None:
        """Return the samples/s of all replicas; None where one of several ran alone, without their communication."""
        ran_together = self.config.command is not None or (ran is not None and bool(ranks_of(ran)))
        return samples_per_s * self.config.num_replicas if ran_together or self.config.num_replicas == 1 else None

    def _real_step_s(self, size: GlobalBatchSize) -> float | None:
        """Return the seconds of a real step of a global batch size; None where none was run."""
        return self.verified_step_time_s if size.global_batch_size == self.config.batch_size else None

    def _measured(self, observations: Sequence[Observation], known: RunResult, *, is_interrupted: bool) -> RunResult:
        """Add the eager comparison, the loader's speed, the gradient check and the kept artifacts."""
        size = known.micro_batch_size
        assert size is not None  # the caller has checked it
        ran = verified_by(observations, size)
        if self.runner is None:
            return replace(known, gradient_equivalence=not_compared_in_command(ran))
        if is_interrupted:
            return replace(known, artifacts_dir=self._kept_artifacts(ran))
        return replace(
            known,
            eager=self._eager(ran),
            loader=self._loader(size),
            gradient_equivalence=self._gradient_equivalence(observations, size),
            artifacts_dir=self._kept_artifacts(ran),
        )

    def _eager(self, verified: Observation | None) -> EagerComparison | None:
        """Compare eager with compiled passes, once, where the configuration requests it."""
        is_wanted = self.config.explore.compile.enabled == "both" and not self._is_emulated
        if not is_wanted or verified is None or verified.probe.compilation is not Compilation.EXACT:
            return None
        size, tolerance = verified.micro_batch_size, self.config.explore.tolerance
        if size not in self._eager_by_size:
            answer = self._engine.compare_eager(micro_batch_size=size, tolerance=tolerance)
            found = None if answer is None else judge(answer, micro_batch_size=size, tolerance=tolerance)
            self._eager_by_size[size] = found
        return self._eager_by_size[size]

    def _kept_artifacts(self, verified: Observation | None) -> str | None:
        """Return the compiler cache of the recommended size; delete those of other sizes."""
        if verified is None:
            return None
        kept: Path = self._engine.settings.artifacts_dir(verified.micro_batch_size)
        of_variants = self.run.directory.resolve().glob("variant_*/compiled/*")
        for folder in {*kept.parent.glob("*"), *kept.parents[1].glob("compiled/*"), *of_variants}:
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
        return str(kept) if any(kept.glob("??/*")) else None

    def _gradient_equivalence(self, observations: Sequence[Observation], size: int) -> dict[str, Any] | None:
        """Compare the gradients of the recommended split with those of the smallest measured one."""
        smallest = min((o.micro_batch_size for o in observations if o.is_measured), default=size)
        if self.config.mode is Mode.EVAL or smallest == size:
            return None
        if self._is_emulated:
            return not_compared_on_emulated_device()
        return self._engine.gradient_equivalence(base_micro_batch_size=smallest, micro_batch_size=size)

    def _loader(self, size: int) -> dict[str, Any] | None:
        """Time the user's own data loader; None where the configuration names none."""
        has_loader = self.config.job.model.get("loader") and not self._is_emulated
        return self._engine.time_loader(size) if has_loader else None

    def _bottlenecks(self, observations: Sequence[Observation], result: RunResult) -> tuple[Bottleneck, ...]:
        sizes = result.global_batch_sizes
        own = (size for size in sizes if size.global_batch_size == self.config.batch_size)
        batch = next(own, sizes[0] if sizes else None)
        evidence = JobEvidence(
            job=self.config.job,
            observations=[estimated(one, result.speeds) for one in observations],
            micro_batch_size=result.micro_batch_size,
            accumulation_steps=None if batch is None else batch.accumulation_steps,
            # The trace is of the longest samples, and passes are of typical ones.
            cost_model=self.cost_model if self.config.job.lengths is None else None,
            device_info=self.device_info,
            loader=result.loader,
            parallel=result.parallel,
        )
        return find_bottlenecks(evidence)

    def _batch_message(self, micro_batch_size: int) -> str:
        if self.config.batch_size is None:
            return ""
        return near_value_message(
            self.config.batch_size, micro_batch_size, self.config.num_replicas, self.config.divisibility
        )
