"""An exploration of a device that is not here: a model's times of each size, a trace's memory, and nothing runs."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bexplore.engine.process.pool import Workers
from bexplore.errors import EngineError, UserInputError
from bexplore.estimate.calibrations import names_this
from bexplore.estimate.confidence import DOUBLING_SD, ErrorDraws, SizeEstimate
from bexplore.estimate.kernels import MatrixProduct
from bexplore.estimate.model import Estimate, count_waves, estimate_kernels
from bexplore.estimate.processor import PROCESSOR_DOUBLING_SD, Calibration, find_program_sd
from bexplore.exploration.emulated import find_named_device, recall_this
from bexplore.exploration.emulated_speeds import TracedProgram
from bexplore.exploration.estimate_errors import allow_for_errors, qualify, widen_speeds
from bexplore.exploration.finish import Finish
from bexplore.exploration.job import JobExploration, TracedJob
from bexplore.exploration.memory_budget import describe_absent_memory
from bexplore.host.accelerators import Device
from bexplore.job import Job, Mode, Precision
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.run import run_directory
from bexplore.run.parts.estimate import FULL_WAVES, Waves
from bexplore.search.posterior.memory import EXPECTED_RATIO
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import Event, Result
from bexplore.search.settings import SearchSettings
from bexplore.trace.cost_model import CostModel, KernelKind, TracedKernel
from bexplore.trace.pass_times import describe_communication, estimate_pass, estimate_update, find_links
from bexplore.units import format_bytes

# Of the trace's error, within which memory must fit: a size that fits with 84 of 100.
LIKELY_SDS = 1.0
MOST_WAVES = 8.0  # beyond, a last wave that is nearly empty costs less than the model's error
INSTEAD = "explore.emulate: true runs it on an emulated device, which tells what fits, and no speed"


class EstimateRunner:
    """Answers probes by estimates, of several variants of a job; a runner without hardware."""

    def __init__(
        self,
        device: Device | Calibration,
        programs: Sequence[TracedProgram],
        *,
        budget_bytes: int,
        smallest: int,
        replica_batch_size: int | None = None,
        network_bytes_per_s: float | None = None,
    ) -> None:
        self.device = device
        self.of_step: dict[str, Any] = {
            "replica_batch_size": replica_batch_size,
            "network_bytes_per_s": network_bytes_per_s,
        }
        self.smallest = smallest  # size, which is not refused for the error of the trace alone
        self.programs = programs
        self.budget_bytes = budget_bytes
        self.settings_of: Sequence[Mapping[str, Any]] = [{} for _ in programs]

    def __enter__(self) -> EstimateRunner:
        return self

    def __exit__(self, *_exception: object) -> None:
        return

    def __call__(self, probe: Probe) -> Observation:
        """Estimate one size."""
        began_s, size = time.monotonic(), probe.micro_batch_size
        model = self.programs[probe.variant].cost_model
        peak_bytes, own = model.peak_memory_bytes(size), self.settings_of[probe.variant]
        given: dict[str, Any] = {
            "probe": probe,
            "started_at_s": time.time(),
            "peak_memory_bytes": peak_bytes,
            "memory_budget_bytes": self.budget_bytes,
        }
        num_sds = 0.0 if size == self.smallest else LIKELY_SDS
        if self.memory_share(size, probe.variant) * math.exp(num_sds * model.relative_sd) > 1.0:
            reason = (
                f"the trace predicts {format_bytes(peak_bytes)}, {format_bytes(round(peak_bytes * EXPECTED_RATIO))} "
                f"with what the allocator holds, to within {2 * model.relative_sd:.0%}"
            )
            return Observation(outcome=Outcome.OUT_OF_MEMORY, reason=reason, details={"settings": own}, **given)
        found = self.estimate(size, probe.variant)
        update = estimate_update(self.device, model)
        return Observation(
            outcome=Outcome.ESTIMATED,
            pass_times_s=(found.seconds, found.seconds),  # two, which differ by nothing: an estimate has no noise
            update_times_s=() if update is None else (update.seconds,),
            details={
                "settings": own,
                "estimate": self._describe(size, probe.variant),
                **describe_passes(found, self.programs[probe.variant].job),
            },
            elapsed_s=time.monotonic() - began_s,
            **given,
        )

    def memory_share(self, micro_batch_size: int, variant: int) -> float:
        """Return the memory that a size needs over the budget."""
        peak_bytes = self.programs[variant].cost_model.peak_memory_bytes(micro_batch_size)
        return peak_bytes * EXPECTED_RATIO / max(self.budget_bytes, 1)

    def estimate(self, micro_batch_size: int, variant: int) -> Estimate:
        """Return the time of a pass."""
        program = self.programs[variant]
        found = estimate_pass(self.device, program.job, program.cost_model, micro_batch_size, **self.of_step)
        if found is None or not found.seconds:
            has_kernels = bool(program.cost_model.kernels)
            why = "no figures of its arithmetic are published" if has_kernels else "its trace has no kernels"
            raise EngineError(f"nothing can be estimated for {self.device.name}: {why}", hint=INSTEAD)
        return found

    def draw_errors(self, sizes: Sequence[int], *, seed: int) -> ErrorDraws:
        """Return draws of the errors of the estimates of some sizes, with every variant."""
        estimates = []
        for variant in range(len(self.programs)):
            for size in sizes:
                one = self.estimate(size, variant)
                own = SizeEstimate(
                    micro_batch_size=size,
                    seconds=one.kernels_s,
                    own_sd=one.own_sd,
                    host_s=one.host_s,
                    communication=one.communication,
                    memory_share=self.memory_share(size, variant),
                    variant=variant,
                )
                estimates.append(own)
        memory_sd = max(program.cost_model.relative_sd for program in self.programs)
        doubling_sd = PROCESSOR_DOUBLING_SD if isinstance(self.device, Calibration) else DOUBLING_SD
        links = find_links(self.device, self.programs[0].job)
        link_sd = 0.0 if links is None else links.relative_sd
        return ErrorDraws(estimates, memory_sd=memory_sd, doubling_sd=doubling_sd, link_sd=link_sd, seed=seed)

    def _describe(self, micro_batch_size: int, variant: int) -> dict[str, Any]:
        program, found = self.programs[variant], self.estimate(micro_batch_size, variant)
        update = estimate_update(self.device, program.cost_model)
        model, device = program.cost_model, self.device
        peak = None if isinstance(device, Calibration) else device.bfloat16_flops_per_s
        has_peak = peak is not None and program.job.precision is not Precision.FLOAT32 and model.has_operations
        waves = None if isinstance(device, Calibration) else find_waves(device, model.kernels, micro_batch_size)
        return {
            "device_name": self.device.name,
            "program": "" if isinstance(device, Calibration) else program.of_processor,
            "pass_s": found.seconds,
            "communication": describe_communication(
                found, program.job, find_links(device, program.job, self.of_step["network_bytes_per_s"])
            ),
            "update_s": None if update is None else update.seconds,
            "relative_sd": math.hypot(find_program_sd(device), found.relative_sd),
            "shares": {bound.value: share for bound, share in found.shares.items()},
            "waves": None if waves is None else dataclasses.asdict(waves),
            "mfu": model.model_flops(micro_batch_size) / (found.seconds * peak) if has_peak and peak else None,
        }


def _find_likely_largest(model: CostModel, budget_bytes: int) -> int:
    return model.max_micro_batch_size(budget_bytes / EXPECTED_RATIO / math.exp(LIKELY_SDS * model.relative_sd))


def describe_passes(found: Estimate, job: Job) -> dict[str, Any]:
    """Return the passes of a step by kind, as a rank that ran reports them; nothing where ranks exchange nothing."""
    step = found.communication
    if step is None:
        return {}
    inner_s, last_s = (found.alone_s + float(one.exposed_s(found.alone_s)) for one in (step.inner, step.last))
    differ = job.mode is Mode.TRAIN and job.training_parallelism.synchronizes_last
    steps = round(1 / step.last_share) if step.last_share else None
    return {"parallel": {"accumulation_steps": steps, "pass_times_by_kind_s": [(inner_s, last_s)] if differ else []}}


def find_waves(device: Device, kernels: Sequence[TracedKernel], micro_batch_size: int) -> Waves | None:
    """Return the waves of the product that takes longest of those whose tiles grow with the size; None for many.

    Beside the size, it names the largest one below that does without the last wave, where that is not full, and the
    largest one above that begins none.
    """
    growing = [one for one in kernels if one.kind is KernelKind.PRODUCT and any(size.linear for size in one.sizes[:2])]
    products = [one.at(micro_batch_size) for one in growing]
    times = estimate_kernels(device, products) if products else None
    if times is None:
        return None
    longest = max(range(len(growing)), key=lambda place: growing[place].calls * times[place].seconds)

    def waves_at(size: int) -> float:
        product = growing[longest].at(size)
        assert isinstance(product, MatrixProduct)
        return count_waves(device, product)

    waves = waves_at(micro_batch_size)
    if waves > MOST_WAVES:
        return None
    begun, is_full = math.ceil(waves), waves / math.ceil(waves) >= FULL_WAVES
    near = range(1, 2 * micro_batch_size + 1) if not is_full else ()
    below = (size for size in near if size < micro_batch_size and waves_at(size) <= begun - 1)
    above = (size for size in near if size > micro_batch_size and waves_at(size) <= begun)
    return Waves(
        num_multiprocessors=device.num_multiprocessors or 0,
        waves=waves,
        smaller=max(below, default=None),
        larger=max(above, default=None),
    )


class EstimatedExploration(JobExploration):
    """An exploration whose probes are estimates for the device that the configuration names."""

    @property
    def _device(self) -> Device | Calibration:
        if names_this(self.config.settings.device_name):
            return recall_this(self.config.settings.device)
        number, device = find_named_device(self.config)
        ranks = self.config.job.parallelism.num_ranks
        if number is not None and number not in (ranks, self.config.num_replicas):
            raise UserInputError(
                f"explore.device_name: {number} devices are named, and the job has {ranks}",
                hint=f"leave the number out, and say in {self.config.path} how many share the batch",
            )
        return device

    def _on_device(self, workers: Workers) -> dict[str, Any]:
        """Return what a worker on the device would: nobody is asked."""
        device = self._device
        if isinstance(device, Calibration):
            self.config = self.config.on_device("cpu")
            unknown = dict.fromkeys(("capability", "num_multiprocessors", "total_memory_bytes", "free_memory_bytes"))
            return {"device": "cpu", "device_name": device.name, "is_estimated": True, **unknown}
        assert device.capability is not None  # `find_named_device` takes no other
        self.config = self.config.on_device("cuda:0")
        return {
            "device": "cuda:0",
            "device_name": device.name,
            "capability": ".".join(map(str, device.capability)),
            "num_multiprocessors": device.num_multiprocessors,
            "is_estimated": True,
            **describe_absent_memory(device.total_memory_bytes),
        }

    def _begin(self, workers: Workers, run: run_directory.Run, facts: Mapping[str, Any]) -> None:
        return

    def _prepare(self, runner: Any, held: TracedJob) -> None:
        return

    def _runner(self, held: TracedJob, workers: Workers, run_dir: Any) -> Any:
        if held.cost_model is None:
            raise EngineError(
                f"this job cannot be traced, so that nothing can be estimated: {held.why_untraced}", hint=INSTEAD
            )
        searched = () if self.selection.is_plain else self.selection.searched
        programs = [
            TracedProgram(job=one.job, cost_model=one.cost_model) for one in searched if one.cost_model is not None
        ]
        own = [TracedProgram(job=self.config.job, cost_model=held.cost_model)]
        runner = EstimateRunner(
            self._device,
            programs or own,
            budget_bytes=held.budget.budget_bytes,
            smallest=self.config.minimum,
            replica_batch_size=self.config.replica_batch_size,
            network_bytes_per_s=self.config.settings.network_bandwidth,
        )
        if searched:
            runner.settings_of = [dict(one.settings) for one in searched]
        return runner

    def _notices(self) -> tuple[str, ...]:
        device, job = self._device, self.config.job
        links = find_links(device, job, self.config.settings.network_bandwidth)
        if links is None:
            return super()._notices()
        return (f"{job.training_parallelism}: {links.describe(job.training_parallelism.num_ranks)}",)

    def _settings(self) -> SearchSettings:
        """Return settings without a verification: there is one program, which is not compiled for a size of its own."""
        own = super()._settings()
        user = own.user_compilation
        search = Compilation.SHARED if user is Compilation.EXACT else user
        return dataclasses.replace(own, verify_exact=False, search_compilation=search, user_compilation=search)

    def _candidates(self, held: TracedJob) -> tuple[int, ...]:
        """Return the sizes that are likely to fit, and the first that is not: it shows where memory ends."""
        sizes, models = super()._candidates(held), [one.cost_model for one in self.selection.searched if one.cost_model]
        if self.config.maximum is not None or held.cost_model is None:
            return sizes
        largest = max(_find_likely_largest(one, held.budget.budget_bytes) for one in models or [held.cost_model])
        return sizes[: bisect.bisect_right(sizes, largest) + 1]

    def _search(self, runner: Any, held: TracedJob) -> Iterator[Event]:
        candidates = super()._candidates(held)  # a size that may fit may be the best one too
        settings = self._settings()
        draw = functools.cache(lambda: runner.draw_errors(candidates, seed=settings.seed))

        def find_sd(micro_batch_size: int, variant: int) -> float:
            relative_sd = runner.estimate(micro_batch_size, variant).relative_sd
            return math.hypot(find_program_sd(runner.device), relative_sd)

        for event in super()._search(runner, held):
            if (
                isinstance(event, Recommendation)
                and event.relative_performance_interval is None
                and not event.confidence
            ):
                yield widen_speeds(event, find_sd)  # the first line need not wait for draws of two thousand sizes
            elif isinstance(event, Recommendation):
                yield allow_for_errors(event, draw(), find_sd, tolerance=settings.tolerance)
            elif isinstance(event, Result):
                yield qualify(event, draw(), find_sd, tolerance=settings.tolerance)
            else:
                yield event

    def _end(self, variant: int, runner: Any, held: TracedJob) -> Finish:
        searched = () if self.selection.is_plain else self.selection.searched
        job = searched[variant].job if searched else self.config.job
        model = searched[variant].cost_model if searched else held.cost_model
        return Finish(
            config=dataclasses.replace(self.config, job=job),
            runner=None,
            run=held.run,
            cost_model=model,
            memory_by_length=self._traced_by_length(variant, job, model, held),
            device_info=held.facts,
            elapsed_s=self._elapsed_s,
            variant=variant,
            searched=searched,
        )
