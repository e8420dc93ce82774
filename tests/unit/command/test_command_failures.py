"""Failures of a start, read from the observer's reports, the exit status and the log."""

from __future__ import annotations

from typing import Any

import pytest

from bexplore.command.failures import describe_end, fails_at_a_sample, find_lost_rank, find_reported_failure
from bexplore.command.observer.bexplore_observer.reports import describe
from bexplore.command.reports import Reports
from bexplore.engine.protocol.failures import describe_exit, last_line, telling_line
from bexplore.measurement.probe import Outcome

ROOT_CAUSE = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_23:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 29274)
"""


def error(kind: str, message: str, *, rank: str | None = "0", module: str = "builtins") -> dict[str, Any]:
    """Return a report of the observer."""
    link = {"type": kind, "module": module, "message": message}
    return {"rank": rank, "where": "uncaught", "chain": [link], "traceback": f"{kind}: {message}", "at_s": 0.0}


def ended(log: str, return_code: int = 1, **fields) -> tuple[Outcome, str]:
    """Return outcome and reason of a start whose processes reported no error."""
    found = describe_end(return_code, log, Reports(), **{"killed_by_kernel": False, "lost_pid": None} | fields)
    return found.outcome, found.reason


LOST = error("RuntimeError", "Connection closed by peer [127.0.0.1]:36769")


def test_a_refusal_of_memory_is_the_cause_where_others_report_first():
    failure = find_reported_failure(
        [error("ValueError", "no batch"), error("OutOfMemoryError", "CUDA out of memory", rank="1")]
    )

    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert "on rank 1" in failure.reason


def test_a_bug_is_the_cause_and_not_a_lost_connection():
    failure = find_reported_failure([LOST, error("ValueError", "the labels differ", rank="1")])

    assert failure.outcome is Outcome.CRASHED
    assert failure.reason == "ValueError: the labels differ on rank 1"


def test_a_bug_whose_own_text_is_about_memory_is_never_too_big():
    assert find_reported_failure([error("ValueError", "CUDA out of memory")]).outcome is Outcome.CRASHED


def test_an_error_of_the_compiler_is_a_failed_compilation():
    failure = find_reported_failure([error("BackendCompilerFailed", "no kernel", module="torch._dynamo.exc")])

    assert failure.outcome is Outcome.COMPILE_FAILED


# How others raise an error anew: torch 2.13.
RAISED_ANEW = {
    "DataLoader": (
        "ValueError",
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "data.py", line 8, in __getitem__\n    raise ValueError(name)\n    ^^^^^^\nValueError: {}\n',
    ),
    "DataParallel": (
        "ValueError",
        "Caught ValueError in replica 1 on device 1.\nOriginal Traceback (most recent call last):\n"
        '  File "model.py", line 8, in forward\nValueError: {}\n',
    ),
    "spawn": (
        "ProcessRaisedException",
        "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "spawn.py", line 95, in _wrap\n    fn(i, *args)\n  File "train.py", line 3, in train\nValueError: {}\n',
    ),
    "a loader in spawn": (
        "ProcessRaisedException",
        "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "train.py", line 3, in train\nValueError: Caught ValueError in DataLoader worker process 0.\n'
        'Original Traceback (most recent call last):\n  File "data.py", line 8, in __getitem__\nValueError: {}\n',
    ),
}


@pytest.mark.parametrize("how", RAISED_ANEW)
@pytest.mark.parametrize("message", ["the picture is broken", "two lines\nof a message"])
def test_an_error_that_was_raised_anew_is_told_by_what_it_was(how, message):
    kind, text = RAISED_ANEW[how]

    failure = find_reported_failure([LOST, error(kind, text.format(message), rank=None)])

    assert (failure.reason, failure.exception_type) == (f"ValueError: {message.splitlines()[0]}", "ValueError")
    raised = type(kind, (Exception,), {})(text.format(message))
    prefix = "" if kind == "ValueError" else "ValueError: "
    assert telling_line(raised) == f"{prefix}{message.splitlines()[0]}"


@pytest.mark.parametrize("how", RAISED_ANEW)
def test_an_error_that_was_raised_anew_may_have_a_long_traceback(how):
    kind, text = RAISED_ANEW[how]
    heading = "Traceback (most recent call last):\n"
    frames = "".join(f'  File "module.py", line {line}, in _call_impl\n    return call(*args)\n' for line in range(300))
    before, _, after = text.format("the picture is broken").rpartition(heading)
    raised = type(kind, (Exception,), {})(f"{before}{heading}{frames}{after}")

    failure = find_reported_failure([error(kind, "", rank=None) | {"chain": [describe(raised)]}])

    assert failure.reason == "ValueError: the picture is broken"


BARE = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "moco.py", line 62, in enqueue
    assert self.K % size == 0
AssertionError
"""


def test_an_exception_without_a_message_is_told_by_the_line_of_source_that_raised_it():
    reported = find_reported_failure([error("AssertionError", "") | {"traceback": BARE}])

    assert reported.reason == "AssertionError: assert self.K % size == 0 on rank 0"
    assert find_reported_failure([error("AssertionError", "")]).reason == "AssertionError: no message on rank 0"
    assert ended(f"step 1\n{BARE}")[1].endswith("AssertionError: assert self.K % size == 0")
    try:
        raise AssertionError
    except AssertionError as bare:
        assert telling_line(bare) == "raise AssertionError"


FETCHED = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/torch/utils/data/_utils/fetch.py", line {}
ValueError: bits must be between or equal to 1 and 8
"""


@pytest.mark.parametrize(
    ("traceback_text", "is_of_sample"),
    [
        (FETCHED.format("54, in fetch\n    data = [self.dataset[idx] for idx in possibly_batched_index]"), True),
        (FETCHED.format("57, in fetch\n    return self.collate_fn(data)"), False),
        (BARE, False),
    ],
    ids=["a sample", "a batch", "the program"],
)
def test_a_sample_that_a_loader_cannot_take_is_told_from_a_batch_that_it_cannot_make(traceback_text, is_of_sample):
    assert fails_at_a_sample(traceback_text) is is_of_sample


def test_memory_that_another_process_was_refused_is_out_of_memory():
    kind, text = RAISED_ANEW["spawn"]
    refused = text.replace("ValueError: {}", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")

    assert find_reported_failure([error(kind, refused)]).outcome is Outcome.OUT_OF_MEMORY
    assert find_reported_failure([error(kind, text.format("CUDA out of memory"))]).outcome is Outcome.CRASHED


def test_a_connection_that_a_process_of_spawn_lost_is_no_cause():
    kind, text = RAISED_ANEW["spawn"]
    lost = text.replace("ValueError: {}", "RuntimeError: Connection closed by peer [127.0.0.1]:36769")

    assert find_reported_failure([error(kind, lost), error("ValueError", "no batch")]).reason.startswith("ValueError")


@pytest.mark.parametrize("reported", [LOST, error("ChildFailedError", "train.py FAILED", rank=None)])
def test_a_rank_that_the_launcher_names_is_the_cause(reported):
    failure = find_lost_rank(ROOT_CAUSE, Reports(errors=(reported,)))

    assert failure.reason == "rank 1 was killed by SIGKILL; the other ranks lost their connection to it"


OF_TORCHRUN = """{words}
E1201 04:25:00.015000 3600 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {status}) local_rank
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_04:25:00
  rank      : 0 (local_rank: 0)
  exitcode  : {status} (pid: 3604)
"""


@pytest.mark.parametrize(
    ("status", "words", "told"),
    [
        (2, "usage: train.py\ntrain.py: error: the following arguments are required: --data", "required: --data"),
        (1, "loading\nno data in ./data: run prepare.py first", "no data in ./data: run prepare.py first"),
        (1, "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'DATA'", "KeyError: 'DATA'"),
        (3, "", "it wrote nothing"),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_a_rank_wrote_before_it_left_is_told_in_place_of_the_launcher_s_words(status, words, told, num_ranks):
    hellos = ({"rank": None}, *({"rank": str(rank)} for rank in range(num_ranks)))
    launcher = error("ChildFailedError", "train.py FAILED", rank=None)

    failure = find_lost_rank(OF_TORCHRUN.format(status=status, words=words), Reports(hellos=hellos, errors=(launcher,)))

    assert failure.reason.startswith(f"rank 0 ended with status {status}: ") and failure.reason.endswith(told)
    assert failure.is_early


@pytest.mark.parametrize(
    ("kind", "message", "words", "reason"),
    [
        (
            "subprocess.CalledProcessError",
            "Command '['python', 'train.py']' returned non-zero exit status 2.",
            "train.py: error: the following arguments are required: --data",
            "ended with status 2: train.py: error: the following arguments are required: --data",
        ),
        ("subprocess.CalledProcessError", "Command 'x' died with <Signals.SIGKILL: 9>.", "step 1", "killed by SIGKILL"),
        (
            "torch.multiprocessing.spawn.ProcessExitedException",
            "process 0 terminated with exit code 3",
            "no data in ./data",
            "ended with status 3: no data in ./data",
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException",
            "process 1 terminated with signal SIGSEGV",
            "step 1",
            "killed by SIGSEGV",
        ),
    ],
)
def test_what_a_process_without_a_rank_wrote_is_told_in_place_of_the_error_of_what_started_it(
    kind, message, words, reason
):
    module, _, name = kind.rpartition(".")
    log = f'{words}\nTraceback (most recent call last):\n  File "/bin/x", line 8, in <module>\n{kind}: {message}\n'
    launcher = error(name, message, rank=None, module=module)

    failure = find_lost_rank(log, Reports(hellos=({"rank": None},) * 2, errors=(launcher,)))

    assert failure.reason.startswith("the process that was started ") and failure.reason.endswith(reason)
    assert failure.ended_by == (reason.split()[-1] if "killed" in reason else "")
    assert failure.is_early is not bool(failure.ended_by)


def test_a_rank_alone_that_was_killed_has_no_others_that_lost_it():
    launcher = error("ChildFailedError", "train.py FAILED", rank=None)
    failure = find_lost_rank(
        OF_TORCHRUN.format(status=-9, words=""), Reports(hellos=({"rank": "0"},), errors=(launcher,))
    )

    assert failure.reason == "rank 0 was killed by SIGKILL"


def test_a_rank_without_a_report_is_the_cause_where_no_launcher_names_one():
    failure = find_lost_rank("", Reports(hellos=({"rank": "0"}, {"rank": "1"}, {"rank": None}), errors=(LOST,)))

    assert failure.reason.startswith("rank 1 ended")


def test_an_error_of_the_training_itself_leaves_no_rank_lost():
    assert find_lost_rank(ROOT_CAUSE, Reports(errors=(LOST, error("ValueError", "a bug", rank="1")))) is None


@pytest.mark.parametrize(
    ("log", "fields", "outcome"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", {}, Outcome.OUT_OF_MEMORY),
        ("[rank1]: RuntimeError: DefaultCPUAllocator: can't allocate memory", {}, Outcome.OUT_OF_MEMORY),
        ("WARNING: if you run out of memory, lower the size", {}, Outcome.CRASHED),
        ("", {"killed_by_kernel": True}, Outcome.OUT_OF_MEMORY),
        ("", {"lost_pid": 7}, Outcome.CRASHED),
    ],
)
def test_without_reports_the_kernel_and_the_log_decide(log, fields, outcome):
    assert ended(log, **fields)[0] is outcome


def test_without_any_words_the_reason_is_the_status():
    assert ended("", 3)[1] == "the command ended with status 3: it wrote nothing"


@pytest.mark.parametrize(
    ("end", "outcome", "reason"),
    [
        ("task 1: Killed", Outcome.CRASHED, "rank 1 was killed by SIGKILL"),
        ("tasks 0-1: Segmentation fault (core dumped)", Outcome.CRASHED, "rank 0-1 was killed by SIGSEGV"),
        ("tasks 1-3: Killed", Outcome.CRASHED, "rank 1-3 was killed by SIGKILL"),
        ("task 2: Aborted (core dumped)", Outcome.CRASHED, "rank 2 was killed by SIGABRT"),
        ("task 1: Out Of Memory", Outcome.OUT_OF_MEMORY, "Slurm ended rank 1 at the memory limit of the job"),
    ],
)
def test_srun_tells_which_rank_ended_and_how(end: str, outcome: Outcome, reason: str):
    log = f"step 3\nsrun: error: node-1: {end}\n"

    assert ended(log) == (outcome, reason)
    assert (
        find_lost_rank(log, Reports(errors=(LOST,))).reason == f"{reason}; the other ranks lost their connection to it"
    )


LOGS = [
    "W1126 12:00:00.123000 1234 torch/_dynamo/convert_frame.py:1358] [0/0] torch._dynamo hit config.recompile_limit",
    "[rank0]:W1126 12:00:00.123000 1234 torch/_logging/_internal.py:1089] [0/0] Profiler function <class 'x'>",
    "I1126 12:00:00.123000 1234 torch/_inductor/async_compile.py:30] warm",
    "E1126 12:00:00.123000 1234 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1)",
    "[W1126 12:00:00.123456789 socket.cpp:464] [c10d] The server socket has failed to bind",
    "[rank1]:[W1126 12:00:00.123456789 ProcessGroupNCCL.cpp:4718] [PG ID 0] using GPU 1",
    "WARNING:torch.distributed.run: Setting OMP_NUM_THREADS",
    "2026-11-27 12:00:00,123 - INFO - Engine run resuming from iteration 0, epoch 0 until 600 epochs",
    "[2026-11-27 12:00:00,123][__main__][INFO] - Instantiating the model",
    "2026-11-27 12:00:00.123 | WARNING  | train:main:12 - the cache is cold",
    "[2026-11-27 12:00:00,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 12",
    "[INFO|trainer.py:2134] 2026-11-27 12:00:00,123 >> ***** Running training *****",
    "[11/27/26 12:00:00] INFO     Loading",
    "/opt/my env/monai/utils/deprecate_utils.py:221: FutureWarning: monai.networks.nets UNet: deprecated\n  warn(obj)",
    "/opt/torch/nn/modules/module.py:1773: UserWarning: Full backward hook is firing\n  warnings.warn(",
    "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    "USDT:2026-11-27 17:24:31 8853:8853 SyncActivityProfilerHandler.cpp:59] profiler_stop",
    "Try 'train.py --help' for help.",
    "To enable traceback please see: https://pytorch.org/docs/stable/elastic/errors.html",
    "============================================================",
]


@pytest.mark.promise("a library logs as a program fails", "its log lines are never given as the reason")
@pytest.mark.parametrize("line", LOGS)
def test_a_log_line_of_a_library_is_no_reason(line):
    written = f"cannot open the corpus\n{line}\n{line}\n"

    assert ended(written)[1] == "the command ended with status 1: cannot open the corpus"
    assert ended(line)[1] == "the command ended with status 1: it wrote nothing else than logs"
    assert ended("")[1] == "the command ended with status 1: it wrote nothing"
    assert last_line(written) == "cannot open the corpus"
    assert telling_line(RuntimeError(f"{line}\nthe shapes differ")) == "the shapes differ"


def test_what_a_library_logs_of_memory_that_it_tried_is_no_refusal():
    line = "W1126 12:00:00.123000 17 torch/_inductor/choose.py:9] CUDA out of memory. Tried to allocate 2.00 GiB"

    assert ended(f"{line}\nit failed\n")[0] is Outcome.CRASHED


@pytest.mark.promise("a process is ended by a signal", "the signal is told by its name")
@pytest.mark.parametrize(("status", "told"), [(-15, "SIGTERM"), (137, "SIGKILL"), (-11, "SIGSEGV"), (3, "status 3")])
def test_an_end_is_told_by_the_name_of_its_signal_or_by_its_status(status, told):
    assert told in describe_exit(status) and "-" not in describe_exit(status)


RAISED = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    run()\n'
BELOW_AN_ERROR = {
    "Hydra, an exception": (
        f"Error executing job with overrides: ['mbs=4']\n{RAISED}ValueError: no corpus\n\n"
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        "ValueError: no corpus",
    ),
    "Hydra, a wrong key": (
        "Could not override 'mbs'.\nKey 'mbs' is not in struct\n    full_key: mbs\n    object_type=dict\n\n"
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        "Key 'mbs' is not in struct",
    ),
    "CUDA": (
        f"{RAISED}RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
        "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    "a launcher above": (
        f"{RAISED}KeyError: 'text'\n{RAISED}subprocess.CalledProcessError: Command '['python']' returned non-zero\n",
        "KeyError: 'text'",
    ),
    "a message on the next line": (f"{RAISED}ValidationError:\nlr is missing\n", "ValidationError: lr is missing"),
    "make": (f"{RAISED}KeyError: 'text'\nmake: *** [Makefile:2: train] Error 1\n", "KeyError: 'text'"),
    "make of a script": ("no corpus\nmake: *** [Makefile:2: train] Error 2\n", "no corpus"),
    "fire": (
        "ERROR: Could not consume arg: --mbs\nUsage: train.py <flags>\n  optional flags:        --lr\n\n"
        "For detailed information on this command, run:\n  train.py --help\n",
        "ERROR: Could not consume arg: --mbs",
    ),
    "argparse": ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --mbs\n", "train.py: error: unrecog"),
    "typer": (
        "Usage: train.py [OPTIONS]\n\u256d\u2500 Error \u2500\u256e\n\u2502 No such option: --mbs  \u2502\n"
        "\u2570\u2500\u2500\u256f\n",
        "No such option: --mbs",
    ),
    "a measured error": ("error: 0.12\nno corpus\n", "no corpus"),
}


@pytest.mark.promise("a framework writes advice below an error", "the reason is the error, not the last line")
@pytest.mark.parametrize(("log", "reason"), BELOW_AN_ERROR.values(), ids=BELOW_AN_ERROR.keys())
def test_the_reason_is_the_error_and_not_what_stands_below_it(log: str, reason: str):
    assert ended(log)[1].startswith(f"the command ended with status 1: {reason}")
