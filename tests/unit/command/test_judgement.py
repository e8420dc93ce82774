"""What a watched start shows, as data: an observation, or why no size of the command can be explored."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from bexplore.command.judgement import FIRST_PASS_S, Judge, Learned, Watched, refuse
from bexplore.command.reports import Rank, Reports
from bexplore.command.verdicts import refuse_division
from bexplore.command.watch import Ending
from bexplore.config.command import Command, CommandFile, FileKey
from bexplore.errors import UserProgramError
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from tests.unit.command.builders import rank

NO_TORCH = "ModuleNotFoundError: No module named 'torch'"
RECORD = {
    "is_resumed": False,
    "kept_files": [],
    "left_files": [],
    "optimizers": ["AdamW"],
    "compiler": None,
    "notes": [],
    "device": "cpu",
    "device_name": "",
    "torch": "2.13",
    "is_emulated": False,
}


def observed(rows: int = 4, **more: object) -> Rank:
    return rank(rows=rows, record=RECORD | more)


def watched(*ranks: Rank, ending: Ending = Ending.OBSERVED, suspended_s: float = 0.0, **more: object) -> Watched:
    facts = {"hellos": ({"pid": 7, "rank": "0"},), "errors": (), "counts": {}} | more
    log = facts.pop("log", "the log")
    start = SimpleNamespace(return_code=facts.pop("return_code", 0), log_tail=lambda: log)
    opened = SimpleNamespace(
        capacity=None,
        accumulation=None,
        is_reused=False,
        needs_least=True,
        folder=SimpleNamespace(path=Path("/run/probes/000")),
    )
    watch = SimpleNamespace(start=start, reports=Reports(ranks=ranks, **facts), time_limit_s=60.0, lost_pid=None)
    return Watched(
        opened=opened, watch=watch, ending=ending, warnings=(), killed_by_kernel=False, suspended_s=suspended_s
    )


@pytest.fixture
def learned() -> Learned:
    return Learned()


@pytest.fixture
def judge(learned):
    """Return a function that judges a start at a size."""
    command = Command(argv=("train", "{micro_batch_size}"))
    own = Judge(command=command, candidates=(1, 2, 4, 8), learned=learned)

    def run(seen: Watched, size: int = 4) -> Observation | UserProgramError:
        probe = Probe(number=0, micro_batch_size=size, purpose="base", compilation=Compilation.EXACT)
        return own.judge(seen, Observation(probe=probe, outcome=Outcome.CRASHED, elapsed_s=30.0))

    return run


def test_a_training_that_did_what_was_asked_is_measured_and_learned_from(judge, learned):
    observation = judge(watched(observed()))

    assert observation.outcome is Outcome.MEASURED
    assert set(observation.details["verdicts"].values()) == {"verified"}
    assert learned.num_replicas == 1 and learned.step_times_s.keys() == {4}


def test_a_start_that_was_suspended_is_no_measurement(judge):
    assert judge(watched(observed(), suspended_s=9.0)).details == {"ended_by": "SIGSTOP"}


def test_a_resumed_training_is_refused_unless_another_start_has_left_its_checkpoint(judge):
    resumed = watched(observed(is_resumed=True))
    refusal = judge(resumed)
    assert isinstance(refusal, UserProgramError) and "loaded an optimizer's state" in refusal.message

    assert judge(watched(observed())).warnings == ()
    after = judge(resumed)
    assert after.is_measured and after.warnings[0].startswith("a start resumed from a checkpoint")


@pytest.mark.parametrize(
    ("ending", "facts", "words"),
    [
        (Ending.UNOBSERVED, {}, "the observer was not loaded"),
        (Ending.NO_STEP, {}, "no step observed"),
        (Ending.ENDED, {"hellos": ()}, "before any process imported torch"),
    ],
)
def test_a_start_without_an_observed_step_is_refused_at_any_size(judge, ending, facts, words):
    refusal = judge(watched(ending=ending, **facts))
    assert isinstance(refusal, UserProgramError) and words in refusal.message and refusal.hint


def failed_step(text: str, *, is_emulated: bool, num_steps: int = 0) -> Watched:
    """Return a start that ended with an error behind its first batch."""
    link = {"type": "RuntimeError", "module": "builtins", "bases": [], "message": text}
    error = {"chain": [link], "contexts": [], "traceback": text, "num_batches": 1, "num_steps": num_steps}
    error |= {"where": "uncaught", "rank": "0", "pid": 7, "host": "here", "at_s": 1.0}
    counts = {("here", 7): (num_steps, num_steps, 1, 0, 1)}
    hellos = ({"pid": 7, "rank": "0", "is_emulated": is_emulated},)
    return watched(ending=Ending.ENDED, errors=(error,), counts=counts, hellos=hellos, return_code=1)


def test_an_emulated_start_whose_first_step_fails_in_the_same_words_at_two_sizes_is_refused(judge):
    size_zero = "Calculated padded input size per channel: (0)"
    first = judge(failed_step(size_zero, is_emulated=True), 4)
    assert first.outcome is Outcome.CRASHED

    refusal = judge(failed_step(size_zero, is_emulated=True), 24)

    assert isinstance(refusal, UserProgramError) and "fails in its first step, whatever the size" in refusal.message
    assert "an emulated device computes no values" in refusal.hint


@pytest.mark.parametrize(
    ("texts", "is_emulated", "num_steps"),
    [
        pytest.param(("no pairs", "no pairs"), False, 0, id="of values that were computed"),
        pytest.param(("no pairs", "no pairs"), True, 1, id="after a step"),
        pytest.param(("of 4", "of 24"), True, 0, id="in other words"),
    ],
)
def test_any_other_start_whose_step_fails_is_of_its_size(judge, texts, is_emulated, num_steps):
    for size, text in zip((4, 24), texts, strict=True):
        found = judge(failed_step(text, is_emulated=is_emulated, num_steps=num_steps), size)
        assert found.outcome is Outcome.CRASHED


LOGGED = """2026-01-02 03:04:05.678 | ERROR    | __main__:<module>:9 - An error has been caught in function '<module>':
Traceback (most recent call last):

> File "/home/me/train.py", line 9, in <module>
    main()
    \u2514 <function main at 0x7f>

  File "/home/me/train.py", line 7, in main
    raise ValueError(

ValueError: batch_size should be a positive integer value, but got batch_size=0
"""


def test_a_program_that_logs_its_error_and_ends_well_has_failed(judge):
    observation = judge(watched(ending=Ending.ENDED, log=LOGGED), 8)

    assert observation.outcome is Outcome.CRASHED
    assert observation.reason.endswith(
        "status 0: ValueError: batch_size should be a positive integer value, but got batch_size=0"
    )


@pytest.mark.parametrize(
    "log",
    [
        LOGGED + "training by another library\nstep 1\nstep 2\nstep 3\n",
        "Exception ignored in: <function Iter.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "loader.py", line 9, in __del__\n    self.end()\nAssertionError: can only test a child process\n',
    ],
)
def test_an_error_from_which_a_program_goes_on_is_not_its_end(judge, log):
    assert "no step observed" in judge(watched(ending=Ending.ENDED, log=log), 8).message


def test_a_start_without_a_step_at_one_sample_is_of_its_size_where_batches_were_read(judge):
    seen = watched(ending=Ending.NO_STEP, counts={("here", 7): (0, 0, 5, 0, 5)})

    assert judge(seen, 1).reason.startswith("no optimizer step was seen")
    assert isinstance(judge(seen, 8), UserProgramError)


def test_a_start_without_a_step_is_of_its_size_once_another_size_arrived(judge):
    judge(watched(observed()))
    assert judge(watched(ending=Ending.NO_STEP), 8).outcome is Outcome.CRASHED


@pytest.mark.parametrize(
    ("ending", "outcome", "words"),
    [
        (Ending.TIMED_OUT, Outcome.TIMED_OUT, "no step was seen"),
        (Ending.NO_PASS, Outcome.TIMED_OUT, f"no pass was seen in {FIRST_PASS_S / 60:.0f} min"),
        (Ending.HUNG, Outcome.TIMED_OUT, "no step was completed"),
        (Ending.HOST_FULL, Outcome.OUT_OF_MEMORY, "the memory of the host"),
    ],
)
def test_a_start_that_was_given_up_tells_why(judge, ending, outcome, words):
    observation = judge(watched(ending=ending))
    assert observation.outcome is outcome and words in observation.reason


def error(text: str, kind: str = "ValueError") -> dict:
    link = {"type": kind, "module": "builtins", "bases": [], "message": text}
    return {"rank": None, "where": "uncaught", "chain": [link], "traceback": text, "at_s": 1.0, "num_batches": 0}


@pytest.mark.parametrize(("device", "is_emulated", "is_refused"), [("cpu", True, True), ("cuda:0", True, False)])
def test_a_training_that_leaves_the_emulated_device_alone_is_refused(judge, device, is_emulated, is_refused):
    judged = judge(watched(observed(device=device, is_emulated=is_emulated)))

    assert isinstance(judged, UserProgramError) is is_refused
    assert not is_refused or ("the training ran on the CPU" in judged.message and "on cuda" in judged.hint)


@pytest.mark.parametrize(
    ("is_emulated", "kind", "is_told"),
    [
        (False, "RuntimeError", False),
        (True, "RuntimeError", True),
        (True, "ImportError", False),
        (True, "TypeError", False),
    ],
)
def test_a_failure_on_an_emulated_device_may_be_of_values_that_it_does_not_compute(judge, is_emulated, kind, is_told):
    hellos = ({"pid": 7, "host": "here", "rank": None, "is_emulated": is_emulated},)
    broken = watched(ending=Ending.ERROR, errors=(error("no such thing", kind),), hellos=hellos)

    found = [judge(broken, size) for size in (1, 8)]

    assert ("computes no values" in found[-1].hint) is is_told


def test_what_to_type_after_failures_on_an_emulated_device_says_that_it_computes_no_values(judge, learned):
    advice = Judge(command=Command(argv=("train", "{micro_batch_size}")), candidates=(4,), learned=learned)
    assert "computes no values" not in advice.suggest_by_hand(4)

    judge(watched(observed(is_emulated=True), hellos=({"pid": 7, "rank": None, "is_emulated": True},)))

    told = advice.suggest_by_hand(4)
    assert "computes no values" in told and "run that start by hand" in told


def test_an_import_that_fails_is_refused_at_once(judge):
    broken = watched(ending=Ending.ERROR, errors=(error("no module named x", "ImportError"),))
    assert isinstance(judge(broken), UserProgramError)

    checked = watched(ending=Ending.ERROR, errors=(error("the size must be even"),))
    assert judge(checked).outcome is Outcome.CRASHED


def test_one_failure_before_the_first_batch_at_sizes_far_apart_is_refused(judge):
    def fails() -> Watched:
        return watched(ending=Ending.ERROR, errors=(error("bad option"),))

    assert judge(fails(), 1).outcome is Outcome.CRASHED
    assert isinstance(judge(fails(), 8), UserProgramError)


@pytest.mark.parametrize(
    ("num_steps", "passes", "num_samples", "drops_last", "most"),
    [
        pytest.param(4, 1, None, False, 9, id="samples in as many steps"),
        pytest.param(4, 1, 56, False, 9, id="an epoch, whose rest is a step"),
        pytest.param(4, 1, 64, True, 9, id="an epoch without its rest"),
        pytest.param(3, 5, 75, False, 5, id="three epochs of a step each"),
    ],
)
def test_a_training_that_is_too_short_leaves_sizes_out_by_the_steps_of_its_epochs(
    judge, num_steps, passes, num_samples, drops_last, most
):
    judge(watched(observed()))
    short = rank(rows=16, passes=passes, record=RECORD | {"drops_last": drops_last}, num_samples=num_samples)
    short = dataclasses.replace(short, steps=short.steps[:num_steps])

    assert judge(watched(short), 16).max_samples == most


def test_memory_that_was_refused_in_observed_steps_is_out_of_memory(judge):
    refused = dataclasses.replace(observed(), memory={"num_ooms": 3, "num_ooms_before": 1})

    observation = judge(watched(refused))

    assert observation.outcome is Outcome.OUT_OF_MEMORY and "2 times" in observation.reason


def test_a_size_for_several_is_below_those_that_memory_and_data_fill(learned):
    candidates = (1, 2, 4, 8, 16, 32, 64, 128)
    assert learned.choose_capacity(2, candidates) == 64
    learned.limit_samples(40)
    assert learned.choose_capacity(2, candidates) == 32
    learned.note_out_of_memory(16)
    assert learned.choose_capacity(2, candidates) == 8
    assert learned.choose_capacity(8, candidates) == 8


# Words of the command, ranks whose digests differ or are equal, hellos of ranks -> the replicas that are refused.
ASSUMED = [
    ("{global_batch_size}", (("a",), ("b",)), 2, "2 replicas"),
    ("{global_batch_size}", (("a",), ("a",)), 2, ""),  # ranks that share one replica's work
    ("{global_batch_size}", (), 4, "4 replicas"),  # a start that ended before its first batch
    ("{replicas}", (), 1, ""),
    ("{micro_batch_size}", (), 4, ""),
]


@pytest.mark.parametrize(("word", "digests", "num_hellos", "told"), ASSUMED)
def test_a_start_of_more_replicas_than_its_numbers_are_for_is_refused(learned, word, digests, num_hellos, told):
    judge = Judge(command=Command(argv=("train", word)), candidates=(1, 2), learned=learned)
    hellos = tuple({"pid": number, "rank": str(number)} for number in range(num_hellos))
    reports = Reports(ranks=tuple(rank(digests=one) for one in digests), hellos=hellos)

    if not told:
        judge.check_assumed_replicas(reports)
        return
    with pytest.raises(UserProgramError, match=f"started {told}, and its own numbers were made for 1"):
        judge.check_assumed_replicas(reports)


@pytest.mark.parametrize(("lengths", "num_lists", "is_told"), [((9, 5), 0, True), ((9, 5), 2, False), ((), 0, False)])
def test_memory_without_the_longest_samples_is_told_where_they_are_known(learned, lengths, num_lists, is_told):
    command = Command(argv=("train", "{micro_batch_size}"), sample_lengths=lengths)
    own = Judge(command=command, candidates=(4,), learned=learned)
    reports = Reports(ranks=(observed(num_lists_of_longest=num_lists),), hellos=(), errors=(), counts={})

    assert any("not of the longest" in text for text in own._note_longest(reports)) is is_told


def test_a_line_to_type_by_hand_names_one_folder_however_often():
    command = Command(argv=("train", "{micro_batch_size}", "--log={output_dir}/log", "--out", "{output_dir}"))

    line = Judge(command=command, candidates=(4,), learned=Learned()).suggest_by_hand(4)

    assert line == "run that start by hand: export OUT=$(mktemp -d); train 4 --log=$OUT/log --out $OUT"


def test_a_line_to_type_by_hand_says_what_the_copy_of_a_file_is():
    command = Command(argv=("train", "{config}"), file=CommandFile(name="job.yaml", text="size: explore\n", keys=()))

    line = Judge(command=command, candidates=(4,), learned=Learned()).suggest_by_hand(4)

    assert line == "run that start by hand ({config} is a copy of job.yaml whose size is 4): train {config}"


@pytest.mark.parametrize(
    ("log", "words"), [("no data here", "run that start by hand: train 4"), (NO_TORCH, "activate")]
)
def test_an_end_before_torch_has_the_line_to_type_unless_torch_is_missing(judge, log, words):
    seen = watched(ending=Ending.ENDED, hellos=())
    seen.watch.start.log_tail = lambda: log

    assert words in judge(seen).hint


def test_a_divided_size_has_the_words_that_set_it_and_the_replicas_where_nothing_shows_them():
    key = FileKey(path=("data", "batch_size"), name="micro_batch_size")
    file = CommandFile(name="job.json", text="{}", keys=(key,))

    commands = (
        Command(argv=("train", "{config}"), file=file),
        Command(argv=("train", "{config}"), file=file, num_replicas=2),
        Command(argv=("torchrun", "--nproc-per-node=2", "train.py", "{micro_batch_size}")),
        Command(argv=("train", "{micro_batch_size}")),
    )

    told = [refuse(refuse_division(8, 16, 2), command).hint for command in commands]

    assert told == [
        "add to the options: --set data.batch_size={global_batch_size}, and give `replicas=2`",
        "add to the options: --set data.batch_size={global_batch_size}",
        "write {global_batch_size} in place of {micro_batch_size}",
        "write {global_batch_size} in place of {micro_batch_size}, and give `replicas=2`",
    ]
