"""Parameter files of the public ModelZoo: how many load unmodified, by release and family, and why the others do not.

    python -m benchmarks.modelzoo FOLDER [--build]

FOLDER has one folder for each release with unmodified files of the public repository, in their own folders; the files
are not part of this repository. Files without a training, an evaluation or a trainer (data preparation) do not count.
With `--build` each distinct program that loads is built on fake tensors, and one pass forward and backward of two
samples is run.
Writes benchmarks/results/modelzoo.{md,json}.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bexplore.config.document import document
from bexplore.config.load import load_config
from bexplore.errors import BexploreError, ExitCode
from bexplore.host.machine import package_version, processor_name
from bexplore.job import Job, Precision

RESULTS = Path(__file__).parent / "results"
SECTIONS = {"train_input", "eval_input", "trainer"}


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each parameter file with its release."""
    for release in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in sorted(release.rglob("*.yaml")):
            values = document.read(path).values
            if SECTIONS.intersection(values):
                yield release.name, path


def family_of(path: Path) -> str:
    """Return the folder above the configurations, without the layers of the repository above it."""
    folders = [part for part in path.parts[: path.parts.index("configs")] if part != "pytorch"]
    return folders[-1] if folders[-1] not in ("classifier", "token_classifier", "extractive_summarization") else "bert"


def judged(release: str, path: Path, folder: Path) -> tuple[dict[str, Any], Job | None]:
    """Return what becomes of one file, and its job."""
    inside = path.relative_to(folder / release)
    family = family_of(inside) if "configs" in inside.parts else inside.parts[-2]
    record: dict[str, Any] = {"release": release, "family": family, "file": str(inside)}
    try:
        config = load_config(path)
    except BexploreError as error:
        outcome = "exit 3" if error.exit_code is ExitCode.NOTHING_FITS else "refused"
        return record | {"outcome": outcome, "why": " ".join(error.message.replace(f"{path}:", "line ").split())}, None
    return record | {"outcome": "loads", "workload": config.job.workload, "warnings": len(config.warnings)}, config.job


def stepped(job: Job) -> dict[str, Any]:
    """Build a job on fake tensors and run a pass of two samples; return its parameters or its failure."""
    from bexplore.trace.fake_build import build_fake  # imports torch, which counting alone does not need

    if job.precision is Precision.AUTOCAST_FLOAT16:  # which the CPU lacks
        job = dataclasses.replace(job, precision=Precision.AUTOCAST_BFLOAT16)
    start = time.monotonic()
    try:
        workload, mode = build_fake(dataclasses.replace(job, device="cpu", import_root=None))
        with mode:
            workload.forward_backward(workload.make_batch(2))
    except Exception as error:  # any failure of a program is a result here
        return {"failure": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    module = workload.loss_module
    assert module is not None  # only a step of the user's own has none
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return {"parameters": parameters, "seconds": round(time.monotonic() - start, 1)}


def table(records: list[dict[str, Any]]) -> str:
    """Return the table of releases and families in Markdown."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["release"], record["family"]].append(record)
        groups[record["release"], "**all**"].append(record)
    lines = ["| release | family | files | load | exit 3 | refused | passes run |", "|---|---|---|---|---|---|---|"]
    for (release, family), own in sorted(groups.items(), key=lambda item: _order(*item[0])):
        count = Counter(record["outcome"] for record in own)
        steps = sum("parameters" in record for record in own)
        cells = (release, family, len(own), count["loads"], count["exit 3"], count["refused"], steps)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _order(release: str, family: str) -> tuple[list[int], str]:
    return [int(part) for part in re.findall(r"\d+", release)], family.replace("*", "~")


def _page(records: list[dict[str, Any]]) -> str:
    failed = [record for record in records if record["outcome"] != "loads" or "failure" in record]
    named = [f"* {one['release']} `{one['file']}`: {one.get('why') or one['failure']}" for one in failed]
    versions = ", ".join(f"{name} {package_version(name)}" for name in ("torch", "transformers"))
    return (
        "# Parameter files of the public ModelZoo\n\nCommand: `python -m benchmarks.modelzoo FOLDER --build`, with "
        "unmodified copies of the files of each release.\n"
        f"Machine: {processor_name()}, {os.cpu_count()} processors, {versions}.\n\n"
        "`passes run`: the program was built on fake tensors with the file's own sizes, and one pass forward and "
        f"backward of two samples ran through it.\n\n{table(records)}\n\n## Files that do not\n\n"
        + "\n".join(named)
        + "\n"
    )


def main() -> None:
    """Count, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", action="store_true", help="build each distinct program, and run a pass")
    arguments = parser.parse_args()
    records, seen = [], dict[str, dict[str, Any]]()
    for release, path in files_of(arguments.folder):
        record, job = judged(release, path, arguments.folder)
        if job is not None and arguments.build:
            key = job.fingerprint()
            if key not in seen:
                seen[key] = stepped(job)
            record |= seen[key]
        if record["outcome"] != "loads" or "failure" in record:
            print(json.dumps(record))
        records.append(record)
    page = _page(records)
    print(page)
    (RESULTS / "modelzoo.md").write_text(page)
    (RESULTS / "modelzoo.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
