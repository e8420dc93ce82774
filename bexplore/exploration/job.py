"""The exploration of a job that bexplore builds, traces and compiles itself."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bexplore.config.config import Config
from bexplore.config.variants import changes_training
from bexplore.engine.open_runner import VariantsRunner, open_runner
from bexplore.engine.process.launcher import external_hint
from bexplore.engine.process.limits import StageLimits
from bexplore.engine.process.pool import Workers
from bexplore.engine.program_client import recall_or_trace, trace_lengths
from bexplore.engine.runner import EngineRunner, RunnerSettings, begin
from bexplore.errors import BexploreError, NothingFitsError
from bexplore.estimate.dispatch import host_seconds
from bexplore.exploration.base import Exploration, ExploreOptions, find_sizes_that_keep
from bexplore.exploration.emulated import find_named_device
from bexplore.exploration.emulated_speeds import EmulatedSpeeds, TracedProgram, Work
from bexplore.exploration.estimate import estimate_duration
from bexplore.exploration.finish import Finish
from bexplore.exploration.memory_budget import MemoryBudget, count_gradient_bytes, find_memory_account, resolve_budget
from bexplore.exploration.setup import find_launcher, find_lone_environment, make_runner_settings
from bexplore.exploration.untraced import measure_with
from bexplore.exploration.variants import (
    SURE_SDS,
    make_priors,
    operations_over_file,
    select_variants,
    trace_all,
)
from bexplore.host import logs
from bexplore.host.json_files import read_json
from bexplore.host.machine import available_memory_bytes, num_usable_processors, package_version
from bexplore.host.records import from_record, to_record
from bexplore.host.secret_values import hidden
from bexplore.host.torch_interfaces import version_warnings
from bexplore.job import Job, device_kind
from bexplore.job.batching import MAX_SAMPLES
from bexplore.measurement.probe import Compilation, Observation, Probe
from bexplore.run import run_directory
from bexplore.run.event_records import trace_record
from bexplore.run.events import Finished, JobEvent, Planned, Recommended, Traced
from bexplore.run.fingerprint import describe, search_settings
from bexplore.run.parts.batch import global_batch_sizes
from bexplore.run.parts.ranks import one_rank_caution
from bexplore.run.selection import Selection, TracedVariant
from bexplore.search import loop
from bexplore.search.posterior.joint import Variant
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import Event, Result, SearchEnded
from bexplore.search.settings import SearchSettings
from bexplore.search.space import (
    DEFAULT_MAXIMUM,
    TRACE_SD,
    MemoryPrior,
    Space,
    candidate_sizes,
    describe_candidates,
    geometric_middle,
    largest_wanted,
)
from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.cost_model import CostModel, MemoryByLength
from bexplore.units import counted, format_bytes

# Rules without an end; other candidates are listed by the user, or divide the user's own batch.
OPEN_RULES = ("all", "powers_of_two")
# Sizes up to this factor beyond the largest that fits by the trace stay candidates: probes decide.
BEYOND_TRACE = 1.25
# The smallest size is refused unrun where its predicted peak exceeds the budget by this factor: far beyond the trace's
# error.
HOPELESS_FACTOR = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """What an exploration holds once its device is found."""

    run: run_directory.Run  # the run
    facts: Mapping[str, Any]  # torch's description of the device
    budget: MemoryBudget  # what the tensors of one replica may take
    cost_model: CostModel | None = None  # the trace of the file's own settings; None where there is none, or none yet
    why_untraced: str = ""  # why there is no trace, though steps may stand for it; empty where there is one

    @property
    def is_emulated(self) -> bool:
        """Whether no speed that is measured means anything."""
        return bool(self.facts.get("is_emulated"))


class JobExploration(Exploration):
    """An exploration whose probes are workers of the engine."""

    def __init__(
        self, config: Config, options: ExploreOptions, make_environment: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        super().__init__(config, options, make_environment)
        self.host_available_bytes: int | None = None
        self.selection = Selection()
        self.memory_by_length: MemoryByLength | None = None
        self._speeds = EmulatedSpeeds(None, lambda ran: ())

    def _run(self, run: run_directory.Run) -> Iterator[JobEvent]:
        started_in = run.directory
        with ExitStack() as stack:
            workers = stack.enter_context(Workers(started_in, self._environment | find_lone_environment(self.config)))
            traced, facts = self._traced_device(workers, run)
            own = traced[0]
            cost_model, reason = (own, "") if isinstance(own, CostModel) else (None, own)
            if cost_model is not None and not run.remember_trace(to_record(cost_model)):
                self.known = []
                run = self._new_run(apart=True)
                run.remember_trace(to_record(cost_model))
                yield self._plan(run, ("the program itself: its trace has another fingerprint",))
            budget = self._budget(facts, cost_model)
            held = TracedJob(run=run, facts=facts, budget=budget, cost_model=cost_model, why_untraced=reason)
            self.selection = self._selected(held, traced)
            runner = self._runner(held, workers, started_in)
            stack.enter_context(runner)
            if isinstance(runner, EngineRunner) and held.cost_model is None:
                held = self._measured(runner, held)
            yield self._traced(held)
            self._refuse_the_impossible(held)
            if not self.known:
                self._prepare(runner, held)
            yield from self._explore(runner, held)

    def _measured(self, runner: EngineRunner, held: TracedJob) -> TracedJob:
        """Measure steps at small sizes in the search's own worker, where there is no trace.

        A run that goes on has what it began with. Where they fail the first probe shows why.
        """
        stored = held.run.directory / "trace.json"
        if stored.exists():
            cost_model = from_record(CostModel, read_json(stored))
        elif self.known:
            return held
        else:
            self._prepare(runner, held)
            try:
                cost_model = measure_with(runner, self.config, held.why_untraced)
            except BexploreError as error:
                logs.log.debug("not measured", reason=error.message)
                return held
            held.run.remember_trace(to_record(cost_model))
        self.memory_by_length = cost_model.by_length
        return dataclasses.replace(held, cost_model=cost_model)

    def _explore(self, runner: EngineRunner | VariantsRunner, held: TracedJob) -> Iterator[JobEvent]:
        """Search; measure at the end of the search what remains."""
        end_of = functools.cache(lambda variant: self._end(variant, runner, held))
        result = None
        for event in self._search(runner, held):
            if isinstance(event, Result):
                result = event
            elif isinstance(event, SearchEnded):
                end_of(_variant_of(event.result)).compare_eager(event.result)
            elif isinstance(event, Recommendation):
                if not held.is_emulated or self._speeds.are_estimated:  # where no speed is known, none is streamed
                    yield self._recommended(event)
            else:
                yield event
        assert result is not None  # the loop ends with a result or an error
        yield Finished(result=end_of(_variant_of(result)).result(result), run=held.run)

    def _recommended(self, best: Recommendation) -> Recommended:
        chosen = None if self.selection.is_plain else self.selection.searched[best.variant]
        unit = self.config.size_unit
        return Recommended(
            recommendation=best,
            global_batch_sizes=global_batch_sizes(self.config, best.micro_batch_size),
            settings=chosen.settings if chosen else {},
            name=chosen.name if chosen else "",
            micro_batch_tokens=best.micro_batch_size * unit if self.config.request.is_in_tokens else None,
        )

    def _end(self, variant: int, runner: EngineRunner | VariantsRunner, held: TracedJob) -> Finish:
        config, cost_model = self.config, held.cost_model
        if isinstance(runner, VariantsRunner):
            searched = self.selection.searched
            chosen, own_runner, cost_model = searched[variant], runner.alone(variant), searched[variant].cost_model
            config = dataclasses.replace(config, job=chosen.job)
        else:
            own_runner = runner
        return Finish(
            config=config,
            runner=own_runner,
            run=held.run,
            cost_model=cost_model,
            memory_by_length=self._traced_by_length(variant, config.job, cost_model, held),
            device_info=self._speeds.describe_device(held.facts),
            elapsed_s=self._elapsed_s,
            variant=variant,
            searched=() if self.selection.is_plain else self.selection.searched,
        )

    def _traced_by_length(
        self, variant: int, job: Job, cost_model: CostModel | None, held: TracedJob
    ) -> MemoryByLength | None:
        """Return the traces at several lengths of the answer's variant; the file's own was traced before the search."""
        if variant == 0 or cost_model is None or self._should_stop() is not None:
            return self.memory_by_length if variant == 0 else None
        given = self._of_traces(GpuProperties.from_device_info(held.facts))
        return trace_lengths(job, cost_model, held.run.directory, self.on_progress, **given)

    def _selected(self, held: TracedJob, traced: Sequence[CostModel | str]) -> Selection:
        """Return the variants of the search: those of a resumed run, else those that may be the answer."""
        if not self.config.variants:
            return Selection()
        variants = [TracedVariant.of(one, trace) for one, trace in zip(self.config.variants, traced, strict=True)]
        models = [one.cost_model for one in variants]
        chosen = select_variants(
            variants,
            budget_bytes=held.budget.budget_bytes,
            sizes=self._sizes(models, held.budget),
            is_automatic=self.config.settings.settings == "auto",
        )
        stored = from_record(Selection, held.run.remember_variants(chosen.as_record()))
        return stored.with_jobs({variant.name: variant.job for variant in self.config.variants})

    def _runner(self, held: TracedJob, workers: Workers, run_dir: Path) -> EngineRunner | VariantsRunner:
        settings = self._runner_settings(held, run_dir)
        if self.selection.is_plain:
            limits = self._stage_limits(held.cost_model, 0)
            return open_runner(settings, workers=workers, limits=limits, on_progress=self.on_progress)
        runners = []
        for number, variant in enumerate(self.selection.searched):
            own = dataclasses.replace(
                settings,
                job=variant.job,
                run_dir=settings.run_dir / f"variant_{number}" if number else settings.run_dir,
                largest_measured=self._largest_measured(number),
                largest_size=self._largest_size(variant.cost_model, held.budget),
            )
            runners.append(
                EngineRunner(
                    own,
                    workers=None if number else workers,
                    limits=self._stage_limits(variant.cost_model, number),
                    on_progress=self.on_progress,
                )
            )
        return VariantsRunner(runners, [variant.settings for variant in self.selection.searched])

    def _largest_measured(self, variant: int) -> int:
        own = (o.micro_batch_size for o in self.known if o.is_measured and o.probe.variant == variant)
        return max(own, default=0)

    def _traced_device(self, workers: Workers, run: run_directory.Run) -> tuple[list[CostModel | str], dict[str, Any]]:
        """Find the device and begin to compile in a worker, while a second process traces.

        The trace begins at once only on the CPU. Elsewhere it depends on the device, and where it uses the device
        itself, its context would reduce the free memory that is read.
        """
        with ThreadPoolExecutor(max_workers=1) as pool:
            early = pool.submit(self._trace, run, None) if self.config.job.device == "cpu" else None
            facts = self._on_device(workers)
            tracing = early or pool.submit(self._trace, run, GpuProperties.from_device_info(facts))
            self._begin(workers, run, facts)
            return tracing.result(), facts

    def _trace(self, run: run_directory.Run, gpu: GpuProperties | None) -> list[CostModel | str]:
        """Trace the job, or each of its variants, the file's own first; and the job at other lengths of its samples."""
        given = self._of_traces(gpu)
        traced = trace_all(self.config, run.directory, self.on_progress, **given)
        if isinstance(traced[0], CostModel):
            self.memory_by_length = trace_lengths(self.config.job, traced[0], run.directory, self.on_progress, **given)
        return traced

    def _of_traces(self, gpu: GpuProperties | None) -> dict[str, Any]:
        return {"gpu": gpu, "fresh": self.options.fresh, "environment": self._environment}

    def _begin(self, workers: Workers, run: run_directory.Run, facts: Mapping[str, Any]) -> None:
        """Begin to compile during the trace, where a processor is free and the probe does not depend on the trace."""
        keeps_a_copy = self.config.num_replicas > 1 and not self.config.job.parallelism.is_distributed
        needs_gradients = keeps_a_copy and self.config.settings.replica_reserve_bytes is None
        trace_decides = needs_gradients or self._is_tuned_at_first_launch
        is_plain = not self.config.variants  # of several, traces choose the first one
        if self.known or trace_decides or num_usable_processors() < 2 or not (is_plain and self._compiles_ahead):
            return
        held = TracedJob(run=run, facts=facts, budget=self._budget(facts, None))
        begin(workers, self._runner_settings(held, run.directory), self._first_probe(held))

    def _runner_settings(self, held: TracedJob, run_dir: Path) -> RunnerSettings:
        return make_runner_settings(
            self.config,
            held.facts,
            run_dir=run_dir,
            budget_bytes=held.budget.budget_bytes,
            environment=self._environment,
            largest_measured=self._largest_measured(0),
            keeps_artifacts=True,
            largest_size=self._largest_size(held.cost_model, held.budget),
        )

    def _prepare(self, runner: EngineRunner | VariantsRunner, held: TracedJob) -> None:
        """Compile the first probe's program, while nothing is timed and the final answer's process starts."""
        is_first = self.selection.is_plain or self._fits_at_all(held)
        if not (is_first and self._compiles_ahead):
            return
        try:
            runner.prepare(self._probe_to_prepare(held))
        except KeyboardInterrupt:  # as in a probe: the exploration ends with the known observations
            self.is_interrupted = True

    @property
    def _compiles_ahead(self) -> bool:
        is_shared = search_settings(self.config).search_compilation is Compilation.SHARED
        return is_shared and self.config.job.compile.enabled

    def _fits_at_all(self, held: TracedJob) -> bool:
        """Whether the smallest size fits with the file's own settings; so it counts where no trace tells."""
        if held.cost_model is None:
            return True
        return held.cost_model.peak_memory_bytes(self.config.minimum) <= held.budget.budget_bytes

    def _first_probe(self, held: TracedJob) -> Probe:
        smallest = self._candidates(held)[0]
        return Probe(number=0, micro_batch_size=smallest, time_limit_s=search_settings(self.config).probe_time_limit_s)

    def _probe_to_prepare(self, held: TracedJob) -> Probe:
        """Return the first probe, or one of a middle size where kernels are tuned at their first launch."""
        first, cost_model = self._first_probe(held), held.cost_model
        if cost_model is None or not self._is_tuned_at_first_launch:
            return first
        sure_bytes = held.budget.budget_bytes / (1 + SURE_SDS * cost_model.relative_sd)
        sizes = self._candidates(held)
        middle = geometric_middle(sizes, largest=cost_model.max_micro_batch_size(sure_bytes))
        return dataclasses.replace(first, micro_batch_size=middle)

    @property
    def _is_tuned_at_first_launch(self) -> bool:
        """Whether the shared program keeps the kernel configurations that are fastest at the first size that it runs.

        Source: `CachingAutotuner.run` in torch/_inductor/runtime/triton_heuristics.py. Not with CUDA graphs, where each
        size has its own worker.
        """
        job = self.config.job
        return device_kind(job.device) not in ("auto", "cpu") and not job.compile.uses_cuda_graphs(job.device)

    def _on_device(self, workers: Workers) -> dict[str, Any]:
        facts = workers.device_info(self.config.job.device, on_progress=self.on_progress)
        self.host_available_bytes = available_memory_bytes()
        self.config = self.config.on_device(facts["device"])
        logs.log.debug("device", **facts)
        return facts

    def _budget(self, facts: Mapping[str, Any], cost_model: CostModel | None) -> MemoryBudget:
        num_parameters = None if cost_model is None else cost_model.num_parameters
        return resolve_budget(
            self.config.settings,
            facts,
            num_replicas=self.config.num_replicas,
            gradient_bytes=count_gradient_bytes(self.config.job, num_parameters),
            host_available_bytes=self.host_available_bytes,
            is_traced_for_ranks=self.config.job.parallelism.is_distributed,
            num_ranks_here=self.config.num_ranks_here,
        )

    def _stage_limits(self, cost_model: CostModel | None, variant: int) -> StageLimits:
        limits = StageLimits(
            flops_per_sample=cost_model.hardware_flops_per_sample if cost_model else None,
            floor_s=self.config.settings.stage_time_floor,
        )
        for observation in self.known:
            if observation.probe.variant == variant:
                limits.learn(observation)
        return limits

    def _traced(self, held: TracedJob) -> Traced:
        budget = held.budget
        record = None if held.cost_model is None else self._trace_record(held.cost_model, budget)
        return Traced(
            record=record,
            reason=held.why_untraced,
            memory_budget_bytes=budget.budget_bytes,
            why_budget=budget.why,
            warnings=(*budget.warnings, *(held.cost_model.growing if held.cost_model else ())),
            variants=tuple(self._traced_settings(budget)),
            left_out=self.selection.left_out,
        )

    def _traced_settings(self, budget: MemoryBudget) -> Iterator[dict[str, Any]]:
        searched = () if self.selection.is_plain else self.selection.searched
        for number, one in enumerate(searched):
            record = None if one.cost_model is None else self._trace_record(one.cost_model, budget)
            yield {
                "name": one.name,
                "settings": dict(one.settings),
                "max_micro_batch_size": None if record is None else record["max_micro_batch_size"] or 0,
                "operations_over_file": operations_over_file(searched, number, self.config.minimum),
                "reason": one.reason,
            }

    def _trace_record(self, cost_model: CostModel, budget: MemoryBudget) -> dict[str, Any]:
        return trace_record(
            cost_model,
            budget_bytes=budget.budget_bytes,
            judged_by=find_memory_account(self.config.job.device),
            minimum=self.config.minimum,
            maximum=self.config.maximum,
        )

    def _search(self, runner: EngineRunner | VariantsRunner, held: TracedJob) -> Iterator[Event]:
        settings, candidates = self._settings(), self._candidates(held)
        memory_of = functools.partial(self._memory_prior, budget=held.budget)
        variants: tuple[Variant, ...] = (Variant(memory=memory_of(held.cost_model)),)
        if not self.selection.is_plain:
            middle = geometric_middle(candidates, largest=candidates[-1])
            variants = make_priors(self.selection.searched, memory_of, size=middle)
        self._speeds = self._open_speeds(held)
        for one in self.known:
            self._speeds.learn(one)
        events = loop.run_search(
            self._speeds.wrap(runner, lambda: held.is_emulated),
            space=Space.from_sizes(candidates),
            settings=settings,
            variants=variants,
            keeping=find_sizes_that_keep(self.config, candidates),
            run=self._record(held.run),
            should_stop=self._should_stop,
        )
        for event in events:
            yield self._speeds.qualify(event, candidates, tolerance=settings.tolerance, seed=settings.seed)

    def _open_speeds(self, held: TracedJob) -> EmulatedSpeeds:
        """Return what tells of speed on an emulated device: the kernels of the trace, or nothing."""
        is_estimated = self.config.is_estimated and self.config.is_emulated
        return EmulatedSpeeds(
            find_named_device(self.config)[1] if is_estimated else None,
            functools.partial(self._find_work, held.cost_model),
        )

    def _find_work(self, of_file: CostModel | None, ran: Observation) -> list[Work]:
        """Return what the trace has of a size that ran on an emulated device: the work of one rank."""
        searched = None if self.selection.is_plain else self.selection.searched[ran.probe.variant]
        job, model = (self.config.job, of_file) if searched is None else (searched.job, searched.cost_model)
        if model is None or not model.kernels:
            return []
        host_s = host_seconds(model.dispatches, uses_cuda_graphs=job.compile.uses_cuda_graphs("cuda"))
        program = TracedProgram(job=job, cost_model=model).of_processor
        return [Work(passes=model.kernel_calls(ran.micro_batch_size), host_s=host_s, program=program)]

    def _memory_prior(self, cost_model: CostModel | None, *, budget: MemoryBudget) -> MemoryPrior:
        return MemoryPrior(
            peak_bytes=cost_model.peak_memory_bytes if cost_model else None,
            relative_sd=cost_model.relative_sd if cost_model else TRACE_SD,
            budget_bytes=budget.budget_bytes,
            judged_by=find_memory_account(self.config.job.device),
        )

    def _largest_size(self, cost_model: CostModel | None, budget: MemoryBudget) -> int | None:
        """Return the largest size that is likely to fit; None where there is no trace to tell."""
        if cost_model is None:
            return None
        fits = max(_just_beyond(cost_model.max_micro_batch_size(budget.budget_bytes)), self.config.minimum)
        return min(fits, self.config.maximum or MAX_SAMPLES)

    def _settings(self) -> SearchSettings:
        if not self.selection.is_plain:
            joint = search_settings(self.config, num_variants=len(self.selection.searched))
            # Two workers do not share an accelerator's memory: another variant's program is compiled again there.
            return dataclasses.replace(joint, keeps_programs=device_kind(self.config.job.device) == "cpu")
        return search_settings(self.config, num_variants=1)

    def _refuse_the_impossible(self, held: TracedJob) -> None:
        """Raise before the first compilation where even the smallest size is far too big by the trace."""
        cost_model, budget, smallest = held.cost_model, held.budget, self.config.minimum
        if cost_model is None or not self.selection.is_plain:
            return
        peak = cost_model.peak_memory_bytes(smallest)
        if peak > HOPELESS_FACTOR * budget.budget_bytes:
            raise NothingFitsError(
                f"micro-batch size {smallest}, the smallest, needs {format_bytes(peak)} by the trace; the budget is "
                f"{format_bytes(budget.budget_bytes)} ({cost_model.num_parameters:,} parameters)",
                hint="use a smaller model or sequence length, or a device with more memory",
            )

    def _candidates(self, held: TracedJob) -> tuple[int, ...]:
        searched = self.selection.searched
        return self._sizes([one.cost_model for one in searched] or [held.cost_model], held.budget)

    def _sizes(self, cost_models: Sequence[CostModel | None], budget: MemoryBudget) -> tuple[int, ...]:
        """Return the candidates: up to what fits with the settings that need least memory."""
        maximum = self.config.maximum
        if maximum is None:
            maximum = DEFAULT_MAXIMUM
            traced = [model for model in cost_models if model is not None]
            if len(traced) == len(cost_models):
                fits = max(model.max_micro_batch_size(budget.budget_bytes) for model in traced)
                maximum = _just_beyond(fits)
            if self.config.candidates in OPEN_RULES:
                maximum = min(maximum, largest_wanted(self.config.job.sequence_length))
        return candidate_sizes(
            self.config.candidates,
            minimum=self.config.minimum,
            maximum=max(maximum, self.config.minimum),
            replica_batch_size=self.config.replica_batch_size,
        )

    def _plan(self, run: run_directory.Run | None, changes: Sequence[str]) -> Planned:
        settings = search_settings(self.config)
        rule = self.config.candidates
        upper = self.config.maximum if self.config.maximum is not None else "what fits"
        if self.config.maximum is None and rule in OPEN_RULES:
            upper = f"what fits, at most {largest_wanted(self.config.job.sequence_length)}"
        return Planned(
            title=describe(self.config),
            run=run,
            num_known_probes=len(self.known),
            changes=tuple(changes),
            device=self.config.job.device,
            candidates=describe_candidates(rule, minimum=self.config.minimum, maximum=upper),
            max_probes=settings.max_probes,
            expected_s=None,
            warnings=(*self.config.warnings, *version_warnings(package_version("torch"))),
            notices=(*self._notices(), *self._notices_of_settings()),
        )

    def _notices_of_settings(self) -> tuple[str, ...]:
        variants = self.config.variants
        if not variants:
            return ()
        names = "; ".join(variant.name for variant in variants)
        changes = dict.fromkeys(
            change for one in variants for change in changes_training(one.values, variants[0].values)
        )
        changing = f"; {', '.join(changes)} changes the training, which explore.settings allows" if changes else ""
        return (f"{counted(len(variants), 'combination')} of settings, the file's own first: {names}{changing}",)

    def _notices(self) -> tuple[str, ...]:
        parallelism = self.config.job.parallelism
        if not parallelism.is_distributed:
            return ()
        launcher = find_launcher(self.config)
        if launcher is None:
            return (one_rank_caution(parallelism),)
        starter = "you" if launcher.is_external else launcher.kind
        runs = f"one rank alone shows what fits, then all {launcher.num_ranks} run, started by {hidden(starter)}"
        address = f"{launcher.host}:{launcher.port}"
        return (runs, external_hint(address, launcher.num_ranks)) if launcher.is_external else (runs,)

    def _planned_only(self, changes: Sequence[str]) -> Planned:
        """Return the plan of a dry run, which builds and traces the job, so that its errors show, and keeps nothing."""
        gpu = None
        with tempfile.TemporaryDirectory() as folder:
            if self.config.job.device != "cpu":
                with Workers(Path(folder), self._environment) as workers:
                    gpu = GpuProperties.from_device_info(self._on_device(workers))
            limit_s = self.config.settings.trace_time_limit_s
            given = self._of_traces(gpu)
            traced = recall_or_trace(self.config.job, Path(folder), self.on_progress, limit_s=limit_s, **given)
        cost_model = traced if isinstance(traced, CostModel) else None
        plan, settings = self._plan(None, changes), search_settings(self.config)
        environment = self.fingerprint.environment()
        expected = estimate_duration(self.folder, environment, cost_model, max_probes=settings.max_probes)
        limits_s = [one for one in (expected.seconds, settings.time_budget_s) if one is not None]
        return dataclasses.replace(
            plan,
            num_parameters=None if cost_model is None else cost_model.num_parameters,
            expected_s=min(limits_s) if expected.seconds is not None else None,
            why_expected=expected.why,
            warnings=(*plan.warnings, *(() if cost_model else (f"the job cannot be traced: {traced}",))),
        )


def _just_beyond(size: int) -> int:
    """Return the largest size that may fit where a trace says that `size` is the largest."""
    return min(int(size * BEYOND_TRACE) + 2, MAX_SAMPLES)


def _variant_of(result: Result) -> int:
    """Return the variant of a result's answer; that of the file where there is none."""
    return result.recommendation.variant if result.recommendation else 0
