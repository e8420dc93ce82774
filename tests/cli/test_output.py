"""Outputs that are closed, full or no longer read, and optional outputs that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.run.builders import make_run

BEXPLORE = f"{sys.executable} -m bexplore"
PRINTS = "batch-sizes --micro-batch-size 3"
LONG = "schema"


def shell(line: str, *, folder: Path | None = None) -> tuple[int, str, str]:
    """Exit code of the first program of a line, and what was written."""
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.promise("stdout is a full disk", "one message, exit code 4")
def test_an_output_that_is_full_is_one_message():
    code, _, err = shell(f"{BEXPLORE} {PRINTS} >/dev/full")

    assert code == 4
    assert "No space left" in err
    assert "Traceback" not in err


@pytest.mark.promise("stdout and stderr are a full disk", "the exit code tells it")
def test_where_not_even_the_error_can_be_written_the_exit_code_tells_it():
    assert shell(f"{BEXPLORE} {PRINTS} >/dev/full 2>/dev/full")[0] == 4


@pytest.mark.promise("a standard stream is closed (`>&-`, `2>&-`) or cannot be written", "quiet; the usual exit code")
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-", "1</dev/null", "2>/dev/full"])
@pytest.mark.parametrize(("command", "expected"), [(PRINTS, 0), ("explore absent.yaml --json", 2)])
def test_a_closed_stream_changes_no_exit_code_and_shows_no_traceback(command, expected, streams, tmp_path):
    code, out, err = shell(f"{BEXPLORE} {command} {streams}", folder=tmp_path)

    assert code == expected
    assert "Traceback" not in out + err
    assert "Exception ignored" not in out + err


@pytest.mark.promise("the reader of stdout goes away (`| head -1`)", "quiet, exit code 0")
@pytest.mark.parametrize("reader", ["head -1", "true"])
@pytest.mark.parametrize("command", [LONG, PRINTS, "--help", "explore --help"])
def test_a_reader_that_is_gone_is_no_error(command, reader):
    code, _, err = shell(f"{BEXPLORE} {command} | {reader}")

    assert (code, err) == (0, "")


@pytest.mark.promise("the reader of stderr goes away", "results and exit code as always")
def test_a_reader_of_messages_that_is_gone_costs_no_result(tmp_path):
    (tmp_path / "job.yaml").write_text("train_input: {batch_size: 8, micro_batch_size: 4}\n")
    results = tmp_path / "results"
    code, _, _ = shell(f"{BEXPLORE} explore {tmp_path}/job.yaml --json 2>&1 >{results} | true", folder=tmp_path)

    assert code == json.loads(results.read_text().splitlines()[-1]).get("exit_code", 0)


def in_process(tmp_path: Path, patch: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with some of its functions replaced."""
    script = f"import sys\n{patch}\nfrom bexplore.cli import main\nmain(sys.argv[1:])\n"
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


FAILING = """
def fail(*args, **named):
    secret = "LOCAL_VALUE"
    raise KeyError("planted")
"""
PLANTED = {
    "report": "import bexplore.output.report.files as one\none.html = fail",
    "live view": "import bexplore.output.console as one\none.Progress.__call__ = fail",
    "run log": "import bexplore.output.bexp as one\none.RunLog.__call__ = fail",
    "events": "import bexplore.output.event_files as one\none.EventFile.__call__ = fail",
    "summary": "import bexplore.output.summary as one\none.summary_text = fail",
}
JOB = """\
train_input: {batch_size: 8, micro_batch_size: {explore: {max: 2}}}
explore:
  device: cpu
  memory_budget: 512MiB
  max_probes: 2
  compile: {backend: aot_eager}
  workload: {model: 'programs:perceptron', batch: 'programs:samples', loss: 'programs:cross_entropy'}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "programs.py").write_text((Path.cwd() / "tests" / "jobs" / "programs.py").read_text())
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@pytest.mark.promise("the report, the live view, the log or the events fail", "a warning each; the result is complete")
def test_outputs_that_fail_leave_stdout_with_the_results_alone(job):
    every = "\n".join(PLANTED[name] for name in ("report", "live view", "run log", "events"))
    done = in_process(job, FAILING + every, "explore", "job.yaml", "--json")

    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert (done.returncode, events[-1]) == (0, "result")
    assert done.stderr.count("warning: ") >= 4
    assert "no report: KeyError" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "LOCAL_VALUE" not in done.stdout + done.stderr
    stored = in_process(job, FAILING + PLANTED["summary"], "explore", "job.yaml")
    assert stored.returncode == 0
    assert "Use micro_batch_size" in stored.stdout
    assert "warning: no summary: KeyError" in stored.stderr
    for closed in (">&-", "2>&-", ">&- 2>&-", "2>/dev/full"):
        code, out, err = shell(f"{BEXPLORE} explore job.yaml {closed}", folder=job)
        assert (code, "Traceback" in out + err) == (0, False), closed


@pytest.mark.promise("bexplore itself fails, with --json", "traceback on stderr without values; an error event; exit 4")
def test_a_fault_of_bexplore_is_an_error_event_and_no_regression(tmp_path):
    patch = FAILING + "import bexplore.cli.offline as one\none.valid_global_batch_sizes = fail"
    done = in_process(tmp_path, patch, *PRINTS.split(), "--json")

    (event,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (event["event"], event["exit_code"]) == ("error", 4)
    assert "LOCAL_VALUE" not in done.stdout + done.stderr
    assert done.returncode == 4
    assert "Traceback" not in done.stdout
    assert "bexplore itself failed: KeyError" in done.stderr


@pytest.mark.promise("a connection inside of bexplore breaks", "told as a fault, not as a reader that went away")
@pytest.mark.parametrize("error", ["BrokenPipeError(32, 'Broken pipe')", "EOFError('a worker')"])
def test_a_broken_connection_is_neither_success_nor_an_interruption(tmp_path, error):
    patch = f"import bexplore.cli.offline as one\ndef fail(*args, **named): raise {error}\none.make_schema = fail"
    done = in_process(tmp_path, patch, "schema")

    assert done.returncode == 4
    assert "bexplore itself failed" in done.stderr


def test_packages_of_the_training_that_break_bexplore_are_named(tmp_path):
    (tmp_path / "pydantic.py").write_text("raise SystemError('another pydantic-core')")

    code, _, err = shell(f"PYTHONPATH={tmp_path} {BEXPLORE} schema", folder=tmp_path)

    assert code == 4
    assert "bexplore itself failed: SystemError: another pydantic-core" in err
    assert "give it to the training alone by --env PYTHONPATH=..." in err


@pytest.mark.promise("a run's files are damaged, then reported with --json", "one message; stdout has the error alone")
@pytest.mark.parametrize("damage", ['{"job": 5}', "[]", '{"job": {"name": []}, "environment": 3}'])
def test_a_report_of_damaged_files_is_one_message(tmp_path, damage):
    run = make_run(tmp_path)
    (run.directory / "meta.json").write_text(damage)
    code, out, err = shell(f"{BEXPLORE} report {run.directory} --json", folder=tmp_path)

    assert code == 2
    (event,) = [json.loads(line) for line in out.splitlines()]
    assert event["event"] == "error"
    assert "Traceback" not in out + err
