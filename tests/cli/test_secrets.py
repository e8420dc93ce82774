"""No secret of a user is in a file, stream or process title that an exploration, a plan, a report or a guard makes."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.builders import JOBS, ROOT
from tests.engine.command_starts import TRAIN

SALT = "Zq81x"
# Kind -> a secret that occurs nowhere else. Those of the second half are in the environment of the explorer.
SECRETS = {
    "password of the storage's URL": f"storage-{SALT}",
    "variable by name": f"byname-{SALT}",
    "variable whose name tells nothing": f"untold-{SALT}",
    "header": f"bearer.{SALT}",
    "option and value": f"option-{SALT}",
    "option=value": f"equals-{SALT}",
    "password of a URL of the command": f"userinfo-{SALT}",
    "form of a token": f"hf_form{SALT}abcdefghijkl",
    "assignment within a script of a shell": f"assigned-{SALT}",
    "key of the file": f"filekey-{SALT}",
    "W&B": f"wandb-{SALT}",
    "Hugging Face": f"hugging-{SALT}",
    "ranks": f"ranks-{SALT}",
    "password of a database": f"pg-{SALT}",
}
OF_ENVIRONMENT = {
    "WANDB_API_KEY": SECRETS["W&B"],
    "HF_TOKEN": SECRETS["Hugging Face"],
    "BEXPLORE_WORKER_KEY": SECRETS["ranks"],
    "PGPASSWORD": SECRETS["password of a database"],
}
ALL = tuple(SECRETS.values())
# Prints all that it is given, as careless programs do, fails with it at size 64, and trains.
SCRIPT = f"""\
import argparse, json, os, runpy, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--out", required=True)
given, rest = parser.parse_known_args()
config = json.load(open(given.config))
print(sys.argv, dict(os.environ), config, flush=True)
if config["micro_batch_size"] == 64:
    raise ValueError(f"no room for {{rest}} {{dict(os.environ)}} {{config}}")
sys.argv = ["train", "--micro-batch-size", str(config["micro_batch_size"]), "--out", given.out]
runpy.run_path({str(TRAIN)!r}, run_name="__main__")
"""
EXPLORER = """
from bexplore.command import watch
watch.LEAST_TIMED_S, watch.MOST_TIMED_S = 0.2, 0.2
from bexplore.cli import main
main()
"""


@dataclasses.dataclass
class Titles:
    """The command lines of all processes while a command runs, from its first output on, but for the trainings."""

    seen: set[str] = dataclasses.field(default_factory=set)
    is_over: bool = False

    def watch(self) -> None:
        while not self.is_over:
            for pid in psutil.pids():
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                    is_training = b"BEXPLORE_PROBE=/" in Path(f"/proc/{pid}/environ").read_bytes()
                except OSError:
                    continue
                if pid != os.getpid() and not is_training:
                    self.seen.add(line)
            time.sleep(0.05)


@dataclasses.dataclass(frozen=True)
class Ran:
    folder: Path
    streams: str
    titles: frozenset[str]
    return_code: int


def ran(folder: Path, *words: str, program: tuple[str, ...] = ("-m", "bexplore")) -> Ran:
    """Run the command line in a folder, and read its streams and the titles of processes."""
    environment = os.environ | OF_ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    environment |= {
        "XDG_STATE_HOME": str(folder.parent / "state"),
        "BEXPLORE_LOCK_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, *program, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    titles = Titles()
    streams = process.stdout.readline()  # the title is masked before anything is written
    thread = threading.Thread(target=titles.watch)
    thread.start()
    try:
        streams += process.stdout.read()
    finally:
        titles.is_over = True
        thread.join()
    return Ran(folder, streams, frozenset(titles.seen), process.wait())


def explored(folder: Path, *, storage: str, untold: str, option: str, more: tuple[str, ...] = ()) -> Ran:
    command = [sys.executable, "train.py", "{config}", "--out", "{output_dir}", "--api-key", option]
    command += [f"--hub-token={SECRETS['option=value']}", "--header", f"Authorization: Bearer {SECRETS['header']}"]
    command += ["--data", f"https://me:{SECRETS['password of a URL of the command']}@host/x"]
    command += ["--push", SECRETS["form of a token"]]
    command += ["--run", f"export SOME_TOKEN={SECRETS['assignment within a script of a shell']}; true"]
    words = ["explore", "job.json", "--storage", f"sqlite:///file:study.db?password={storage}&uri=true", *more]
    words += ["--env", f"MY_TOKEN={SECRETS['variable by name']}", "--env", f"PLAIN={untold}", "--model-dir", "run"]
    words += ["--set", "explore.candidates=[2, 4, 64]", "--set", "explore.max_probes=3", "--sizes-per-start", "1"]
    return ran(folder, *words, "--", *command, program=("-c", EXPLORER))


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Ran:
    """An exploration of a command that is given, reads and prints all kinds of secrets."""
    folder = tmp_path_factory.mktemp("secrets") / "work"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    job = {"micro_batch_size": "explore", "tracker": {"api_key": SECRETS["key of the file"]}}
    (folder / "job.json").write_text(json.dumps(job))
    return explored(
        folder,
        storage=SECRETS["password of the storage's URL"],
        untold=SECRETS["variable whose name tells nothing"],
        option=SECRETS["option and value"],
    )


def files(folder: Path) -> Iterator[Path]:
    """What was written: not the user's own files."""
    own = {"train.py", "job.json", "job.yaml", "programs.py"}
    yield from (path for path in folder.rglob("*") if path.is_file() and path.name not in own)


def leaks(run: Ran, secrets=ALL) -> list[str]:
    """Where any of the secrets is found."""
    found = [f"{path.relative_to(run.folder)}: {one}" for path in files(run.folder) for one in secrets
             if one.encode() in path.read_bytes()]  # fmt: skip
    found += [f"stream: {one}" for one in secrets if one in run.streams]
    return found + [f"title {title[:80]}: {one}" for title in run.titles for one in secrets if one in title]


@pytest.mark.promise(
    "14 kinds of secrets in an exploration of a command that prints them all",
    "none is in a file, a stream or a process title of bexplore",
)
def test_an_exploration_writes_and_shows_no_secret(first):
    assert first.return_code == 0, first.streams
    assert "Use micro_batch_size " in first.streams
    assert "ValueError: no room for" in first.streams
    assert leaks(first) == []
    assert any("bexplore" in title or "explore" in title for title in first.titles)


def test_names_are_kept_where_values_are_not(first):
    (meta,) = (path for path in files(first.folder) if path.name == "meta.json")
    record = json.loads(meta.read_text())
    assert set(record["job"]["model"]["env"]) == {"MY_TOKEN", "PLAIN"}
    assert "--env MY_TOKEN --env PLAIN" in record["typed"]
    assert "--api-key ***" in first.streams


@pytest.mark.promise(
    "others list the folder of a start, with its environment and output", "it is closed to them (0700)"
)
def test_folders_with_an_environment_are_closed_to_others(first):
    (probes,) = first.folder.rglob("probes")
    for folder in (probes.parent, *probes.iterdir()):
        assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0 or not (folder / "log.txt").exists()
    assert stat.S_IMODE(probes.parent.stat().st_mode) == 0o700
    assert not [path for path in probes.rglob("*") if path.name in ("job.json", "environment")]


def test_a_changed_password_and_token_is_the_same_run(first):
    again = explored(
        first.folder,
        storage="another-one",
        untold=SECRETS["variable whose name tells nothing"],
        option="another-key",
    )
    assert "already explored" in again.streams, again.streams
    assert leaks(again, (*SECRETS.values(), "another-one", "another-key")) == []


def test_what_differs_is_named_without_its_value(first):
    other = explored(
        first.folder,
        storage=SECRETS["password of the storage's URL"],
        untold=f"changed-{SALT}",
        option=SECRETS["option and value"],
        more=("--dry-run",),
    )
    assert "model.env.PLAIN: " in other.streams, other.streams
    assert leaks(other, (*SECRETS.values(), f"changed-{SALT}")) == []


@pytest.mark.promise("a report and a plan of a run whose command was given secrets", "they have none to show")
def test_a_report_and_a_plan_show_no_secret(first):
    (run,) = (path.parent for path in files(first.folder) if path.name == "result.json")
    for words in (["report", str(run)], ["report", str(run), "--markdown"], ["plan", str(run), "--samples", "1000"]):
        made = ran(first.folder, *words)
        assert "Traceback" not in made.streams
        assert leaks(made) == []


@pytest.mark.promise("a guard of a job with tokens among its arguments and keys in the environment", "none is written")
def test_a_guard_writes_no_secret(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard") / "work"
    folder.mkdir()
    (folder / "programs.py").write_text(
        (JOBS / "programs.py").read_text()
        + "\ndef private(hub_token):\n    import os\n    print(hub_token, dict(os.environ), flush=True)\n"
        "    return perceptron()\n"
    )
    (folder / "job.yaml").write_text(
        "train_input: {batch_size: 24, micro_batch_size: 4}\n"
        "explore:\n  device: cpu\n  memory_budget: 512MiB\n  workload:\n    model: programs:private\n"
        "    batch: programs:samples\n    loss: programs:cross_entropy\n"
        f"    arguments: {{hub_token: {SECRETS['key of the file']}}}\n"
    )
    words = ["guard", "job.yaml", "--baseline", "guard.json", "--facts", "portable"]
    for more in (["--update"], []):
        made = ran(folder, *words, *more)
        assert made.return_code == 0, made.streams
        assert leaks(made) == []
    assert "imports programs:private" in made.streams


@pytest.mark.promise("a mistake in a command line that holds secrets", "neither the error nor the title repeats them")
@pytest.mark.parametrize(
    "words",
    [
        ["explore", "job.yaml", "--storage", "nothing://me:{}@host/db"],
        ["explore", "--frehs", "--env", "MY_TOKEN={}"],
        ["explore", "--env={}", "--", "train"],
        ["explore", "--set", "postgresql://me:{}@host/db", "--", "train"],
        ["explore", "--env", "A_TOKEN={}", "--", "train", "--api-key", "{}"],
        ["plan", "postgresql://me:{}@host/db"],
        ["report", "a", "postgresql://me:{}@host/db"],
    ],
)
def test_a_mistake_beside_a_secret_does_not_repeat_it(words, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "job.yaml").write_text(
        "train_input: {batch_size: 24, micro_batch_size: explore}\nexplore: {workload: {step: 'a:b'}}\n"
    )
    secret = f"mistaken-{SALT}"
    made = ran(folder, *(word.format(secret) for word in words))
    assert made.return_code != 0
    assert "Traceback" not in made.streams
    assert leaks(made, (secret,)) == []
