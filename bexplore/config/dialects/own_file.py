"""A file of the user's own: what it resembles, and the line to type for the program that reads it."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bexplore.config.dialects.family import Family, Likeness, find_sizes
from bexplore.config.document import Document, Override, dotted_path
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.values import Values
from bexplore.errors import UserInputError

_WORD = "explore"
# Names of scripts that train, in the order in which they are looked for. Source: the corpus of docs/dialects.md.
_SCRIPTS = ("train.py", "main.py", "run.py", "train_*.py", "*_train.py", "run_*.py", "finetune*.py", "pretrain*.py")
_CONFIG_OPTIONS = re.compile(
    r"""["'](--(?:config|cfg|conf|yaml|params|hparams|options?|base)(?:[-_](?:file|path))?)["']"""
)
_OUTPUT_OPTIONS = re.compile(
    r"""["'](--(?:out(?:put)?|save|log|work|exp|checkpoint)(?:[-_]?(?:dir|path|folder))?)["']"""
)
_OF_SPEECHBRAIN = re.compile(r"!(?:new|name|apply):speechbrain\.")  # whose recipes take the file as their first word
_DEEP = 5  # keys above a size, where none is near the top: `data_loader.args.batch_size`
_MOST_NAMED = 3
_OF_ALL = re.compile(r"global|total|effective", re.IGNORECASE)  # batches of all devices and passes of a step
_OUTPUT_KEY = re.compile(r"(?:out(?:put)?|save|work|exp)_?(?:dir|path|folder)", re.IGNORECASE)


def find_words(document: Document) -> Iterator[KeyPath]:
    """Yield the paths at which the file has the word, or the word with bounds."""
    yield from (path for path in _find_words(document.values, ()) if path[0] != _WORD)


def _find_words(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if path and _is_word(value):
        yield path
    elif isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _find_words(inner, (*path, key))


def _is_word(value: Any) -> bool:
    return value == _WORD or (isinstance(value, Mapping) and set(value) == {_WORD})


def holds_word_elsewhere(document: Document, likeness: Likeness) -> bool:
    """Return whether the word stands at a key that the family does not read: who types the command knows the key."""
    if not likeness.evidence:  # the user named the family
        return False
    known = likeness.family.size_path(Values(document.values))
    return any(path != known for path in find_words(document))


def place_size(document: Document, override: Override) -> Iterator[tuple[KeyPath, Override]]:
    """Yield where `micro_batch_size` goes: to the word in a file of one's own, that key, or its only batch size.

    Where a command takes the size at its placeholder alone, bounds go to `explore.min` and `explore.max`.

    Raises:
        UserInputError: There are several places, or a number is given and no place.
    """
    words = [*find_words(document)]
    values = Values(document.values)
    named = values.path(".".join(override.parts))  # the file may have a key of that very name
    sizes = find_sizes(document.values) if named is None else [named]
    found = words or list(dict.fromkeys(map(values.follow, sizes)))
    if len(found) == 1:
        yield found[0], override
        return
    if not found and _is_word(override.value):
        bounds = override.value[_WORD] if isinstance(override.value, Mapping) else None
        for key, value in (bounds or {}).items():
            yield (_WORD, key), dataclasses.replace(override, parts=(_WORD, key), value=value)
        return
    message = f"{override.source}: the command takes its size at {{micro_batch_size}}, and no file has a key for it"
    hint = "leave it out, and every size from explore.min to explore.max is explored"
    if found:
        places = [".".join(map(str, path)) for path in found]
        message = f"{override.source}: {document.path} has several batch sizes: {', '.join(places)}"
        hint = f"name the one to set: {places[0]}={override.source.partition('=')[2]}"
    raise UserInputError(message, hint=hint)


def refuse_own_file(document: Document, likeness: Likeness | None, guess: str = "") -> UserInputError:
    """Return the error of a file that no family reads, and of which no command is given."""
    word = next(find_words(document), None)
    at = f", with {_WORD} at {'.'.join(map(str, word))}" if word else ""
    message = f"{document.path} is a file of your own{at}, and no command trains with it"
    resembles = likeness is not None and likeness.score > 0
    if likeness is not None and resembles:
        message += f": it resembles {likeness.family.title} by {', '.join(likeness.evidence)}"
        message += f", which reads no {', '.join(likeness.against[:2])}" if likeness.against else ""
    keys = [*map(dotted_path, _find_output_keys(document.values, ()))]
    found = () if word else find_sizes(document.values) or find_sizes(document.values, depth=_DEEP)
    sizes = [path for path in found if not _OF_ALL.search(str(path[-1]))]
    line = suggest_command(
        document.path,
        output_key=keys[0] if len(keys) == 1 else "",
        size_key=dotted_path(sizes[0]) if len(sizes) == 1 else "",
    )
    lead = "type your training command behind it"
    if not word and len(sizes) != 1:
        named = f" ({' or '.join(map(dotted_path, sizes[:_MOST_NAMED]))})" if sizes else ""
        lead = f"write explore at its micro-batch size{named}, and {lead}"
    lines = [guess, f"{lead}: {line}"]
    if likeness is not None and resembles:
        lines.append(f"or explore.dialect: {likeness.family.name}, if it is one")
    return UserInputError(message, hint="\n".join(filter(None, lines)))


def _find_output_keys(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of keys that are named as the folder of a training's output is."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _find_output_keys(inner, (*path, key))
    elif isinstance(value, str | None) and path and _OUTPUT_KEY.fullmatch(str(path[-1])):
        yield path


def suggest_command(
    path: Path, family: Family | None = None, values: Values | None = None, *, output_key: str = "", size_key: str = ""
) -> str:
    """Return the line to type for a file: the family's, or that of the script which lies beside it.

    Args:
        output_key: The key of the file that holds the folder of the output; empty where none is known.
        size_key: The key of its size, where that is a number; empty where the word stands there, or none is known.
    """
    program = None if family is None or values is None else family.find_program(values, 1)
    if program is not None:
        return f"bexplore explore {shlex.quote(str(path))} -- {' '.join(program.line)}"
    if family is not None and family.note.startswith("-- "):
        return f"bexplore explore {shlex.quote(str(path))} {family.note}"
    script = _find_script(path)
    text = script.read_text(errors="replace") if script is not None else ""
    config = _CONFIG_OPTIONS.search(text)
    output = _OUTPUT_OPTIONS.search(text)
    words = ["python", shlex.quote(str(script or "train.py")), config[1] if config else "--config", "{config}"]
    options = [f"--set {size_key}=explore"] if size_key else []
    if not config and path.is_file() and _OF_SPEECHBRAIN.search(path.read_text(errors="replace")):
        words = [*words[:2], "{config}", "--output_folder", "{output_dir}"]
    elif config and not output:  # its options are there, and none is a folder
        options.append(f"--set {output_key}={{output_dir}}" if output_key else "--writes-are-fine")
    else:
        words += [output[1] if output else "--out", "{output_dir}"]
    line = " ".join(["bexplore explore", shlex.quote(str(path)), *options, "--", *words])
    if script is not None and "--config" in words and "--config" not in text:
        line += f"\nwrite for --config and --out the options by which {script} takes its file and its folder"
    return line


def _find_script(path: Path) -> Path | None:
    """Return the training script beside a file, in the folder above it or in the folder of the user."""
    for folder in dict.fromkeys((path.parent, path.parent.parent, Path())):
        for pattern in _SCRIPTS:
            found = sorted(one for one in folder.glob(pattern) if one.is_file())
            if found:
                return found[0]
    return None
