"""What is still to be found out once the search has ended, and what it all comes to: the last event."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.batching import GlobalBatchSize, near_value_message, split, valid_global_batch_sizes
from bexplore.config.config import Config
from bexplore.engine import EngineRunner, eager_comparison
from bexplore.exploration import events, run_directory
from bexplore.exploration.bottlenecks import Bottleneck, find_bottlenecks
from bexplore.exploration.events import Finished, KeepsBatchSize, step_time_s
from bexplore.host.accelerators import published_device
from bexplore.job import Mode
from bexplore.measurement.probe import Compilation, Observation
from bexplore.search.result import Result, SecondAnswer
from bexplore.trace.cost_model import CostModel


def global_batch_sizes(config: Config, micro_batch_size: int) -> tuple[GlobalBatchSize, ...]:
    """Global batch sizes that are valid with a micro-batch size, around the configuration's own."""
    return valid_global_batch_sizes(
        micro_batch_size,
        config.num_replicas,
        config.batch_size,
        config.divisibility,
        sequence_length=config.job.sequence_length,
    )


def batch_size_request(config: Config) -> dict[str, Any]:
    """The fields of the `result` event that tell which batch size its second answer keeps, and how."""
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
    """The second answer with what the user's global batch size makes of it; None where there is none."""
    if second is None or config.batch_size is None:
        return None
    best = second.recommendation
    cut = split(config.batch_size, config.num_replicas, best.micro_batch_size, config.divisibility)
    ran = verified_by(observations, best.micro_batch_size)
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
    """The observation that stands behind a size: the latest exact one, else the latest; None where there is none.

    Where explorers on several hosts share a study, this run's journal may lack what another one measured.
    """
    own = [o for o in observations if o.is_measured and o.micro_batch_size == micro_batch_size]
    exact = [o for o in own if o.probe.compilation is Compilation.EXACT]
    return next(reversed(exact or own), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Concludes an exploration.

    Attributes:
        config: The job.
        runner: Ran the probes; its last worker still holds the winner.
        run: Where the results go.
        cost_model: What the trace said; None where there was none.
        device_info: What the worker's torch says about the device.
        elapsed_s: Seconds since the exploration began.
    """

    config: Config
    runner: EngineRunner
    run: run_directory.Run
    cost_model: CostModel | None
    device_info: Mapping[str, Any]
    elapsed_s: Callable[[], float]
    _eager_by_size: dict[int, eager_comparison.EagerComparison | None] = field(default_factory=dict, init=False)

    def compare_eager(self, result: Result) -> None:
        """Compare the search's answer with eager passes while the worker that ran it is still there."""
        if result.recommendation is not None:
            self._eager(verified_by(self.run.journal.read(), result.recommendation.micro_batch_size))

    def of(self, result: Result) -> Finished:
        """Compare what can still be compared, keep what is worth keeping, and write the result."""
        observations = self.run.journal.read()
        best = result.recommendation
        failures = events.failures_of(observations)
        if best is None:
            return Finished(
                result=result, run=self.run, verified=None, base=None, num_probes=len(observations), failures=failures
            )
        base = [o for o in observations if o.is_measured and o.micro_batch_size == result.base_micro_batch_size]
        interrupted = result.stop_reason == "interrupted"
        verified = verified_by(observations, best.micro_batch_size)
        compared = None if interrupted else self._eager(verified)
        loader = None if interrupted else self._loader(best.micro_batch_size)
        finished = Finished(
            result=result,
            run=self.run,
            verified=verified,
            base=base[-1] if base else None,
            global_batch_sizes=global_batch_sizes(self.config, best.micro_batch_size),
            batch_size_request=batch_size_request(self.config),
            user_batch_message=self._batch_message(best.micro_batch_size),
            keeps_batch_size=keeps_batch_size(self.config, result.second_answer, observations),
            gradient_equivalence=None
            if interrupted
            else self._gradient_equivalence(observations, best.micro_batch_size),
            num_probes=len(observations),
            elapsed_s=self.elapsed_s(),
            failures=failures,
            eager=compared,
            artifacts_dir=self._kept_artifacts(verified),
            loader=loader,
            bottlenecks=self._bottlenecks(observations, best.micro_batch_size, loader),
        )
        if not interrupted:
            self.run.write_result(events.event_record(finished) or {})
        return finished

    def _eager(self, verified: Observation | None) -> eager_comparison.EagerComparison | None:
        """Eager against compiled at the winner, where it is asked for or cheap; once."""
        if verified is None or verified.probe.compilation is not Compilation.EXACT:
            return None
        size = verified.micro_batch_size
        if size not in self._eager_by_size:
            self._eager_by_size[size] = self._eager_passes(verified)
        return self._eager_by_size[size]

    def _eager_passes(self, verified: Observation) -> eager_comparison.EagerComparison | None:
        asked = self.config.explore.compile.enabled == "both"
        elapsed_s = self.elapsed_s()
        if not asked and not eager_comparison.comparison_is_cheap(
            pass_time_s=verified.pass_time_s, elapsed_s=elapsed_s
        ):
            return None
        size, tolerance = verified.micro_batch_size, self.config.explore.tolerance
        max_s = math.inf if asked else eager_comparison.CHEAP_SHARE * elapsed_s
        answer = self.runner.compare_eager(micro_batch_size=size, tolerance=tolerance, asked=asked, max_s=max_s)
        if answer is None:
            return None
        return eager_comparison.judge(answer, micro_batch_size=size, tolerance=tolerance, asked=asked)

    def _kept_artifacts(self, verified: Observation | None) -> Path | None:
        """What the compiler made for the winner; that of other sizes that were verified is of no use to anybody."""
        if verified is None:
            return None
        kept = self.runner.settings.artifacts_dir(verified.micro_batch_size)
        for folder in kept.parent.glob("*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
        return kept if any(kept.glob("??/*")) else None

    def _gradient_equivalence(
        self, observations: Sequence[Observation], micro_batch_size: int
    ) -> dict[str, Any] | None:
        """The smallest measured split stands for the base; at one size alone there is nothing to compare."""
        smallest = min((o.micro_batch_size for o in observations if o.is_measured), default=micro_batch_size)
        if self.config.mode is Mode.EVAL or smallest == micro_batch_size:
            return None
        return self.runner.gradient_equivalence(base_micro_batch_size=smallest, micro_batch_size=micro_batch_size)

    def _loader(self, micro_batch_size: int) -> dict[str, Any] | None:
        """The user's own data loader, timed; None where the configuration names none."""
        return self.runner.time_loader(micro_batch_size) if self.config.job.model.get("loader") else None

    def _bottlenecks(
        self,
        observations: Sequence[Observation],
        micro_batch_size: int,
        loader: Mapping[str, Any] | None,
    ) -> tuple[Bottleneck, ...]:
        sizes = global_batch_sizes(self.config, micro_batch_size)
        own = (size for size in sizes if size.global_batch_size == self.config.batch_size)
        steps = next(own, sizes[0] if sizes else None)
        return find_bottlenecks(
            self.config.job,
            observations,
            micro_batch_size=micro_batch_size,
            accumulation_steps=None if steps is None else steps.accumulation_steps,
            cost_model=self.cost_model,
            device=published_device(self.device_info),
            device_info=self.device_info,
            loader=loader,
        )

    def _batch_message(self, micro_batch_size: int) -> str:
        if self.config.batch_size is None:
            return ""
        return near_value_message(
            self.config.batch_size, micro_batch_size, self.config.num_replicas, self.config.divisibility
        )
