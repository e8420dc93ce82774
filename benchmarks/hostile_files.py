"""Give bexplore generated hostile and broken files: `python -m benchmarks.hostile_files`.

Each file is made from a real one or from towers of one token, in YAML, JSON or TOML. `bexplore init` reads it and
writes its result beside it; then it is loaded as `explore` loads it, and what loads gets a size as a probe's copy and
as `apply` would write it. A file passes where every error is one of bexplore's own messages, printable and without a
traceback, and where the folder holds after it what it held before, and init's own output.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.hostile_mutations import hostile_file, seeds
from bexplore.cli.entry import main as bexplore
from bexplore.config.config import Config
from bexplore.config.document.writer import with_value
from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from bexplore.host.machine import package_version, processor_name

RESULTS = Path(__file__).parent / "results"
SECONDS = 1.0  # that no file may take
LONGEST_LINE = 1_100  # characters of a message
SLOWEST = 10  # files started once more, as a user would
OVERRIDES = ("micro_batch_size=explore", "explore.writes_are_fine=true")
COMMAND = 'explore.command=["train", "{config}"]'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=100_000, help="files in all")
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one process each")
    parser.add_argument("--folder", type=Path, help="where the files are written; default: the folder for such files")
    parser.add_argument("--keep", type=Path, help="folder for the files that fail")
    options = parser.parse_args()
    share = options.files // len(options.seed)
    with ProcessPoolExecutor(len(options.seed)) as pool:
        parts = list(pool.map(_part, options.seed, [share] * len(options.seed), [options.folder] * len(options.seed)))
    records = [record for part in parts for record in part]
    for number, record in enumerate(one for one in records if one["failures"]):
        print(json.dumps({key: value for key, value in record.items() if key != "content"}), flush=True)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{number}{record['suffix']}").write_bytes(record["content"])
    _write(records, options)


def _part(seed: int, count: int, folder: Path | None) -> list[dict[str, Any]]:
    """Return a record of each file of a seed; content is kept of those that fail and of the slowest."""
    chance, texts = random.Random(seed), seeds()
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        os.chdir(place)
        for number in range(count):
            content, suffix = hostile_file(chance, texts)
            record = _tried(content, suffix, has_earlier=chance.random() < 0.1)
            records.append(record | {"seed": seed, "number": number, "content": content})
            if number % 1_000 == 999:
                _forget(records)
    _forget(records)
    return records


def _forget(records: list[dict[str, Any]]) -> None:
    slowest = sorted(records, key=lambda one: -one["seconds"])[:SLOWEST]
    for record in records:
        if not record["failures"] and not any(record is one for one in slowest):
            record["content"] = b""


def _tried(content: bytes, suffix: str, *, has_earlier: bool) -> dict[str, Any]:
    """Try a file in an empty folder; `has_earlier` puts a file where init would write its own."""
    source, target = Path(f"job{suffix}"), Path(f"job.explore{suffix}")
    source.write_bytes(content)
    if has_earlier:
        target.write_bytes(b"mine")
    failures: list[str] = []
    ends, seconds = {}, 0.0
    for name, use in (("init", _init), ("load", _load), ("load with a command", _load_with_a_command)):
        began_s = time.process_time()
        ends[name] = use(source, failures)
        seconds = max(seconds, time.process_time() - began_s)
    if source.read_bytes() != content:
        failures.append("the source was changed")
    if has_earlier and target.read_bytes() != b"mine":
        failures.append("an earlier file was overwritten")
    if target.exists() and not has_earlier and ends["init"] != "accepted":
        failures.append("a file was written for a source that was refused")
    if ends["init"] == "accepted" and not has_earlier:
        _load_with_a_command(target, failures)
    for path in Path().iterdir():
        if path not in (source, target):
            failures.append(f"{path} was written")
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if seconds > SECONDS:
        failures.append(f"{seconds:.2f} s")
    return {"suffix": suffix, "seconds": seconds, "failures": failures, **ends}


def _init(source: Path, failures: list[str]) -> str:
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            bexplore(["init", str(source)])
        except SystemExit as error:
            code = error.code
        except BaseException:
            failures.append(f"init: {traceback.format_exc()}")
            return "traceback"
    _check_message(out.getvalue() + err.getvalue(), failures)
    if code not in (0, None, 2):
        failures.append(f"init: exit code {code}: {err.getvalue()[:300]}")
    return "refused" if code else "accepted"


def _load(path: Path, failures: list[str], overrides: Sequence[str] = ()) -> str:
    """Load a file as `explore` does, and write a size into it."""
    try:
        config = load_config(path, overrides=overrides)
        _check_message("\n".join(config.warnings), failures)
        _write_size(config)
    except UserInputError as error:
        _check_message(f"{error.message}\n{error.hint}", failures)
        return "refused"
    except BaseException:
        failures.append(f"load: {traceback.format_exc()}")
        return "traceback"
    return "accepted"


def _load_with_a_command(path: Path, failures: list[str]) -> str:
    return _load(path, failures, (*OVERRIDES, COMMAND))


def _write_size(config: Config) -> None:
    command = config.command
    if command is None:
        text = config.path.read_bytes().decode("utf-8-sig")
        with_value(text, config.request.path, 16, beside=config.batch_size_path, source=str(config.path))
    elif command.file is not None:
        values = command.values(micro_batch_size=16, accumulation=2, num_replicas=1, folder=Path("/probe"))
        command.file.copy(values)
        text = config.path.read_bytes().decode("utf-8-sig")
        for key in command.file.keys:
            text = with_value(text, key.path, 16, source=command.file.name)


def _check_message(text: str, failures: list[str]) -> None:
    if "Traceback" in text:
        failures.append(f"a message with a traceback: {text[:600]}")
    if not text.replace("\n", "").isprintable():
        failures.append(f"a message with control characters: {text[:600]!r}")
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        failures.append(f"a message line of {max(map(len, text.splitlines()))} characters: {text[:300]}")


def _started(record: dict[str, Any]) -> float:
    """Return the seconds of `bexplore init` on a file in a process of its own, less those of `bexplore --help`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"job{record['suffix']}"
        path.write_bytes(record["content"])
        times = {"--help": float("inf"), "init": float("inf")}
        for _ in range(3):
            for words in (["--help"], ["init", str(path), "--force"]):
                began_s = time.monotonic()
                subprocess.run([sys.executable, "-m", "bexplore", *words], check=False, capture_output=True)
                times[words[0]] = min(times[words[0]], time.monotonic() - began_s)
    return times["init"]


def _write(records: list[dict[str, Any]], options: argparse.Namespace) -> None:
    slowest = sorted(records, key=lambda one: -one["seconds"])[:SLOWEST]
    seconds = sorted(one["seconds"] for one in records)
    whole = [_started(one) for one in slowest]
    result = {
        "files": len(records),
        "by_suffix": dict(sorted(Counter(one["suffix"] for one in records).items())),
        "init": dict(Counter(one["init"] for one in records)),
        "load": dict(Counter(one["load"] for one in records)),
        "load with a command": dict(Counter(one["load with a command"] for one in records)),
        "failures": sum(bool(one["failures"]) for one in records),
        "tracebacks": sum("traceback" in list(one.values()) for one in records),
        "median_s": seconds[len(seconds) // 2],
        "slowest_s": [one["seconds"] for one in slowest],
        "slowest_started_s": whole,
    }
    seeds_used = " ".join(map(str, options.seed))
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in result["by_suffix"].items())
    others = result["failures"] - result["tracebacks"]
    text = [
        "# Hostile and broken files",
        "",
        f"Command: `make bench-hostile ARGS='--files {options.files} --seed {seeds_used}'`, "
        f"{datetime.now(UTC):%Y-%m-%d}. "
        f"{processor_name()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"ruamel.yaml {package_version('ruamel.yaml')}.",
        "",
        f"{len(records):,} files ({kinds}), "
        "each read by `bexplore init`, loaded as `explore` loads it, as it is and with a command, and where it loads, "
        "given a size. Seconds are of the processor, for the longest of the three; `started` is the whole command "
        "`bexplore init FILE` in a process of its own, the fastest of three.",
        "",
        "| | |",
        "|---|---:|",
        f"| tracebacks | {result['tracebacks']} |",
        f"| other failures (something overwritten, a message with control characters) | {others} |",
        f"| `init` wrote a file | {result['init'].get('accepted', 0):,} |",
        f"| loaded | {result['load'].get('accepted', 0):,} |",
        f"| loaded with a command | {result['load with a command'].get('accepted', 0):,} |",
        f"| median | {1e3 * result['median_s']:.1f} ms |",
        f"| slowest | {result['slowest_s'][0]:.2f} s |",
        f"| slowest, started | {max(whole):.2f} s |",
        "",
    ]
    (RESULTS / "hostile_files.md").write_text("\n".join(text))
    (RESULTS / "hostile_files.json").write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(text[6:]))


if __name__ == "__main__":
    main()
