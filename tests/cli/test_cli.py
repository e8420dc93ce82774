"""The real command in a subprocess: streams, files, exit codes."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from rich.console import Console

from bexplore.cli import cli, main
from bexplore.engine.process.device_lock import LockHolder, device_lock
from bexplore.output.console import Progress
from bexplore.run.events import Planned
from tests.builders import JOBS

LINE = re.compile(
    r"^BEXP202 (\d\d:\d\d:\d\d) GMT  Current recommended micro_batch_size: (\d+), "
    r"estimated performance: (\d+\.\d\d)x base, confidence score: (\d+) \(out of 100\)$"
)
CONFIG = """\
train_input:
  batch_size: 24
  micro_batch_size: {request}
runconfig:
  num_csx: 2
explore:
  device: cpu
  memory_budget: 512MiB
  max_probes: 5
  compile: {{backend: aot_eager}}
  workload:
    model: programs:{model}
    batch: programs:{batch}
    loss: programs:cross_entropy
"""


def write_job(
    folder: Path,
    request: str = "{explore: {max: 4}}",
    *,
    model: str = "perceptron",
    batch: str = "samples",
    name: str = "job.yaml",
) -> Path:
    code = folder / "programs.py"
    if not code.exists():
        code.write_text((JOBS / "programs.py").read_text())
    path = folder / name
    path.write_text(CONFIG.format(request=request, model=model, batch=batch))
    return path


@pytest.fixture
def job(tmp_path: Path):
    """Writes a job file next to its code and returns its path."""
    return functools.partial(write_job, tmp_path)


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Path:
    """A folder of code that all tests of this file leave as it is, beside the traces of its programs."""
    return tmp_path_factory.mktemp("known")


@pytest.fixture
def known_job(known, tmp_path, monkeypatch):
    """Writes a job file of the test's own, in a folder where a program that a test has traced is not traced again.

    Runs are kept in the working folder, which is the test's own.
    """
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(known / "cache"))
    return functools.partial(write_job, known, name=f"{tmp_path.name}.yaml")


@dataclasses.dataclass(frozen=True)
class Explored:
    """A finished exploration that several tests read: its folder, its file, and what the command printed."""

    folder: Path
    path: Path
    done: subprocess.CompletedProcess[str]

    @property
    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.done.stdout.splitlines()]


def environment_of(folder: Path, known: Path) -> dict[str, str]:
    """What `own_device_lock` and `known_job` set for a test, for what several tests share."""
    own = {"BEXPLORE_LOCK_DIR": folder, "BEXPLORE_CACHE_DIR": known / "cache", "OMP_NUM_THREADS": 1}
    return os.environ | {name: str(value) for name, value in own.items()}


@pytest.fixture(scope="module")
def explored(tmp_path_factory, known) -> Explored:
    """An exploration that prints for people."""
    folder, path = tmp_path_factory.mktemp("explored"), write_job(known)
    return Explored(folder, path, bexplore("explore", path, "--seed", 3, cwd=folder, env=environment_of(folder, known)))


@pytest.fixture(scope="module")
def explored_json(tmp_path_factory, known) -> Explored:
    """An exploration that prints JSON."""
    folder, path = tmp_path_factory.mktemp("explored_json"), write_job(known)
    return Explored(folder, path, bexplore("explore", path, "--json", cwd=folder, env=environment_of(folder, known)))


@pytest.fixture
def with_finished_run(explored, known, tmp_path, monkeypatch) -> Path:
    """The file of `explored`; the test's own folder holds a copy of its finished run."""
    shutil.copytree(explored.folder / "local_compile_train", tmp_path / "local_compile_train", symlinks=True)
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(known / "cache"))
    return explored.path


@pytest.fixture
def in_process(monkeypatch, tmp_path, capsys):
    """The command without a process of its own, where the process is not what is tested."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        typed = list(map(str, arguments))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["bexplore", *typed])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(typed, ended.value.code or 0, printed.out, printed.err)

    return run


def bexplore(*arguments: object, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bexplore", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, **options)


def log_of(folder: Path) -> Path:
    (path,) = (folder / "local_compile_train" / "model_dir").glob("run_*.log")
    return path


def test_explore_streams_the_lines_and_ends_with_what_to_use_and_why(explored):
    done, path = explored.done, explored.path

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("BEXP")]
    assert len(lines) >= 2
    matches = [LINE.match(line) for line in lines]
    assert all(matches), lines
    assert all(int(match[4]) < 100 for match in matches)
    last = matches[-1]
    assert f"Use micro_batch_size {last[2]}:" in done.stdout
    assert f"Apply:   bexplore apply {path} --set explore.seed=3" in done.stdout
    assert f"Paste:   micro_batch_size: {last[2]}  # under train_input" in done.stdout
    assert "Valid global batch sizes:" in done.stdout


def test_the_streamed_lines_are_in_the_run_log_and_latest_links_to_it(explored):
    streamed = [line for line in explored.done.stdout.splitlines() if line.startswith("BEXP202")]
    logged = log_of(explored.folder).read_text().splitlines()
    assert [line for line in logged if line.startswith("BEXP202")] == streamed
    latest = explored.folder / "local_compile_train" / "model_dir" / "latest"
    assert latest.is_symlink()
    assert latest.resolve() == log_of(explored.folder)


def test_json_gives_one_event_a_line_and_nothing_else_on_stdout(explored_json):
    events = explored_json.events
    kinds = [event["event"] for event in events]
    assert kinds[0] == "plan"
    assert kinds[1] == "trace"
    assert kinds[-1] == "result"
    assert kinds.count("probe") == events[-1]["num_probes"] == sum(events[-1]["outcomes"].values())
    result = events[-1]
    probed = {event["micro_batch_size"] for event in events if event["event"] == "probe"}
    assert result["micro_batch_size"] in probed
    assert result["global_batch_sizes"][0]["step_time_s"] > 0
    last = [event for event in events if event["event"] == "recommendation"][-1]
    for told in (last, result):
        share = told["regret_bound_90"]
        assert (told["confidence"] >= 90) == (share is not None and share <= 0.02), told
    assert Path(explored_json.folder, result["run_dir"], "journal.jsonl").exists()


def test_the_final_answer_was_run_exactly_as_it_will_be_compiled(explored_json):
    events = explored_json.events
    size = events[-1]["micro_batch_size"]
    exact = [e for e in events if e["event"] == "probe" and e["compilation"] == "exact"]
    assert size in {e["micro_batch_size"] for e in exact if e["outcome"] == "measured"}


def test_the_fastest_size_that_keeps_the_users_batch_size_is_told_and_was_run_exactly(known_job, tmp_path):
    path = known_job("{explore: {min: 3, max: 5}}")

    def explored(*options: str) -> tuple[list[dict], dict]:
        any_speed = ["--set", "explore.tolerance=0.99", "--set", "explore.max_probes=2"]
        done = bexplore("explore", path, "--json", *any_speed, *options, cwd=tmp_path)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0, done.stderr
        return [event for event in events if event["event"] == "probe"], events[-1]

    probes, first = explored("--set", "train_input.batch_size=20")
    kept = first["keeps_batch_size"]
    assert (kept["accumulation_steps"] * kept["micro_batch_size"], kept["compilation"]) == (10, "exact")
    assert kept["micro_batch_size"] in {probe["micro_batch_size"] for probe in probes}
    assert first["num_probes"] == len(probes)

    # The search stands where only the batch size is another; the answer that keeps it is sought again.
    probes, other = explored("--set", "train_input.batch_size=18")
    assert {probe["purpose"] for probe in probes} <= {"keep_batch_size"}
    assert other["keeps_batch_size"]["micro_batch_size"] == 3
    assert other["micro_batch_size"] == first["micro_batch_size"]

    _, last = explored("--set", "train_input.batch_size=18", "--set", "explore.keep_batch_size=true")
    assert (last["micro_batch_size"], last["run_dir"]) == (3, first["run_dir"])
    assert last["eager"] is None or last["compilation"] == "exact"


def test_a_finished_run_is_printed_again_and_not_run_again(explored_json):
    second = bexplore("explore", explored_json.path, "--json", cwd=explored_json.folder)

    (stored,) = [json.loads(line) for line in second.stdout.splitlines()]
    assert stored["already_finished"] is True
    assert stored["micro_batch_size"] == explored_json.events[-1]["micro_batch_size"]
    assert "--fresh explores again" in second.stderr


def test_a_finished_search_goes_on_where_the_file_trains_longer(known_job, tmp_path):
    def explored(max_steps: int) -> list[dict]:
        steps = ["--set", f"runconfig.max_steps={max_steps}", "--set", "explore.tolerance=0.0001"]
        done = bexplore("explore", known_job(), "--json", "--set", "explore.max_probes=5", *steps, cwd=tmp_path)
        return [json.loads(line) for line in done.stdout.splitlines()]

    *_, short = explored(1)
    assert (short["stop_reason"], short["training_samples"]) == ("costs_more_than_it_saves", 12)
    *events, long = explored(10_000_000)
    assert long["num_probes"] > short["num_probes"]
    assert len([event for event in events if event["event"] == "probe"]) == long["num_probes"] - short["num_probes"]
    assert (long["run_dir"], explored(10_000_000)[0].get("already_finished")) == (short["run_dir"], True)


def test_another_job_in_the_same_folder_starts_over_and_says_what_changed(with_finished_run, tmp_path):
    other = bexplore("explore", with_finished_run, "--set", "explore.precision=bfloat16", cwd=tmp_path)

    assert other.returncode == 0, other.stderr
    assert "precision: float32 -> bfloat16" in other.stderr


def test_an_interrupted_run_keeps_what_it_knows_and_goes_on(known_job, tmp_path):
    path = known_job()
    command = [sys.executable, "-m", "bexplore", "explore", str(path), "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    events = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "recommendation":
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=300)
    events += [json.loads(line) for line in rest.splitlines()]

    assert process.returncode == 130
    assert events[-1]["event"] == "result"
    assert events[-1]["stop_reason"] == "interrupted"
    before = {event["number"]: event["micro_batch_size"] for event in events if event["event"] == "probe"}
    assert events[-1]["micro_batch_size"] in before.values()

    again = bexplore("explore", path, "--json", cwd=tmp_path)

    resumed = [json.loads(line) for line in again.stdout.splitlines()]
    assert resumed[0]["num_known_probes"] == len(before)
    assert before.keys().isdisjoint({event["number"] for event in resumed if event["event"] == "probe"})
    assert resumed[-1]["event"] == "result"


def test_an_interruption_before_the_first_probe_ends_with_a_result_that_recommends_nothing(known_job, tmp_path):
    command = [sys.executable, "-m", "bexplore", "explore", str(known_job()), "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "local_compile_train"
    while not any('"stage": "compile"' in path.read_text() for path in log.rglob("log.jsonl")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)

    last = json.loads(output.splitlines()[-1])
    assert process.returncode == 130
    assert (last["event"], last["stop_reason"], last["micro_batch_size"]) == ("result", "interrupted", None)


def test_a_dry_run_without_earlier_runs_of_this_machine_has_no_estimate_and_keeps_nothing(known_job, tmp_path):
    done = bexplore("explore", known_job(), "--dry-run", cwd=tmp_path)

    assert done.returncode == 0
    unknown = "time unknown (no finished run of this machine under local_compile_train); 1,188 parameters"
    assert f"from 1 to 4; at most 5 probes, {unknown}" in done.stderr
    assert not (tmp_path / "local_compile_train").exists()


def test_a_dry_run_estimates_by_earlier_runs_of_this_machine(with_finished_run, tmp_path):
    again = bexplore("explore", with_finished_run, "--dry-run", "--json", "--set", "explore.seed=7", cwd=tmp_path)

    (plan,) = [json.loads(line) for line in again.stdout.splitlines()]
    (result,) = (tmp_path / "local_compile_train").rglob("result.json")
    elapsed_s = json.loads(result.read_text())["elapsed_s"]
    assert plan["expected_s"] == pytest.approx(elapsed_s, rel=0.05)
    assert plan["why_expected"].startswith("by local_compile_train/model_dir/run_")


@pytest.mark.parametrize(("request_text", "value"), [("6", 6), ("none", None), ("null", None), ("disable", None)])
def test_a_size_or_null_leaves_nothing_to_explore(job, in_process, request_text, value):
    done = in_process("explore", job(request_text), "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["micro_batch_size"] == value


def test_auto_tries_only_what_divides_the_replica_batch(known_job, tmp_path):
    done = bexplore("explore", known_job("auto"), "--json", cwd=tmp_path)

    probes = [json.loads(line) for line in done.stdout.splitlines()]
    sizes = {event["micro_batch_size"] for event in probes if event["event"] == "probe"}
    assert sizes <= {1, 2, 3, 4, 6, 12}


def test_what_fits_at_no_size_ends_with_code_3_and_the_numbers(job, tmp_path):
    done = bexplore("explore", job(model="greedy"), "--set", "explore.memory_budget=32MiB", cwd=tmp_path)

    assert done.returncode == 3
    assert "does not fit" in done.stderr or "needs" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_of_the_users_shows_their_traceback_once_and_ends_with_code_2(job, tmp_path):
    done = bexplore("explore", job(model="shape_error"), cwd=tmp_path)

    assert done.returncode == 2, done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "programs.py" in done.stderr
    assert "fails at every micro-batch size" in done.stderr
    assert "memory" not in done.stderr.splitlines()[-2]


def test_the_batch_statistics_of_a_vision_network_are_said_to_change_the_training(job, tmp_path):
    done = bexplore("explore", job("{explore: {min: 2, max: 8}}", model="convolutional", batch="images"), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    training = next(line for line in done.stdout.splitlines() if line.strip().startswith("training"))
    assert "BatchNorm" in training


def test_a_mistake_in_the_file_is_one_message_with_its_line_and_no_traceback(job, in_process):
    path = job()
    path.write_text(path.read_text().replace("max_probes", "max_probe").replace("num_csx: 2", "num_csx: -2"))

    done = in_process("explore", path)

    assert done.returncode == 2
    assert "job.yaml:5" in done.stderr
    assert 'did you mean "max_probes"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.promise("`explore --no-code` with a file that names code", "refused before anything is imported")
def test_no_code_refuses_import_paths(job, in_process):
    done = in_process("explore", job(), "--no-code")

    assert done.returncode == 2
    assert "imports code" in done.stderr


def test_probe_runs_one_size(job, tmp_path):
    done = bexplore("probe", job(), "--micro-batch-size", 3, "--json", cwd=tmp_path)

    event = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (event["micro_batch_size"], event["outcome"], event["compilation"]) == (3, "measured", "exact")


def test_trace_tells_the_peak_of_the_sizes_asked_for(job, tmp_path):
    done = bexplore("trace", job(), "--json", "--micro-batch-sizes", "1,8", cwd=tmp_path)

    event = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert set(event["peak_memory_bytes"]) == {"1", "8"}
    assert event["num_parameters"] == 32 * 32 + 32 + 4 * 32 + 4


def test_a_trace_of_which_no_size_fits_ends_with_exit_code_3(known_job, in_process):
    path = known_job("{explore: {min: 65536}}")

    told, written = (in_process("trace", path, "--memory-budget", "1MiB", *options) for options in ((), ("--json",)))

    assert (told.returncode, written.returncode) == (3, 3)
    assert "Not even the smallest size fits." in told.stdout
    assert json.loads(written.stdout)["max_micro_batch_size"] in (None, 0)
    assert in_process("trace", path, "--memory-budget", "1GiB").returncode == 0


def test_trace_tells_of_one_rank_on_each_number_of_devices_each_traced_in_a_process_of_its_own(known_job, tmp_path):
    options = ("--devices", "4,1", "--micro-batch-sizes", "1,8", "--json")
    done = bexplore("trace", known_job(), *options, cwd=tmp_path)

    one, four = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert (one["num_devices"], four["num_devices"]) == (1, 4)
    assert four["parallelism"]["data_parallel_replicate_degree"] == 4
    buckets = 4 * one["num_parameters"]  # of one more copy of the gradients, float32
    assert four["peak_memory_bytes"]["8"] - one["peak_memory_bytes"]["8"] == buckets
    announced, *progress = done.stderr.splitlines()
    assert announced.startswith("imports programs:perceptron, ")
    assert progress == ["tracing one rank of 1 device", "tracing one rank of 4 devices"]


def test_batch_sizes_lists_the_nearest_valid_ones_on_both_sides(in_process):
    done = in_process("batch-sizes", "--micro-batch-size", 6, "--num-replicas", 2, "--near", 50, "--json")

    sizes = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"global_batch_size": 48, "accumulation_steps": 4, "num_tokens": None} in sizes
    assert {"global_batch_size": 60, "accumulation_steps": 5, "num_tokens": None} in sizes


def test_a_size_that_is_not_one_is_an_error_of_usage(job, in_process):
    done = in_process("trace", job(), "--micro-batch-sizes", "1,two")

    assert done.returncode == 2
    assert '"1,two"' in done.stderr


def test_help_starts_without_torch_optuna_or_pydantic(tmp_path):
    script = (
        "import sys; sys.argv = ['bexplore', '--help']\n"
        "from bexplore.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'optuna', 'pydantic', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)

    assert done.stdout.splitlines()[-1] == "[]"
    assert "explore" in done.stdout


def test_the_version_is_printed(tmp_path):
    assert bexplore("--version", cwd=tmp_path).stdout.startswith("bexplore, version ")


@pytest.mark.promise("SIGKILL of the explorer", "the same command goes on")
def test_the_explorer_is_killed_and_the_same_command_goes_on(known_job, tmp_path):
    path = known_job()
    command = [sys.executable, "-m", "bexplore", "explore", str(path), "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    finished = []
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "probe":
            finished.append(event["number"])
            break
    time.sleep(0.2)
    process.kill()
    process.wait()

    again = bexplore("explore", path, "--json", cwd=tmp_path)

    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert again.returncode == 0, again.stderr
    assert set(finished).isdisjoint({e["number"] for e in events if e["event"] == "probe"})
    assert events[-1]["event"] == "result"


def test_a_batch_that_ignores_its_size_ends_before_anything_is_measured_with_its_shapes(job, tmp_path):
    done = bexplore("explore", job(batch="always_eight"), cwd=tmp_path)

    assert done.returncode == 2
    assert "(8, 32), (8,). None of their dimensions grows" in done.stderr
    assert "samples_of" in done.stderr
    assert "probe 0" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_mended_program_is_not_met_by_its_old_failures(job, tmp_path):
    bexplore("explore", job(model="shape_error"), cwd=tmp_path)
    code = tmp_path / "programs.py"
    mended = code.read_text().replace("x.reshape(x.shape[0], WIDTH // 2, 3)", "x")
    code.write_text(mended)

    done = bexplore("explore", tmp_path / "job.yaml", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "code.programs.py: " in done.stderr
    assert json.loads(done.stdout.splitlines()[0])["num_known_probes"] == 0


def commands() -> list[str]:
    return cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("name", commands())
def test_the_help_of_every_command_has_examples_that_its_own_options_allow(name):
    from click.testing import CliRunner

    text = CliRunner().invoke(cli, [name, "--help"], terminal_width=120).output
    examples = [line.strip() for line in text.splitlines() if line.strip().startswith(f"bexplore {name}")]
    assert examples, text
    options = {option for parameter in cli.get_command(click.Context(cli), name).params for option in parameter.opts}
    own = [line.partition(" -- ")[0] for line in examples]  # behind the dashes stands the user's command
    used = {word.partition("=")[0] for line in own for word in line.split() if word.startswith("-")}
    assert used <= options | {"--json"}


def test_commands_complete_in_the_shell(tmp_path):
    environment = os.environ | {"COMP_WORDS": "bexplore ex", "COMP_CWORD": "1", "_BEXPLORE_COMPLETE": "bash_complete"}
    done = bexplore(cwd=tmp_path, env=environment)

    assert done.stdout.split() == ["plain,explore"]


def test_the_explorer_calculates_with_one_thread_and_workers_with_as_many_as_the_user_says(tmp_path):
    look = (
        "import os, sys; from bexplore.host import blas_threads as blas; blas.use_one_thread(); "
        "print(os.environ[blas.VARIABLE], blas.users_environment().get(blas.VARIABLE))"
    )
    plain = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for own, told in (({}, "1 None"), ({"OPENBLAS_NUM_THREADS": "7"}, "7 7")):
        done = subprocess.run([sys.executable, "-c", look], env=plain | own, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == told


@pytest.mark.parametrize(
    ("before", "incomplete", "expected"),
    [
        (["explore", "--set"], "explore.tol", ["explore.tolerance="]),
        (["explore", "--set"], "explore.workload.transformers.m", ["explore.workload.transformers.model_type="]),
        (["explore", "job.yaml", "--set"], "train_input.b", ["train_input.batch_size="]),
        (["apply", "--set", "explore.seed=1", "job.yaml", "--set"], "runconfig", ["runconfig.num_csx="]),
        (["explore", "nothing.yaml", "--set"], "train_input.b", []),
    ],
)
def test_the_shell_completes_the_key_of_an_override(job, tmp_path, monkeypatch, before, incomplete, expected):
    job()
    monkeypatch.chdir(tmp_path)
    complete = ShellComplete(cli, {}, "bexplore", "_BEXPLORE_COMPLETE")

    assert [item.value for item in complete.get_completions(before, incomplete)] == expected


def test_why_a_run_is_not_gone_on_from_takes_few_lines():
    plan = Planned(
        title="a job",
        run=None,
        num_known_probes=0,
        changes=tuple(f"model.size_{number}: 1 -> 2" for number in range(20)),
        device="cpu",
        candidates="sizes",
        max_probes=4,
        expected_s=None,
    )
    Progress(Console(file=(told := io.StringIO()), width=200))(plan)

    assert told.getvalue().count("1 -> 2") == 4
    assert "and 16 more: it was another job" in told.getvalue()


@pytest.mark.promise(
    "the reader of an exploration's stdout goes away", "ends in order with what is known, exit code 130"
)
@pytest.mark.parametrize("reader", [os.pipe, pty.openpty], ids=["pipe", "terminal"])
@pytest.mark.parametrize("options", [["--json"], []], ids=["json", "text"])
def test_a_reader_that_is_gone_ends_the_run_with_what_is_known(job, tmp_path, options, reader):
    path = job("{explore: {max: 60}}", batch="stuck_samples")
    with (tmp_path / "programs.py").open("a") as code:  # at the sizes above the base; the trace's own are larger
        code.write("\n\ndef stuck_samples(count):\n    import time\n    time.sleep(600 if 4 < count < 61 else 0)\n")
        code.write("    return samples(count)\n")
    command = [sys.executable, "-m", "bexplore", "explore", str(path), *options]
    ours, theirs = reader()
    process = subprocess.Popen(command, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    with os.fdopen(ours) as stdout:
        next(line for line in stdout if '"recommendation"' in line or line.startswith("BEXP202"))
    process.wait(timeout=300)

    (events,) = tmp_path.rglob("events.jsonl")
    last = json.loads(events.read_text().splitlines()[-1])
    assert process.returncode == 130
    assert (last["event"], last["stop_reason"]) == ("result", "interrupted")
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "command",
    [
        ["explore", "job.yaml"],
        ["probe", "job.yaml", "--micro-batch-size", "4"],
        ["guard", "job.yaml", "--micro-batch-size", "4", "--baseline", "baseline.json", "--update"],
    ],
    ids=lambda command: command[0],
)
def test_who_waits_is_told_for_whom(job, tmp_path, command):
    job()
    holder = LockHolder(folder="runs/of_another")
    with device_lock("cpu", holder=holder, waiting=print):
        process = subprocess.Popen(
            [sys.executable, "-m", "bexplore", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        gives_up = threading.Timer(60, process.kill)
        gives_up.start()
        told = next((line for line in process.stderr if "waiting for the device" in line), "nothing")
        gives_up.cancel()
        process.kill()
        process.wait()

    assert told.strip() == f"waiting for the device, which {holder} uses"
