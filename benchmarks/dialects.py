"""Public configuration files of every family: recognised, solved, and written back with only the meant tokens changed.

    python -m benchmarks.dialects FOLDER

FOLDER has one folder for each family with unmodified files of public repositories, and `index.tsv` with their origin.
The files are not part of this repository. Files whose name has an even checksum were used to write the families; the
others are counted apart. Writes benchmarks/results/dialects.{md,json}.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bexplore.config.dialects.family import Numbers
from bexplore.config.dialects.recognition import FamilyFile, read_family, recognise
from bexplore.config.document import document
from bexplore.config.document.document import Problems
from bexplore.config.document.writer import with_value
from bexplore.errors import UserInputError

# Folder of the collection -> families that are right there.
EXPECTED = {
    "llamafactory": {"llama-factory", "llama-factory-v1"},
    "trl": {"trl", "transformers"},
    "megatron": {"megatron-lm"},
    "composer": {"composer"},
    "gpt-neox": {"gpt-neox"},
    "olmo": {"olmo", "olmo-core"},
}
RESULTS = Path(__file__).parent / "results"
NEW_SIZE = 7  # in no file


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file with the folder of its family."""
    for family in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "hydra"):
        yield from ((family.name, path) for path in sorted(family.rglob("*")) if path.is_file())


def judged(kind: str, path: Path) -> dict[str, Any]:
    """Return what becomes of one file."""
    record: dict[str, Any] = {"family": kind, "file": path.name, "half": "even" if _is_even(path) else "odd"}
    try:
        read = document.read(path)
        problems = Problems(document=read)
        found = recognise(read)
        if found is None:
            return record | {"outcome": "not recognised"}
        family, evidence = found
        record |= {"found": family.name, "evidence": list(evidence)}
        if family.name not in EXPECTED.get(kind, {kind}):
            return record | {"outcome": "another family"}
        own = read_family(problems, family, evidence)
        record["numbers"] = known_numbers(own.numbers.solved())
        try:
            problems.raise_if_any()
        except UserInputError as error:
            return record | {"outcome": "refused by its rule", "why": _without_folder(error, path)}
        record |= _written(own, read, path)
        return record | {"outcome": "solved" if _is_solved(own) else "numbers missing"}
    except UserInputError as error:
        return record | {"outcome": "refused as text", "why": _without_folder(error, path)}


def known_numbers(numbers: Numbers) -> dict[str, int]:
    """Return each number that is there, by its name for people."""
    found = {name: number for name, number in dataclasses.asdict(numbers).items() if number is not None}
    return {name.removeprefix("num_").replace("_", " "): number for name, number in found.items()}


def _without_folder(error: UserInputError, path: Path) -> str:
    """Return a message that names the file, and no folder of this machine."""
    return error.message.replace(str(path), path.name)


def _is_even(path: Path) -> bool:
    return zlib.crc32(path.name.encode()) % 2 == 0


def _is_solved(own: FamilyFile) -> bool:
    """Return whether each of the family's numbers that the file has a value for was read."""
    read = known_numbers(own.numbers)
    names = {
        "micro_batch_size": "micro batch size",
        "accumulation": "accumulation",
        "global_batch_size": "global batch size",
    }
    given = [name for name, path in own.places.items() if name in names and own.values.at(path) not in own.family.unset]
    return bool(own.places or own.family.name in ("accelerate", "deepspeed")) and all(
        names[name] in read or _is_word(own, name) for name in given
    )


def _is_word(own: FamilyFile, name: str) -> bool:
    value = own.values.at(own.places[name])
    return value == "auto" or (isinstance(value, str) and "${" in value)


def _written(own: FamilyFile, read: Any, path: Path) -> dict[str, Any]:
    """Write a new size and, where the file has it, a new accumulation; return whether only these tokens changed."""
    text = path.read_bytes().decode("utf-8-sig")
    changed, expected = text, 0
    for name in ("micro_batch_size", "accumulation"):
        place = own.places.get(name)
        if place is None or own.values.at(place) is None or place not in own_paths(read):
            continue
        try:
            changed = with_value(changed, place, NEW_SIZE, source=str(path))
        except UserInputError as error:
            return {"is_byte_exact": None, "why_not_written": _without_folder(error, path)}
        expected += 1
    return {
        "is_byte_exact": changed_tokens(text, changed) <= expected and _rest(text, changed),
        "num_written": expected,
    }


def own_paths(read: Any) -> set[Any]:
    """Return the paths of a document's values."""
    if read.positions:
        return set(read.positions)

    def walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield path
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield from walk(inner, (*path, key))

    return set(walk(read.values, ()))


def changed_tokens(before: str, after: str) -> int:
    """Count the tokens that differ; line breaks and blanks are tokens."""
    a, b = (re.findall(r"\s+|[^\s,:=\[\]{}]+|[,:=\[\]{}]", text) for text in (before, after))
    codes = difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes()
    return sum(max(a_end - a_start, b_end - b_start) for tag, a_start, a_end, b_start, b_end in codes if tag != "equal")


def _rest(before: str, after: str) -> bool:
    """Return whether each line but those with the new number is the same, to the byte."""
    a, b = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return len(a) == len(b) and all(old == new or str(NEW_SIZE) in new for old, new in zip(a, b, strict=True))


def table(records: list[dict[str, Any]]) -> str:
    """Return the table of families in Markdown."""
    by_family: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by_family[record["family"]].append(record)
    lines = [
        "| family | files | solved | refused by its rule | else | byte-exact of written |",
        "|---|---|---|---|---|---|",
    ]
    for family, own in [*sorted(by_family.items()), ("**all**", records)]:
        count = Counter(record["outcome"] for record in own)
        good = count["solved"] + count["refused by its rule"]
        written = [
            record["is_byte_exact"] for record in own if record.get("num_written") or "why_not_written" in record
        ]
        exact = f"{sum(one is True for one in written)} of {len(written)}"
        cells = (family, len(own), count["solved"], count["refused by its rule"], len(own) - good, exact)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Count, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--show", action="store_true", help="print every file that was not solved")
    parser.add_argument("--half", choices=("even", "odd"), help="only this half; writes nothing")
    arguments = parser.parse_args()
    records = [judged(kind, path) for kind, path in files_of(arguments.folder)]
    if arguments.half:
        records = [record for record in records if record["half"] == arguments.half]
    if arguments.show:
        for record in records:
            if record["outcome"] != "solved" or record.get("is_byte_exact") is not True:
                print(json.dumps({key: value for key, value in record.items() if key not in ("evidence",)}))
    print(table(records))
    if not arguments.half:
        odd = [record for record in records if record["half"] == "odd"]
        (RESULTS / "dialects.md").write_text(
            "# Public configuration files of every family\n\nCommand: `python -m benchmarks.dialects FOLDER`. "
            "The files are unmodified copies of public repositories, which are not part of this one.\n\n"
            f"## The half that the families were not written with\n\n{table(odd)}\n\n## All files\n\n{table(records)}\n"
        )
        (RESULTS / "dialects.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
