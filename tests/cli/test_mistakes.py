"""Mistakes of users: one clear message, what to type instead, the right exit code, and no worker for what is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bexplore.cli import main
from bexplore.engine import program_client
from bexplore.engine.process.worker_process import WorkerProcess
from bexplore.engine.worker.context import ALONE
from bexplore.engine.worker.server import Server
from bexplore.errors import ExitCode
from bexplore.host.machine import torch_is_for_cpu

MODEL = "{name: gpt2, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}"
DATA = "train_input: {batch_size: 24, micro_batch_size: explore}"
TABLE = "curve_id,micro_batch_size,throughput_samples_per_s,oom\n"


def job(*, data: str = DATA, model: str = MODEL, explore: str = "device: cpu", more: str = "") -> str:
    """The text of a job's file, right but for what is given."""
    return f"{data}\nmodel: {model}\nexplore: {{{explore}}}\n{more}\n"


# What is wrong -> the file, the command, and what it says of the mistake and of what to type.
EXPLORE = "explore job.yaml"
KNOWN_BEFORE: dict[str, tuple[str, str, str, str]] = {
    "a file that is not there": ("", "explore other.yaml", "there is no file other.yaml", "init --example"),
    "a misspelt file": (job(), "explore jbo.yaml", "there is no file jbo.yaml", "job.yaml?"),
    "a folder": ("", "explore .", "is a folder", "name the YAML file in it"),
    "an empty file": ("", EXPLORE, "job.yaml is empty", "init --example"),
    "an empty mapping": ("{}\n", EXPLORE, "job.yaml is empty", "init --example"),
    "tabs": ("train_input:\n\tbatch_size: 24\n", EXPLORE, "job.yaml:2: not YAML", "indent with spaces"),
    "a list of jobs": ("- train_input: {}\n", EXPLORE, "the top level must be a mapping", ""),
    "nothing to explore": ("data: {}\n", EXPLORE, "is a file of your own", "-- python train.py --config {config}"),
    "no model": (f"{DATA}\n", EXPLORE, "no model section describes what is trained", "explore.workload"),
    "a key that stands twice": (job(more="explore: {seed: 1}"), EXPLORE, 'the key "explore" stands twice', ""),
    "a misspelt section": (job().replace("explore: {d", "explor: {d"), EXPLORE, '"explor" is not read', '"explore"?'),
    "a misspelt setting": (job(explore="tolerence: 0.1"), EXPLORE, 'unknown key "tolerence"', '"tolerance"?'),
    "a misspelt word": (job(explore="effort: quik"), EXPLORE, "explore.effort must be", "did you mean quick?"),
    "a misspelt rule": (job(explore="candidates: power_of_two"), EXPLORE, "must be one of all", "powers_of_two?"),
    "a score out of 1": (job(explore="target_confidence: 0.9"), EXPLORE, "out of 100, not 0.9", "did you mean 90?"),
    "a tolerance in percent": (job(explore="tolerance: 2"), EXPLORE, "must be below 1, not 2", "did you mean 0.02"),
    "a budget without unit": (job(explore="memory_budget: 80"), EXPLORE, "80 has no unit", '"80GiB", or 0.8'),
    "a budget in words": (job(explore="memory_budget: lots"), EXPLORE, '"lots" is not a size', "12GiB"),
    "a reserve without unit": (job(explore="replica_reserve: 2"), EXPLORE, "hold nothing", '"2GiB"?'),
    "half an hour as 0.5": (job(explore="time_budget: 0.5"), EXPLORE, "0.5 s is too short", '"0.5h"'),
    "milliseconds": (job(explore="probe_time_limit: 10ms"), EXPLORE, "too short", '"10min"'),
    "a time in words": (job(explore="time_budget: soon"), EXPLORE, '"soon" is not a duration', "10min"),
    "float16": (job(explore="precision: float16"), EXPLORE, "explore.precision must be one of", "autocast_float16?"),
    "bounds the wrong way round": (job(explore="min: 9, max: 3"), EXPLORE, "min 9 is above max 3", ""),
    "a misspelt request": (
        job(data=DATA.replace("explore", "explroe")),
        EXPLORE,
        "micro_batch_size must be",
        "explore?",
    ),
    "a size in quotes": (
        job(data=DATA.replace("explore", "'8'")),
        EXPLORE,
        "micro_batch_size must be",
        "without quotes",
    ),
    "a size of zero": (job(data=DATA.replace("explore", "0")), EXPLORE, "micro_batch_size must be", "from 1 up"),
    "a negative batch": (
        job(data=DATA.replace("24", "-1")),
        EXPLORE,
        "batch_size must be a positive integer",
        "1 or more",
    ),
    "divisors of no batch": (
        job(data="train_input: {micro_batch_size: explore}", explore="candidates: divisors"),
        EXPLORE,
        "needs batch_size, which is cut",
        "batch_size: 64",
    ),
    "a model that is near to a known one": (job(model="{name: lama}"), EXPLORE, '"lama" is not built in', "llama?"),
    "a model of another kind": (job(model="{name: unet}"), EXPLORE, "mistral, falcon", "explore.workload"),
    "heads that do not divide": (job(model=MODEL.replace("heads: 2", "heads: 3")), EXPLORE, "not a multiple of", ""),
    "a misspelt optimizer": (
        job(more="optimizer: {optimizer_type: AdamWW}"),
        EXPLORE,
        '"AdamWW" is not one of torch.optim',
        "did you mean AdamW?",
    ),
    "a model without batches": (job(explore="workload: {model: 'a:b'}"), EXPLORE, "model needs batch", ""),
    "a path with a dot": (job(explore="workload: {step: a.b}"), EXPLORE, "must be an import path", ""),
    "code that may not run": (
        job(explore="workload: {step: 'a:b'}"),
        f"{EXPLORE} --no-code",
        "--no-code refuses",
        "leave out --no-code",
    ),
    "a side that is not there": (job(), f"{EXPLORE} --mode eval", "no data section for eval", "leave the mode out"),
    "an override without a value": (job(), f"{EXPLORE} --set seed", "--set needs key=value", "explore.seed=1"),
    "an override of nothing": (job(), f"{EXPLORE} --set modle.x=1", 'has no section "modle"', "did you mean model?"),
    "an override through a number": (job(), f"{EXPLORE} --set train_input.batch_size.x=1", "not a mapping", ""),
    "a misspelt command": ("", "explor job.yaml", "No such command 'explor'", "did you mean explore?"),
    "no command": (job(), "job.yaml", "No such command 'job.yaml'", "type bexplore explore job.yaml"),
    "help as a word": ("", "help", "No such command 'help'", "type bexplore --help"),
    "a training in place of a command": ("", "sh train.sh", "No such command 'sh'", "bexplore explore -- sh"),
    "no command at all": ("", "run job.yaml", "No such command 'run'", "the commands are init, explore, apply"),
    "an option before its command": (job(), "--json-x explore job.yaml", "'--json-x' before", "explore ... --json-x"),
    "a training without dashes": ("", "explore python train.py", "extra argument (train.py)", "-- python train.py"),
    "two files": (job(), "explore job.yaml other.yaml", "extra argument (other.yaml)", "one file is read"),
    "a key as an option": (job(), f"{EXPLORE} --max-probes 3", "No such option", "type --set explore.max_probes=VALUE"),
    "a misspelt option": (job(), f"{EXPLORE} --frehs", "No such option", "--fresh"),
    "a trial of apply": (job(), "apply job.yaml --dry-run", "No such option '--dry-run' of apply", "asks before it w"),
    "an option of another command": (job(), "guard job.yaml --dry-run", "of guard", "it is one of explore"),
    "a training command of guard": (
        job(),
        "guard job.yaml -- python train.py",
        "guard takes no training command",
        "bexplore report RUN RUN compares two explorations of it",
    ),
    "a training command of another command": (
        "",
        "doctor -- python train.py",
        "doctor takes no training command",
        "bexplore explore -- COMMAND runs it",
    ),
    "a job in place of its run": (job(), "report job.yaml", "is not a run", "bexplore explore job.yaml makes its runs"),
    "a baseline that is not there": (
        job(),
        "guard job.yaml --baseline none.json",
        "cannot read the baseline none.json",
        "bexplore guard job.yaml --baseline none.json --update",
    ),
    "a baseline that is a folder": (job(), "guard job.yaml --baseline . --update", "it is a folder", "--baseline FILE"),
    "a baseline below a file": (
        job(),
        "guard job.yaml --baseline job.yaml/a/b.json --update",
        "job.yaml is a file",
        "--baseline FILE",
    ),
    "sizes that are none": (job(), "trace job.yaml --micro-batch-sizes 1,x", "must be positive integers", "1,2,4"),
    "devices that are none": (job(), "trace job.yaml --devices 8,0", "--devices must be positive integers", "1,8,64"),
    "more devices than there are": (job(), "trace job.yaml --devices 1000001", "of at most 1,000,000", "1,8,64"),
    "a device that is not known": (job(), "trace job.yaml --device-name h1000", 'for a device "h1000"', "h100"),
    "a probe of no size": (job(), "probe job.yaml", "Missing option '--micro-batch-size'", ""),
    "a probe of size 0": (job(), "probe job.yaml --micro-batch-size 0", "not in the range", ""),
    "nothing to apply": (job(), "apply job.yaml", "no finished run of this job", "bexplore explore job.yaml"),
    "no run to apply": (job(), "apply job.yaml --run runs/7", "is not a run of bexplore", "run_<timestamp>"),
    "no run to show": ("", "report runs/7", "is not a run of bexplore", "run_<timestamp>"),
    "a device that no library emulates": (job(explore=""), f"{EXPLORE} --device-name mi300x", "it is no CUDA", "h100"),
    "a processor to emulate": (job(), f"{EXPLORE} --device-name h100", "explore.device is cpu", "leave one"),
    "a guard of nothing": (job(), "guard job.yaml", "there is nothing to compare with", "--baseline FILE"),
    "a guard both ways": (job(), "guard job.yaml --update --against main", "exclude each other", "keep one"),
    "a table that is not there": ("", "replay sweeps.csv", "cannot read the table sweeps.csv", "a CSV file"),
    "a table without sizes": (
        "curve_id,oom\na,1\n",
        "replay job.yaml",
        "lacks the column micro_batch_size",
        "must name",
    ),
    "a cell that is no flag": (f"{TABLE}a,1,2,maybe\n", "replay job.yaml", "'maybe' is neither 0 nor 1", "correct"),
    "a budget of 80 bytes": (f"{TABLE}a,1,2,0\n", "replay job.yaml --memory-hint 80", "80 bytes", '"80GiB"?'),
    "one curve and all": (f"{TABLE}a,1,2,0\n", "replay job.yaml --curve a --all", "exclude each other", "keep one"),
}
# What is wrong with the user's own code -> its text, the workload that names it, the mistake, and what to type.
CODE = """\
import torch
from torch import nn
def model(): return nn.Linear(4, 4)
def batch(n): return torch.randn(n, 4), torch.arange(n) % 4
"""
OWN = "model: 'MODULE:model', batch: 'MODULE:batch'"
KNOWN_ONCE_BUILT: dict[str, tuple[str, str, str, str]] = {
    "no such module": (CODE, OWN.replace("MODULE:m", "modle:m"), "no module 'modle'", "next to the"),
    "no such function": (CODE, OWN.replace(":model", ":modl"), "explore.workload.model is 'MODULE:modl'", "model?"),
    "a module of the module is missing": (f"import nothing_here\n{CODE}", OWN, "No module named 'nothing_here'", ""),
    "a syntax error": (f"def (\n{CODE}", OWN, "SyntaxError", ""),
    "a model that raises": (f"{CODE}def model(): raise ValueError('no weights')\n", OWN, "ValueError: no weights", ""),
    "a model that is none": (f"{CODE}def model(): return 4\n", OWN, "returned int, not a", "returns the module"),
    "a batch without size": (f"{CODE}def batch(): return 1\n", OWN, "whose signature () does not fit", "signature"),
    "an argument that nothing takes": (CODE, f"{OWN}, arguments: {{wide: 4}}", "holds 'wide'", "Remove it"),
    "an optimizer that is none": (CODE, f"{OWN}, optimizer: {{name: AdamWW}}", "no optimizer named 'AdamWW'", "AdamW?"),
    "an argument of no optimizer": (CODE, f"{OWN}, optimizer: {{arguments: {{lrr: 1}}}}", "no setting 'lrr'", "lr?"),
}  # fmt: skip


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("name", KNOWN_BEFORE)
def test_a_mistake_is_one_message_with_what_to_type_and_starts_no_worker(name, tmp_path, monkeypatch, capsys):
    def start(*_arguments, **_options):
        raise AssertionError("a worker was started")

    text, command, message, hint = KNOWN_BEFORE[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(WorkerProcess, "__init__", start)
    Path("job.yaml").write_text(text)

    code, out, err = said(command.split(), capsys)

    assert (code, out) == (ExitCode.USER_INPUT, "")
    assert message in err
    assert hint in err
    assert err.lower().count("error: ") == 1
    assert "Traceback" not in err


@pytest.mark.skipif(not torch_is_for_cpu(), reason="this PyTorch is a CUDA build, which can use an emulated device")
def test_a_build_for_the_processor_says_what_an_emulated_device_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(job(explore=""))

    code, _, err = said(f"{EXPLORE} --device-name h100 --set explore.emulate=true".split(), capsys)

    assert code == ExitCode.USER_INPUT
    assert "needs a CUDA build of PyTorch" in err and "install PyTorch's CUDA build" in err
    assert "bexplore trace CONFIG --device-name h100" in err
    assert list(Path().rglob("run_*")) == []


@pytest.mark.parametrize("name", ["a score out of 1", "a misspelt option"])
def test_with_json_a_mistake_is_the_last_event(name, tmp_path, monkeypatch, capsys):
    text, command, message, hint = KNOWN_BEFORE[name]
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(text)

    code, out, _ = said([*command.split(), "--json"], capsys)

    (event,) = [json.loads(line) for line in out.splitlines()]
    assert (event["event"], event["exit_code"], code) == ("error", 2, 2)
    assert message in event["message"]
    assert hint in event["message"] + event["hint"]


class InThisProcess:
    """A worker that answers at once, in the test's own process."""

    def __init__(self, *_arguments, **_options) -> None:
        self._server = Server(lambda **report: None, ALONE)

    def ask(self, request, **_limits):
        return self._server.answer(request)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("command", ["trace", "explore --dry-run --json"])
@pytest.mark.parametrize("name", KNOWN_ONCE_BUILT)
def test_a_mistake_in_code_is_the_users_as_soon_as_the_job_is_built(name, command, tmp_path, monkeypatch, capsys):
    code, workload, message, hint = KNOWN_ONCE_BUILT[name]
    module = f"own_{abs(hash((name, command)))}"  # of its own: Python imports a name once
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program_client, "WorkerProcess", InThisProcess)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path(f"{module}.py").write_text(code)
    Path("job.yaml").write_text(
        f"{DATA}\nexplore: {{device: cpu, compile: false, workload: {{{workload.replace('MODULE', module)}}}}}\n"
    )

    first, *options = command.split()
    exit_code, out, err = said([first, "job.yaml", *options], capsys)

    assert exit_code == ExitCode.USER_INPUT
    assert message.replace("MODULE", module) in err
    assert hint in err
    assert "works without a trace" not in err
    if "--json" in options:
        assert json.loads(out.splitlines()[-1])["event"] == "error"


def test_a_program_that_fails_in_its_pass_is_the_users_and_told_by_its_own_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own_wrong_shape.py").write_text(CODE.replace("(n, 4)", "(n, 5)"))
    workload = OWN.replace("MODULE", "own_wrong_shape")
    Path("job.yaml").write_text(f"{DATA}\nexplore: {{device: cpu, compile: false, workload: {{{workload}}}}}\n")

    exit_code, _, err = said(["trace", "job.yaml"], capsys)

    assert exit_code == ExitCode.USER_INPUT
    assert "error: your program fails at micro_batch_size 1: RuntimeError: mat1 and mat2 shapes" in err
    assert "Traceback" in err
    assert "works without a trace" not in err
