"""The exploration of a training command, on a machine with a known answer: its real step, its numbers, its promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from bexplore.api import explore
from bexplore.command.judgement import PROBING_ACCUMULATION
from bexplore.command.runner import CommandSettings
from bexplore.config.command import Command
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.errors import UserProgramError
from bexplore.exploration import command as module
from bexplore.exploration.base import ExploreOptions
from bexplore.guard.snapshot import find_guarded
from bexplore.host.records import from_record
from bexplore.measurement.probe import REAL_STEP, Observation, Outcome, Probe, Purpose
from bexplore.run.events import AlreadyFinished, Finished, JobEvent, Planned
from bexplore.run.facts import step_time_s
from bexplore.run.result import RunResult
from bexplore.run.run_directory import open_run
from bexplore.search.result import ProbeFinished, ProbeStarted

UPDATE_S = 0.2  # of an optimizer as slow as ten passes
SIZES = "explore.candidates=[2, 8]"
STORAGE = "sqlite:///study.db"


class Machine:
    """Stands for `CommandRunner`; a pass takes a fixed time and a time for each sample.

    Attributes:
        runs: Size and accumulation of each start, of all instances.
        learnt: Numbers of the observations that a resumed exploration has handed over.
        unconfirmed_size: The size of which another number of samples arrived.
        size_to_confirm: A size that another start must be given.
        slower: Factor of the steps whose accumulation is not that of probing.
        fails_with: What happens in these steps instead of an observation.
        steps_had: Micro-batches of a step where the command fixes them, or a function of the size.
        interrupted_at: Start of the search at which the user interrupts.
        share_without_training: Of the seconds between the steps.
        parallel_devices: Devices of `nn.DataParallel`.
        rows_per_size, further_rows: By which the leading dimension of a batch follows from its size.
    """

    runs: list[tuple[int, int | None]]
    learnt: list[int]
    unconfirmed_size: int | None
    size_to_confirm: int | None
    slower: float
    fails_with: BaseException | Outcome | None
    steps_had: int | Callable[[int], int]
    interrupted_at: int | None
    share_without_training: float
    parallel_devices: int
    rows_per_size: float
    further_rows: int

    def __init__(self, command: Command, settings: CommandSettings) -> None:
        self.command, self.settings = command, settings
        self.num_replicas = command.num_replicas
        self.device_info: dict = {}

    def __call__(self, probe: Probe) -> Observation:
        if len(self.runs) == self.interrupted_at:
            raise KeyboardInterrupt
        return self.run(probe, PROBING_ACCUMULATION if self.command.sets_accumulation else None)

    def run(self, probe: Probe, accumulation: int | None) -> Observation:
        self.runs.append((probe.micro_batch_size, accumulation))
        is_real = accumulation not in (None, PROBING_ACCUMULATION)
        if is_real and isinstance(self.fails_with, BaseException):
            raise self.fails_with
        if is_real and self.fails_with is not None:
            return Observation(probe=probe, outcome=self.fails_with, reason="too big", elapsed_s=1.0)
        had = self.steps_had
        steps = accumulation or (had if isinstance(had, int) else had(probe.micro_batch_size))
        pass_s = (probe.micro_batch_size + 30) / 1000.0 * (self.slower if is_real else 1.0)
        step_s = steps * pass_s + UPDATE_S
        passes_s, updates_s = ((pass_s,) * 5, (UPDATE_S,) * 5) if accumulation else ((step_s / steps,) * 5, ())
        details = {"num_replicas": 1, "step_time_s": step_s, "micro_batches_per_step": float(steps)}
        details["share_without_training"] = self.share_without_training
        details["parallel_devices"] = self.parallel_devices
        rows = round(self.rows_per_size * probe.micro_batch_size) + self.further_rows
        has_rows = rows == probe.micro_batch_size
        details["arrived"] = {"rows": rows, "mean_rows": rows + 0.25, "has_rows_of_size": has_rows}
        return Observation(
            probe=probe,
            outcome=Outcome.MEASURED,
            pass_times_s=passes_s,
            update_times_s=updates_s,
            start_time_s=2.0,
            elapsed_s=3.0,
            ran_eagerly=True,
            details=details,
        )

    def learn(self, observation: Observation) -> None:
        self.learnt.append(observation.probe.number)

    def arrived_at(self, micro_batch_size: int) -> str:
        return f"micro-batches of 1 sample arrived where {micro_batch_size} were asked for"

    def by_hand(self, micro_batch_size: int) -> str:
        return f"train --size {micro_batch_size}"

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path) -> type[Machine]:
    """The machine, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    facts = {"runs": [], "learnt": [], "slower": 1.0, "fails_with": None, "steps_had": 1, "interrupted_at": None}
    facts["share_without_training"], facts["parallel_devices"], facts["rows_per_size"] = 0.0, 1, 1.0
    facts["further_rows"] = 0
    facts["unconfirmed_size"] = facts["size_to_confirm"] = None
    fresh = type("FreshMachine", (Machine,), facts)
    monkeypatch.setattr(module, "CommandRunner", fresh)
    return fresh


def load(*overrides: str, text: str = "", words: tuple[str, ...] = ()) -> Config:
    """Return the configuration of a file that a command reads."""
    Path("job.yaml").write_text(f"micro_batch_size: explore\n{text}\n")
    command = json.dumps(["train", "{config}", "--out", "{output_dir}", *words])
    return load_config(Path("job.yaml"), overrides=[f"explore.command={command}", SIZES, *overrides])


def events_of(*overrides: str, text: str = "", words: tuple[str, ...] = (), **options) -> list[JobEvent]:
    """Explore such a file; return the events."""
    return list(explore(load(*overrides, text=text, words=words), ExploreOptions(model_dir="run", **options)))


def result_of(*overrides: str, **fields) -> RunResult:
    """Explore as `events_of` does; return the result."""
    (finished,) = [event for event in events_of(*overrides, **fields) if isinstance(event, Finished)]
    return finished.result


def journal() -> list[Observation]:
    """Return the observations of the only run."""
    (path,) = Path().rglob("journal.jsonl")
    return [from_record(Observation, json.loads(line)) for line in path.read_text().splitlines()]


def step_times(result: RunResult) -> dict[int, float]:
    """Return the seconds of a step by accumulation."""
    return {one.accumulation_steps: one.step_time_s for one in result.batch.global_batch_sizes}


def states_of_trials() -> list[str]:
    """Return the states of the trials of the only study."""
    (summary,) = optuna.get_all_study_summaries(STORAGE)
    study = optuna.load_study(study_name=summary.study_name, storage=STORAGE)
    return [trial.state.name for trial in study.get_trials()]


# The real step


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("gradient_accumulation_steps: 8", ()),
        ("gradient_accumulation_steps: 1", ("explore.global_batch_size=64",)),
        ("gradient_accumulation_steps: 1", ("explore.replica_batch_size=64",)),
    ],
    ids=["the file's own", "of the global batch", "of a replica's batch"],
)
def test_the_answer_runs_once_with_the_accumulation_of_the_training_and_its_step_is_in_the_result(
    machine, text, overrides
):
    result = result_of(*overrides, text=text)

    assert result.micro_batch_size == 8
    assert [run for run in machine.runs if run[1] != PROBING_ACCUMULATION] == [(8, 8)]
    assert (result.batch.batch_size, result.batch.is_made_of_size) == (64, not overrides)
    assert step_times(result)[8] == pytest.approx(8 * 0.038 + UPDATE_S, rel=1e-3)
    assert result.batch.keeps_batch_size.accumulation_steps == 8
    assert result.warnings == ()


@pytest.mark.parametrize(
    ("passes", "told"),
    [
        (lambda size: 3 if size < 8 else 5, "a step has 3 passes at size 2 and 5 passes at size 8"),
        (lambda size: 3, ""),
        (lambda size: -(-64 // size), ""),
        (lambda size: max(12 // size, 1), "a step has 8 samples at size 8, and 12 at size 2"),
        (lambda size: max(8 // size, 1), ""),
    ],
    ids=["an epoch ends amid a step", "always as many", "one batch of any size", "whole micro-batches", "divisors"],
)
def test_steps_that_differ_between_sizes_are_told_unless_they_make_one_batch(machine, passes, told):
    machine.steps_had = staticmethod(passes)

    result = result_of("explore.max=8", words=("--own",), text="")

    assert [one.partition(":")[0] for one in result.warnings if "a step has" in one] == ([told] if told else [])


@pytest.mark.parametrize(("share", "is_told"), [(0.3, False), (0.88, True)])
def test_seconds_between_steps_that_are_most_of_a_training_are_told(machine, share, is_told):
    machine.share_without_training = share

    told = [one for one in result_of(words=("--own",)).warnings if "without gradients" in one]

    assert [one.startswith("88% of the seconds between the steps of size ") for one in told] == [True] * is_told


@pytest.mark.parametrize(
    ("ratio", "further", "told"),
    [
        (1.0, 0, []),
        (4.0, 0, ["batches have 4 rows for each"]),
        (0.5, 0, []),
        (1.5, 0, []),
        (1.0, 480, ["batches have 480 rows beside"]),
        (2.0, 3, []),
    ],
)
def test_rows_that_are_several_for_each_of_a_size_or_beside_it_are_told(machine, ratio, further, told):
    machine.rows_per_size, machine.further_rows = ratio, further

    warnings = result_of("explore.max=8", words=("--own",)).warnings

    assert [" ".join(one.split()[: len(told[0].split())]) for one in warnings if "rows" in one] == told


def test_a_size_that_counts_more_than_rows_is_told(machine):
    machine.rows_per_size = 0.1

    (told,) = [one for one in result_of("explore.max=8", words=("--own",)).warnings if " rows " in one]

    assert told == (
        "a batch of size 8 has 1.25 rows in the mean: the size counts something else, such as tokens, and so do the "
        "batch sizes and samples/s here"
    )


def test_rows_that_are_as_many_at_each_size_tell_nothing(machine):
    machine.rows_per_size, machine.further_rows = 0.0, 2  # samples are in another dimension

    assert not [one for one in result_of("explore.max=8", words=("--own",)).warnings if " rows " in one]


def test_devices_among_which_a_process_divides_its_batch_are_told(machine):
    machine.parallel_devices = 2

    (told,) = [one for one in result_of("explore.max=8", words=("--own",)).warnings if "DataParallel" in one]

    assert told.startswith("nn.DataParallel divides each batch among 2 devices: size 8 is 4 on each")


def test_a_command_that_fixes_its_accumulation_keeps_a_batch_at_one_size_alone(machine):
    result = result_of("explore.global_batch_size=64", "explore.max=8", words=("--gradient_accumulation_steps=2",))

    assert result.batch.keeps_batch_size is None
    assert result.batch.passes_per_step == 2
    told = "batch_size 64 is not what the command makes of micro_batch_size 8: a step has 2 passes on 1 replica"
    assert result.batch.batch_message == told


def test_a_step_is_seen_without_another_start_where_probes_have_the_accumulation_of_the_training(machine):
    result = result_of(text=f"gradient_accumulation_steps: {PROBING_ACCUMULATION}")

    assert {accumulation for _, accumulation in machine.runs} == {PROBING_ACCUMULATION}
    assert not any(one.is_after_search for one in journal())
    assert step_times(result)[2] == pytest.approx(2 * 0.038 + UPDATE_S, rel=1e-3)


def test_nothing_is_run_with_another_accumulation_where_nobody_says_which(machine):
    result = result_of(words=("--accumulation", "{accumulation}"))

    assert {accumulation for _, accumulation in machine.runs} == {PROBING_ACCUMULATION}
    assert result.batch.batch_size is None


def test_what_the_command_fixes_is_seen_in_every_start(machine):
    machine.steps_had = 8
    words = ("--gradient_accumulation_steps", "8")

    result = result_of(text="gradient_accumulation_steps: 4", words=words)

    assert {accumulation for _, accumulation in machine.runs} == {None}
    assert result.batch.batch_size == 64
    assert step_times(result)[8] == pytest.approx(8 * 0.038 + UPDATE_S, rel=1e-3)
    assert result.warnings == ()


@pytest.mark.parametrize("steps_had", [1, 4])
def test_a_command_that_takes_no_accumulation_has_one_valid_batch(machine, steps_had):
    machine.steps_had = steps_had
    result = result_of()

    (only,) = result.batch.global_batch_sizes
    assert (only.global_batch_size, only.accumulation_steps) == (steps_had * 8, steps_had)
    assert only.step_time_s == pytest.approx(steps_had * 0.038 + UPDATE_S, rel=1e-3)


def test_a_command_that_fixes_an_accumulation_and_has_steps_of_another_is_told_so(machine):
    machine.steps_had = 4

    result = result_of(words=("--gradient_accumulation_steps=8",))

    assert result.warnings == ("the command fixes 8 accumulation steps, and a step had 4",)


@pytest.mark.parametrize(("slower", "warns"), [(1.0, False), (1.3, False), (1.5, True), (0.5, True)])
def test_a_real_step_is_compared_with_its_passes_and_its_update(machine, slower, warns):
    # 8 passes of 38 ms and an update of 200 ms: 504 ms are predicted, of which the passes alone are 304 ms.
    machine.slower = slower

    result = result_of(text="gradient_accumulation_steps: 8")

    assert bool(result.warnings) is warns
    if slower == 1.5:
        assert result.warnings == (
            "a step of 8 accumulation steps took 656 ms; passes and an update that were measured at 2 give 504 ms",
        )


# Its observation


def test_the_real_step_is_a_probe_of_the_journal_the_study_and_the_events(machine):
    events = events_of(f"explore.storage={STORAGE}", text="gradient_accumulation_steps: 8")

    result, observations = events[-1].result, journal()
    assert states_of_trials() == [*["COMPLETE"] * (len(observations) - 1), "FAIL"]  # the last is no evidence
    started = [event.probe for event in events if isinstance(event, ProbeStarted)]
    finished = [event.observation for event in events if isinstance(event, ProbeFinished)]
    assert started == [one.probe for one in observations] == [one.probe for one in finished]
    assert [one.probe.number for one in observations] == list(range(len(machine.runs)))
    assert observations[-1].details[REAL_STEP] == 8
    assert observations[-1].probe.purpose is Purpose.VERIFY
    assert result.search.num_probes == len(observations) == sum(result.search.outcomes.values())
    expected_s = [event.expected_s for event in events if isinstance(event, ProbeStarted)][-1]
    assert expected_s == pytest.approx(2.0 + 7 * step_time_s(observations[-1], 8))


def test_an_exploration_that_was_killed_after_its_real_step_does_not_run_it_again(machine):
    machine.slower = 1.5
    first = result_of(text="gradient_accumulation_steps: 8")
    before = list(machine.runs)
    (stored,) = Path().rglob("result.json")
    stored.unlink()

    again = result_of(text="gradient_accumulation_steps: 8")

    assert machine.runs == before
    assert step_times(again) == step_times(first)
    names = ("num_probes", "outcomes", "confidence", "warnings")
    assert [again.as_record()[name] for name in names] == [first.as_record()[name] for name in names]
    assert first.warnings


def test_another_accumulation_is_another_real_step_of_the_same_search(machine):
    result_of(text="gradient_accumulation_steps: 8")
    num_before = len(machine.runs)

    assert isinstance(events_of(text="gradient_accumulation_steps: 8")[0], AlreadyFinished)
    result = result_of(text="gradient_accumulation_steps: 16")

    assert machine.runs[num_before:] == [(8, 16)]
    assert [one.probe.number for one in journal()] == list(range(num_before + 1))
    assert step_times(result)[16] == pytest.approx(16 * 0.038 + UPDATE_S)


def test_a_real_step_is_no_evidence_of_the_search_that_is_resumed(machine):
    machine.slower = 0.2  # were it evidence, its size would be far faster
    first = result_of(text="gradient_accumulation_steps: 8")

    again = result_of(text="gradient_accumulation_steps: 16")

    names = ("samples_per_s", "relative_performance", "confidence", "left_to_gain", "throughput_band")
    names += ("exact_over_shared", "stop_reason")
    assert again.search.num_probes == first.search.num_probes + 1 == sum(again.search.outcomes.values())
    assert not any("noisy" in warning for warning in again.warnings)
    assert [again.as_record()[name] for name in names] == [first.as_record()[name] for name in names]


@pytest.mark.parametrize(
    ("fails_with", "outcome", "warning"),
    [
        (
            Outcome.OUT_OF_MEMORY,
            Outcome.OUT_OF_MEMORY,
            "with 8 accumulation steps the training ended as out_of_memory: too big",
        ),
        (
            UserProgramError("a step had 2 micro-batches", hint="write {accumulation}", traceback_text="log"),
            Outcome.CRASHED,
            "with 8 accumulation steps the training ended as crashed: a step had 2 micro-batches; write {accumulation}",
        ),
    ],
    ids=["out of memory", "contradicted"],
)
def test_a_real_step_that_fails_leaves_the_answer_with_a_warning(machine, fails_with, outcome, warning):
    machine.fails_with = fails_with

    result = result_of(text="gradient_accumulation_steps: 8")

    assert result.micro_batch_size == 8
    assert result.warnings == (warning,)
    assert journal()[-1].outcome is outcome
    assert result.search.outcomes[outcome.value] == 1


def test_an_interruption_in_the_real_step_ends_with_the_answer_and_a_second_call_runs_the_step(machine):
    machine.fails_with = KeyboardInterrupt()
    interrupted = result_of(f"explore.storage={STORAGE}", text="gradient_accumulation_steps: 8")
    assert "RUNNING" not in states_of_trials()
    machine.fails_with = None

    again = result_of(f"explore.storage={STORAGE}", text="gradient_accumulation_steps: 8")

    assert (interrupted.search.stop_reason, interrupted.micro_batch_size) == ("interrupted", 8)
    assert [run for run in machine.runs if run[1] == 8] == [(8, 8)] * 2
    assert step_times(again)[8] == pytest.approx(8 * 0.038 + UPDATE_S, rel=1e-3)


def test_an_interruption_of_the_search_starts_no_real_step(machine):
    machine.interrupted_at = 2

    result = result_of(text="gradient_accumulation_steps: 8")

    assert result.search.stop_reason == "interrupted"
    assert len(machine.runs) == 2


def test_a_stop_before_the_real_step_is_the_stop_reason(machine):
    asked = iter([None, None, "enough"])

    result = result_of(
        "explore.max_probes=2",
        "explore.sizes_per_start=1",
        text="gradient_accumulation_steps: 8",
        should_stop=lambda: next(asked, "enough"),
    )

    assert result.search.stop_reason == "enough"
    assert all(accumulation != 8 for _, accumulation in machine.runs)


def test_a_search_that_a_limit_ended_goes_on_with_a_larger_one(machine):
    fewer, one_each = result_of("explore.max_probes=1", "explore.sizes_per_start=1"), "explore.sizes_per_start=1"
    runs = list(machine.runs)

    more = result_of("explore.max_probes=6", one_each)

    assert fewer.search.stop_reason == "max_probes" and more.search.num_probes > fewer.search.num_probes
    assert machine.runs[: len(runs)] == runs and len(machine.runs) == more.search.num_probes  # nothing is run again
    for probes in (6, 4):  # the stored result
        assert not any(isinstance(event, Planned) for event in events_of(f"explore.max_probes={probes}", one_each))


def test_the_earlier_answer_stands_until_a_search_that_goes_on_has_another(machine):
    every = ("explore.sizes_per_start=1", "explore.candidates=[2, 8, 16, 32, 64]")
    fewer, more = ((*every, f"explore.max_probes={number}") for number in (1, 6))
    first = result_of(*fewer)
    machine.interrupted_at = 2
    result_of(*more)
    run = open_run(Path("local_compile_train/run"))

    kept = run.result()

    assert kept.micro_batch_size == first.micro_batch_size
    assert kept.warnings == (*first.warnings, *run.warn_of_later_probes(first))
    assert kept.warnings[-1].startswith("1 probe ran after this answer")
    assert find_guarded(load(*more), None, run.directory.parent).recommended == first.micro_batch_size
    machine.interrupted_at = None
    assert result_of(*fewer).search.num_probes == 2  # what ran meanwhile counts
    assert run.result().warnings == first.warnings


# What is announced


def test_the_plan_has_the_replicas_that_the_launcher_of_the_command_starts():
    words = json.dumps(["torchrun", "--nproc-per-node=4", "train.py", "{global_batch_size}"])
    config = load_config(None, overrides=[f"explore.command={words}", "explore.writes_are_fine=true"])

    planned = next(iter(explore(config, ExploreOptions(model_dir="run", dry_run=True))))

    assert planned.notices[0] == "4 replicas, as many as the command starts" and planned.warnings == ()


@pytest.mark.parametrize(
    ("overrides", "text", "words", "total", "parts"),
    [
        (("explore.sizes_per_start=1",), "", (), 5, ""),
        (
            (),
            "",
            (),
            11,
            "that is 5 for the sizes of the search, 5 for sizes that fail in a start that they share, 1 for the answer "
            "alone",
        ),
        (
            ("explore.sizes_per_start=1",),
            "gradient_accumulation_steps: 8",
            (),
            6,
            "that is 5 for the sizes of the search, 1 with the accumulation of your training",
        ),
        (
            ("explore.global_batch_size=64",),
            "gradient_accumulation_steps: 8",
            (),
            15,
            "that is 5 for the sizes of the search, 5 for sizes that fail in a start that they share, 1 for the answer "
            "alone, 1 to check that the command follows its size, 2 for a size that keeps the global batch size, 1 "
            "with the accumulation of your training",
        ),
        (("explore.sizes_per_start=1",), "", ("--gradient_accumulation_steps=8",), 5, ""),
        (("explore.sizes_per_start=1",), "gradient_accumulation_steps: 2", (), 5, ""),
    ],
)
def test_the_plan_has_the_true_bound_of_starts(overrides, text, words, total, parts):
    planned = events_of("explore.max_probes=5", *overrides, text=text, words=words, dry_run=True)[0]

    assert isinstance(planned, Planned)
    assert f" up to {total} times, " in planned.notices[0]
    assert [one for one in planned.notices if one.startswith("that is")] == ([parts] if parts else [])


@pytest.mark.parametrize(
    ("text", "words", "last"),
    [
        ("", (), "the command chooses its own accumulation; whole steps are ranked, updates included"),
        (
            "",
            ("--gradient_accumulation_steps=8",),
            "the command fixes 8 accumulation steps; whole steps are ranked, updates included",
        ),
        (
            "",
            ("--accumulation={accumulation}",),
            "the accumulation of your training is unknown: with explore.global_batch_size a real step is run",
        ),
        (
            "gradient_accumulation_steps: 8",
            (),
            "each start accumulates 2 micro-batches a step; passes are ranked",
        ),
    ],
)
def test_the_plan_says_which_steps_are_ranked(text, words, last):
    assert events_of(text=text, words=words, dry_run=True)[0].notices[-1] == last


def test_a_dry_run_starts_nothing_and_keeps_nothing(machine):
    events_of(text="gradient_accumulation_steps: 8", dry_run=True)

    assert machine.runs == []
    assert [path.name for path in Path().iterdir()] == ["job.yaml"]


# What arrived


def test_an_answer_whose_samples_no_second_size_confirms_is_refused(machine):
    machine.unconfirmed_size = 8

    with pytest.raises(UserProgramError, match="unseen: micro-batches of 1 sample arrived where 8 were asked for"):
        result_of()


def test_an_exploration_that_goes_on_hands_over_what_its_probes_have_shown(machine):
    machine.interrupted_at = 1
    assert result_of().search.stop_reason == "interrupted"
    machine.interrupted_at = None

    result_of()

    assert machine.learnt == [0]


def test_a_size_that_must_be_confirmed_has_a_start_of_its_own_that_is_evidence(machine):
    usual = events_of()
    num_usual = len(machine.runs)
    machine.runs.clear()
    machine.size_to_confirm = 2
    events = events_of(fresh=True)

    assert machine.runs[num_usual] == (2, None)
    assert isinstance(events[-1], Finished)
    assert events[-1].result.micro_batch_size == usual[-1].result.micro_batch_size
    assert not any(event.observation.is_after_search for event in events if isinstance(event, ProbeFinished))
