"""Writes into configurations of other people: how many bytes change that should not.

    python -m benchmarks.file_writes FOLDER [--writes 5000] [--seed 0]

FOLDER holds YAML, JSON and TOML files, such as clones of public repositories; none is part of this project. In each
file values at some paths are replaced, and keys are added, by the writer that copies and `apply` use. A write is right
where the text differs at the value alone, and an independent parser (PyYAML, json, tomllib) reads back exactly the
change. Files of JSON are written a second time with comments in them. A write may be refused, with a reason: where keys
share a value by an anchor, one cannot change alone, and a number never replaces a reference.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine_facts import machine_facts
from bexplore.config import document
from bexplore.config.document import Document
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.writer import with_value
from bexplore.errors import UserInputError

RESULT = Path(__file__).parent / "results" / "file_writes.json"
SUFFIXES = (".yaml", ".yml", ".json", ".toml")
VALUES: tuple[Any, ...] = (7, "explore", 4096, 0.5, True)
ADDED = "bexplore_added"
PATHS_PER_FILE = 12


class _Texts(yaml.BaseLoader):
    """All scalars as texts, whatever their tags are."""


_Texts.add_multi_constructor("", lambda loader, _suffix, node: _construct(loader, node))


def _construct(loader: yaml.BaseLoader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


def parse(text: str, suffix: str) -> Any:
    """Return a text's values by a parser that is not the project's; None where there is none for it."""
    try:
        if suffix == ".jsonc":
            return json.loads(strip_comments(text))
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix == ".json":
            return json.loads(text)
        return yaml.load(text, Loader=_Texts)
    except (ValueError, TypeError, yaml.YAMLError, RecursionError):
        return None


def strip_comments(text: str) -> str:
    """Return JSON without its comments, read sign by sign."""
    kept, index, is_text = "", 0, False
    while index < len(text):
        pair = text[index : index + 2]
        if not is_text and pair in ("//", "/*"):
            end = text.find("\n" if pair == "//" else "*/", index)
            index = len(text) if end < 0 else end + (0 if pair == "//" else 2)
            continue
        step = 2 if is_text and pair[0] == "\\" else 1
        is_text ^= pair[0] == '"'
        kept += text[index : index + step]
        index += step
    return kept


def comment(text: str) -> str:
    """Return JSON with comments above it, behind its first sign and at its end."""
    start = text.index("{") + 1
    return f'// "a": {{\n/* b\n*/ {text[:start]} // c: "d{text[start:].rstrip()} // "e"\n'


def change(values: Any, path: KeyPath, value: Any, suffix: str) -> Any:
    """Return the values with one changed, as the independent parser reads it."""
    if not path:
        is_text = suffix not in (".json", ".jsonc", ".toml")
        return json.dumps(value).strip('"') if is_text else value
    key, rest = path[0], path[1:]
    if isinstance(values, list):
        return [change(one, rest, value, suffix) if index == key else one for index, one in enumerate(values)]
    held = dict(values or {})
    own = next((one for one in held if str(one) == str(key)), key)
    held[own] = change(held.get(own), rest, value, suffix)
    return held


def differs_in_lines(before: str, after: str) -> bool:
    """Return whether more than one line changed; one that is added may change no other."""
    old, new = before.splitlines(), after.splitlines()
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    behind = len(old) - first - (1 if len(old) == len(new) else 0)
    return old[len(old) - behind :] != new[len(new) - behind :] if behind > 0 else False


def differs_elsewhere(before: str, after: str, span: tuple[int, int] | None) -> bool:
    """Return whether bytes outside of a value changed; an added key may only be inserted."""
    if span is not None:
        rest = len(before) - span[1]
        return not (after.startswith(before[: span[0]]) and (not rest or after.endswith(before[-rest:])))
    prefix = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(map(len, (before, after)))
    )
    return not after[prefix:].endswith(before[prefix:]) and before.strip() != ""


def find_writes(read: Document, rng: random.Random) -> Iterator[tuple[KeyPath, tuple[int, int] | None, Any]]:
    """Yield paths of a file, the characters of their values (None for a key to add), and what to write there."""
    plain = [
        place
        for place in read.positions
        if read.has(place) and not isinstance(value := read.get(place), dict | list) and "\n" not in str(value)
    ]
    for place in rng.sample(plain, min(PATHS_PER_FILE, len(plain))):
        yield place, read.positions[place].span, rng.choice(VALUES)
    sections: list[KeyPath] = [(), *(place for place in read.positions if isinstance(read.get(place), dict))]
    for section in rng.sample(sections, min(3, len(sections))):
        is_empty = bool(section) and not read.get(section)  # `{ }`, whose blanks go
        yield (*section, ADDED), read.positions[section].span if is_empty else None, rng.choice(VALUES)


def write(text: str, suffix: str, place: KeyPath, span: tuple[int, int] | None, value: Any) -> str:
    """Return `right`, `refused` or what is wrong with one write."""
    try:
        after = with_value(text, place, value, source=f"job{suffix}")
    except UserInputError:
        return "refused"
    # An empty value of YAML has no characters of its own: only its line may change, as with a value of TOML.
    is_empty = span is not None and span[0] == span[1]
    if after == text:  # the value is there already, maybe through a merged mapping, which `change` does not follow
        return "right" if document.parse(Path(f"job{suffix}"), text).get(place) == value else "nothing changed"
    differs = differs_in_lines(text, after) if is_empty or suffix == ".toml" else differs_elsewhere(text, after, span)
    if differs:
        return "other bytes changed"
    own = parse(text, suffix)
    if own is None:
        return "right"  # no other parser reads the file at all
    return "right" if parse(after, suffix) == change(own, place, value, suffix) else "reads back otherwise"


def find_texts(files: list[Path]) -> Iterator[tuple[Path, str, str]]:
    """Yield each file's text and suffix, and JSON again with comments."""
    for path in files:
        try:
            text = document.read_text(path)
        except UserInputError:
            continue
        yield path, text, path.suffix
        if path.suffix == ".json" and "{" in text:
            yield path, comment(text), ".jsonc"


def main() -> int:
    """Write into files until there are enough writes; print the counts and keep them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--writes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    files = sorted(path for path in options.folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    rng.shuffle(files)
    counts, kinds, read = Counter[str](), Counter[str](), 0
    for path, text, suffix in find_texts(files):
        if sum(counts.values()) - counts["refused"] >= options.writes:
            break
        try:
            wanted = list(find_writes(document.parse(Path(f"job{suffix}"), text), rng))
        except UserInputError:
            counts["files that cannot be read"] += 1
            continue
        read += 1
        for place, span, value in wanted:
            found = write(text, suffix, place, span, value)
            counts[found] += 1
            kinds[suffix] += 1
            if found not in ("right", "refused"):
                print(f"{found}: {path} {place} {value!r}", file=sys.stderr)
    report = {
        "command": f"python -m benchmarks.file_writes FOLDER --writes {options.writes} --seed {options.seed}",
        "files": read,
        "by_suffix": dict(kinds),
        "counts": dict(counts),
        "facts": machine_facts(),
    }
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({name: report[name] for name in ("files", "by_suffix", "counts")}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
