"""A whole exploration, from a checked configuration to its result; the command line and Python share it."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bexplore import logs
from bexplore.batching import MAX_SAMPLES, sizes_that_keep
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.engine import EngineRunner, RunnerSettings, Workers, begin
from bexplore.engine.process.timeouts import StageLimits
from bexplore.engine.program_client import recall_or_trace
from bexplore.engine.reduced_depth import ReducedDepthRunner
from bexplore.errors import NothingFitsError, UserInputError, UserProgramError
from bexplore.exploration import run_directory
from bexplore.exploration.estimate import expected_duration
from bexplore.exploration.event_records import event_record, trace_record
from bexplore.exploration.events import AlreadyFinished, Finished, JobEvent, Planned, Recommended, Traced
from bexplore.exploration.fingerprint import Fingerprint, describe, search_settings
from bexplore.exploration.finish import Finish, batch_size_request, global_batch_sizes
from bexplore.exploration.memory_budget import MemoryBudget, gradient_bytes_of, judged_by, resolve_budget
from bexplore.exploration.result import RunResult
from bexplore.host.machine import available_memory_bytes, num_usable_processors
from bexplore.measurement.probe import Compilation, Observation, Probe
from bexplore.search import loop
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import Event, Result, SearchEnded
from bexplore.search.settings import SearchSettings
from bexplore.search.space import TRACE_SD, MemoryPrior, Space, candidate_sizes, geometric_middle, largest_wanted
from bexplore.trace.cost_model import CostModel
from bexplore.trace.gpu_properties import GpuProperties

# Largest candidate without any bound: no `max`, no trace, no batch to divide.
DEFAULT_MAXIMUM = 4096
# Rules without an end; other candidates are listed by the user, or divide the user's own batch.
OPEN_RULES = ("all", "powers_of_two")
# Sizes up to this factor beyond the largest that fits by the trace stay candidates: probes decide.
BEYOND_TRACE = 1.25
# A size surely fits where its predicted peak plus so many standard deviations of the error is within the budget.
SURE_SDS = 3.0
# The smallest size is refused unrun where its predicted peak exceeds the budget by this factor: far beyond the trace's
# error.
HOPELESS_FACTOR = 2.0

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreOptions:
    """Options of an exploration that are not part of the job.

    Attributes:
        model_dir: Folder of the results; None for the configuration's own.
        fresh: Start over and trace again, even if an earlier run could be resumed.
        dry_run: End after the plan.
        on_progress: Called with workers' progress messages.
        should_stop: Called before each probe; a returned text ends the exploration and is its stop reason.
        clock: Returns seconds, of which only differences count.
        now: Returns the present time.
    """

    model_dir: str | None = None
    fresh: bool = False
    dry_run: bool = False
    on_progress: Progress = lambda message: None
    should_stop: Callable[[], str | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def keeping_sizes(config: Config, candidates: Sequence[int]) -> loop.KeepBatchSize | None:
    """Return the sizes that keep the user's global batch size; None without one, or where it has no whole share.

    With the rule `all` these are any sizes between the smallest and the largest candidate: large candidates are 8 and
    more apart, and a size that divides the batch need not be one of them.
    """
    if config.replica_batch_size is None:
        return None
    sizes = sizes_that_keep(config.replica_batch_size, config.divisibility)
    tried = set(candidates)
    is_dense = config.candidates == "all"
    kept = (size for size in sizes if size in tried or (is_dense and candidates[0] <= size <= candidates[-1]))
    return loop.KeepBatchSize(sizes=tuple(kept), is_answer=config.explore.keep_batch_size)


def explore(config: Config | str | Path, options: ExploreOptions | None = None) -> Iterator[JobEvent]:
    """Find the micro-batch size of a training job; yield events as they happen.

    Args:
        config: The job's YAML file, or the file already loaded.
        options: Options outside of the job; None for the defaults.

    Yields:
        `Planned`; `Traced`; for each probe `ProbeStarted`, `ProbeFinished` and, once something was measured,
        `Recommended`; `Finished`. Or only `AlreadyFinished`, where a finished run of the same job is on disk.

    Raises:
        UserInputError: The configuration is wrong, or has nothing to explore.
        NothingFitsError: Not even the smallest candidate fits the memory budget.
        UserProgramError: The user's own program fails at every size.
        EngineError: The device, the disk or the storage cannot be used.
    """
    loaded = config if isinstance(config, Config) else load_config(Path(config))
    if not loaded.request.is_search:
        raise UserInputError(
            f"{loaded.path}: micro_batch_size is {loaded.request.kind.value}: there is nothing to explore",
            hint="set micro_batch_size: explore",
        )
    for event in _Exploration(loaded, options or ExploreOptions()).events():
        record = event_record(event)
        if record is not None:
            logs.log.debug(record.pop("event"), **record)
        yield event


class _Exploration:
    """The state of one exploration."""

    def __init__(self, config: Config, options: ExploreOptions) -> None:
        self.config = config
        self.options = options
        self.folder = run_directory.model_directory(config.mode, options.model_dir or config.model_dir)
        self.fingerprint = Fingerprint(config=config, folder_name=self.folder.name)
        self.began_s = options.clock()
        self.on_progress = _logged(options.on_progress)
        self.known: list[Observation] = []
        self.host_available_bytes: int | None = None
        self.is_interrupted = False

    def events(self) -> Iterator[JobEvent]:
        """Plan, trace, search, measure the rest, finish."""
        run, changes = self._earlier_run()
        stored = run.result() if run else None
        if run is not None and stored is not None and self._answers(stored):
            yield AlreadyFinished(result=stored, run=run)
            return
        if self.options.dry_run:
            yield self._planned_only(changes)
            return
        if run is None:
            with run_directory.exclusively(self.folder):
                run, changes = self._earlier_run()  # again: another process may have created it meanwhile
                run = run or self._new_run()
        self.known = run.journal.read()
        logs.attach_file(run.directory / "log.jsonl")
        try:
            yield self._plan(run, changes)
            yield from self._run(run)
        except (NothingFitsError, UserProgramError) as error:
            # A corrected program must not meet the old failures again: such a run is not resumed.
            run.write_error(error.message)
            raise
        finally:
            logs.detach_file()

    def _answers(self, stored: RunResult) -> bool:
        """Whether a stored result is for the present batch size and steps.

        Another batch size needs another second answer, a longer training more search; both resume the run.
        """
        return all(getattr(stored, name) == value for name, value in batch_size_request(self.config).items())

    def _new_run(self, *, apart: bool = False) -> run_directory.Run:
        """Create a run; `apart` gives it a study of its own."""
        now = self.options.now()
        meta = self.fingerprint.meta(now)
        if apart or self.options.fresh or self._has_failed_before(meta):
            meta["study"] += f"-{now:%Y%m%d%H%M%S}-{os.getpid()}"
        return run_directory.create_run(self.folder, meta=meta, now=now)

    def _has_failed_before(self, meta: dict[str, Any]) -> bool:
        runs = run_directory.find_runs(self.folder)
        return any(run.has_failed and not run_directory.differences(run.meta(), meta) for run in runs)

    def _run(self, run: run_directory.Run) -> Iterator[JobEvent]:
        started_in = run.directory
        with Workers(started_in) as workers:
            cost_model, reason, facts = self._traced_device(workers, run)
            if cost_model is not None and not run.remember_trace(cost_model.as_dict()):
                self.known = []
                run = self._new_run(apart=True)
                run.remember_trace(cost_model.as_dict())
                yield self._plan(run, ("the program itself: its trace has another fingerprint",))
            budget = self._budget(facts, cost_model)
            runner = EngineRunner(
                self._runner_settings(started_in, facts, budget),
                workers=workers,
                limits=self._stage_limits(cost_model),
                on_progress=self.on_progress,
            )
            yield self._traced(cost_model, reason, budget)
            self._refuse_the_impossible(cost_model, budget)
            if not self.known:
                self._prepare(runner, cost_model, budget)
            end = Finish(
                config=self.config,
                runner=runner,
                run=run,
                cost_model=cost_model,
                device_info=facts,
                elapsed_s=lambda: self.options.clock() - self.began_s,
            )
            result = None
            for event in self._search(runner, run, cost_model, budget):
                if isinstance(event, Result):
                    result = event
                elif isinstance(event, SearchEnded):
                    end.compare_eager(event.result)
                elif isinstance(event, Recommendation):
                    sizes = global_batch_sizes(self.config, event.micro_batch_size)
                    yield Recommended(recommendation=event, global_batch_sizes=sizes)
                else:
                    yield event
            assert result is not None  # the loop ends with a result or an error
            yield Finished(result=end.result(result), run=run)

    def _traced_device(self, workers: Workers, run: run_directory.Run) -> tuple[CostModel | None, str, dict[str, Any]]:
        """Find the device and begin to compile in a worker, while a second process traces.

        The trace begins at once only on the CPU. Elsewhere it depends on the device, and where it uses the device
        itself, its context would reduce the free memory that is read.
        """
        with ThreadPoolExecutor(max_workers=1) as pool:
            early = pool.submit(self._trace, run, None) if self.config.job.device == "cpu" else None
            facts = self._on_device(workers)
            tracing = early or pool.submit(self._trace, run, GpuProperties.of_device_info(facts))
            self._begin(workers, run, facts)
            traced = tracing.result()
        cost_model = traced if isinstance(traced, CostModel) else None
        return cost_model, "" if cost_model else str(traced), facts

    def _trace(self, run: run_directory.Run, gpu: GpuProperties | None) -> CostModel | str:
        return recall_or_trace(self.config.job, run.directory, self.on_progress, gpu=gpu, fresh=self.options.fresh)

    def _begin(self, workers: Workers, run: run_directory.Run, facts: Mapping[str, Any]) -> None:
        """Begin to compile during the trace, where a processor is free and the probe does not depend on the trace."""
        needs_gradients = self.config.num_replicas > 1 and self.config.explore.replica_reserve_bytes is None
        trace_decides = needs_gradients or self._is_tuned_at_first_launch
        if self.known or trace_decides or num_usable_processors() < 2 or not self._compiles_ahead:
            return
        budget = self._budget(facts, None)
        settings = self._runner_settings(run.directory, facts, budget)
        begin(workers, settings, self._first_probe(None, budget))

    def _runner_settings(self, run_dir: Path, facts: Mapping[str, Any], budget: MemoryBudget) -> RunnerSettings:
        return RunnerSettings(
            job=self.config.job,
            run_dir=run_dir,
            budget_bytes=budget.budget_bytes,
            device_info=facts,
            free_memory_bytes=facts["free_memory_bytes"],
            largest_measured=max((o.micro_batch_size for o in self.known if o.is_measured), default=0),
            keeps_artifacts=True,
        )

    def _prepare(self, runner: EngineRunner, cost_model: CostModel | None, budget: MemoryBudget) -> None:
        """Compile the first probe's program, while nothing is timed and the final answer's process starts."""
        if not self._compiles_ahead:
            return
        try:
            runner.prepare(self._probe_to_prepare(cost_model, budget))
        except KeyboardInterrupt:  # as in a probe: the exploration ends with the known observations
            self.is_interrupted = True

    @property
    def _compiles_ahead(self) -> bool:
        return search_settings(self.config).search_compilation is Compilation.SHARED

    def _first_probe(self, cost_model: CostModel | None, budget: MemoryBudget) -> Probe:
        smallest = self._candidates(cost_model, budget)[0]
        return Probe(number=0, micro_batch_size=smallest, time_limit_s=search_settings(self.config).probe_time_limit_s)

    def _probe_to_prepare(self, cost_model: CostModel | None, budget: MemoryBudget) -> Probe:
        """Return the first probe, or one of a middle size where kernels are tuned at their first launch."""
        first = self._first_probe(cost_model, budget)
        if cost_model is None or not self._is_tuned_at_first_launch:
            return first
        sure_bytes = budget.budget_bytes / (1 + SURE_SDS * cost_model.relative_sd)
        sizes = self._candidates(cost_model, budget)
        middle = geometric_middle(sizes, largest=cost_model.max_micro_batch_size(sure_bytes))
        return dataclasses.replace(first, micro_batch_size=middle)

    @property
    def _is_tuned_at_first_launch(self) -> bool:
        """Whether the shared program keeps the kernel configurations that are fastest at the first size that it runs.

        Source: `CachingAutotuner.run` in torch/_inductor/runtime/triton_heuristics.py. Not with CUDA graphs, where each
        size has its own worker.
        """
        job = self.config.job
        return job.device.partition(":")[0] not in ("auto", "cpu") and not job.compile.uses_cuda_graphs(job.device)

    def _should_stop(self) -> str | None:
        return "interrupted" if self.is_interrupted else self.options.should_stop()

    def _on_device(self, workers: Workers) -> dict[str, Any]:
        facts = workers.device_info(self.config.job.device, on_progress=self.on_progress)
        self.host_available_bytes = available_memory_bytes()
        self.config = self.config.on_device(facts["device"])
        logs.log.debug("device", **facts)
        return facts

    def _budget(self, facts: Mapping[str, Any], cost_model: CostModel | None) -> MemoryBudget:
        num_parameters = None if cost_model is None else cost_model.num_parameters
        return resolve_budget(
            self.config.explore,
            facts,
            num_replicas=self.config.num_replicas,
            gradient_bytes=gradient_bytes_of(self.config.job, num_parameters),
            host_available_bytes=self.host_available_bytes,
        )

    def _stage_limits(self, cost_model: CostModel | None) -> StageLimits:
        limits = StageLimits(
            flops_per_sample=cost_model.hardware_flops_per_sample if cost_model else None,
            floor_s=self.config.explore.stage_time_floor,
        )
        for observation in self.known:
            limits.learn(observation)
        return limits

    def _traced(self, cost_model: CostModel | None, reason: str, budget: MemoryBudget) -> Traced:
        record = None
        if cost_model is not None:
            account = judged_by(self.config.job.device)
            record = trace_record(
                cost_model,
                budget_bytes=budget.budget_bytes,
                judged_by=account,
                minimum=self.config.minimum,
                maximum=self.config.maximum,
            )
        return Traced(
            record=record,
            reason=reason,
            memory_budget_bytes=budget.budget_bytes,
            why_budget=budget.why,
            warnings=budget.warnings,
        )

    def _search(
        self, runner: EngineRunner, run: run_directory.Run, cost_model: CostModel | None, budget: MemoryBudget
    ) -> Iterator[Event]:
        settings, candidates = self._settings(cost_model), self._candidates(cost_model, budget)
        with ReducedDepthRunner(runner, settings.depths) if settings.depths else nullcontext(runner) as probes:
            yield from loop.explore(
                probes,
                space=Space.of(candidates),
                settings=settings,
                keeping=keeping_sizes(self.config, candidates),
                memory=MemoryPrior(
                    peak_bytes=cost_model.peak_memory_bytes if cost_model else None,
                    relative_sd=cost_model.relative_sd if cost_model else TRACE_SD,
                    budget_bytes=budget.budget_bytes,
                    judged_by=judged_by(self.config.job.device),
                ),
                run=loop.RunRecord(
                    storage=self.config.explore.storage or run.directory / "study.log",
                    study_name=run.meta().get("study", self.fingerprint.study_name()),
                    lock_path=run.lock_path,
                    record=run.journal.append,
                    history=self.known,
                    clock=self.options.clock,
                    spent_s=self.options.clock() - self.began_s,
                ),
                should_stop=self._should_stop,
            )

    def _settings(self, cost_model: CostModel | None) -> SearchSettings:
        if cost_model is None:
            return search_settings(self.config)
        return search_settings(self.config, num_blocks=cost_model.num_blocks, block_share=cost_model.block_share)

    def _refuse_the_impossible(self, cost_model: CostModel | None, budget: MemoryBudget) -> None:
        """Raise before the first compilation where even the smallest size is far too big by the trace."""
        if cost_model is None:
            return
        smallest = self.config.minimum
        peak = cost_model.peak_memory_bytes(smallest)
        if peak > HOPELESS_FACTOR * budget.budget_bytes:
            raise NothingFitsError(
                f"micro-batch size {smallest}, the smallest, needs {peak / 2**30:.2f} GiB by the trace; the budget is "
                f"{budget.budget_bytes / 2**30:.2f} GiB ({cost_model.num_parameters:,} parameters)",
                hint="use a smaller model or sequence length, or a device with more memory",
            )

    def _candidates(self, cost_model: CostModel | None, budget: MemoryBudget) -> tuple[int, ...]:
        maximum = self.config.maximum
        if maximum is None:
            maximum = DEFAULT_MAXIMUM
            if cost_model is not None:
                fits = cost_model.max_micro_batch_size(budget.budget_bytes) or 0
                maximum = min(int(fits * BEYOND_TRACE) + 2, MAX_SAMPLES)
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
        sizes = f"{len(rule)} given sizes" if not isinstance(rule, str) else f"sizes by the rule '{rule}'"
        upper = self.config.maximum if self.config.maximum is not None else "what fits"
        if self.config.maximum is None and rule in OPEN_RULES:
            upper = f"what fits, at most {largest_wanted(self.config.job.sequence_length)}"
        return Planned(
            title=describe(self.config),
            run=run,
            num_known_probes=len(self.known),
            changes=tuple(changes),
            device=self.config.job.device,
            candidates=f"{sizes} from {self.config.minimum} to {upper}",
            max_probes=settings.max_probes,
            expected_s=None,
            warnings=self.config.warnings,
        )

    def _planned_only(self, changes: Sequence[str]) -> Planned:
        """Return the plan of a dry run, which builds and traces the job, so that its errors show, and keeps nothing."""
        gpu = None
        with tempfile.TemporaryDirectory() as folder:
            if self.config.job.device != "cpu":
                with Workers(Path(folder)) as workers:
                    gpu = GpuProperties.of_device_info(self._on_device(workers))
            traced = recall_or_trace(self.config.job, Path(folder), self.on_progress, gpu=gpu, fresh=self.options.fresh)
        cost_model = traced if isinstance(traced, CostModel) else None
        plan, settings = self._plan(None, changes), search_settings(self.config)
        environment = self.fingerprint.environment()
        expected = expected_duration(self.folder, environment, cost_model, max_probes=settings.max_probes)
        limits_s = [one for one in (expected.seconds, settings.time_budget_s) if one is not None]
        return dataclasses.replace(
            plan,
            num_parameters=None if cost_model is None else cost_model.num_parameters,
            expected_s=min(limits_s) if expected.seconds is not None else None,
            why_expected=expected.why,
            warnings=(*plan.warnings, *(() if cost_model else (f"the job cannot be traced: {traced}",))),
        )

    def _earlier_run(self) -> tuple[run_directory.Run | None, tuple[str, ...]]:
        """Return the newest run that can be resumed; else None and the changes since the newest run."""
        if self.options.fresh:
            return None, ()
        runs = run_directory.find_runs(self.folder)
        wanted = self.fingerprint.meta(self.options.now())
        for run in runs:
            if not run.has_failed and not run_directory.differences(run.meta(), wanted):
                return run, ()
        return None, run_directory.differences(runs[0].meta(), wanted) if runs else ()


def _logged(listener: Progress) -> Progress:
    """Return a listener that also logs the stages of workers."""

    def listen(message: dict[str, Any]) -> None:
        if message.get("stage"):
            logs.log.debug("stage", stage=message["stage"])
        listener(message)

    return listen
