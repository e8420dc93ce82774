"""The file of a training job, in whichever family of configurations it is written, read into a `Config`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bexplore.config import document
from bexplore.config.config import Config
from bexplore.config.dialects import cerebras, command
from bexplore.config.dialects.family import Likeness
from bexplore.config.dialects.own_file import holds_word_elsewhere, place_size, refuse_own_file
from bexplore.config.dialects.recognition import FamilyFile, read_family, recognise
from bexplore.config.document import Document, Override, Problems, dotted_path
from bexplore.config.document.reader import quote
from bexplore.config.document.values import Values, has_reference
from bexplore.errors import UserInputError, close_match
from bexplore.host.secret_values import remember_given
from bexplore.job import Mode

_SECTIONS = (*cerebras.SECTIONS, "explore")
_NEAR_SECTION = 0.75  # similarity from which an unread section is taken for a misspelt one
_NO_FILE = Path("the command line")
_COMMAND = ("explore", "command")
_MICRO_BATCH_SIZE = ("micro_batch_size",)  # `--set micro_batch_size=...` sets it wherever the layout keeps it


def load_config(
    path: Path | str | None, *, overrides: Sequence[str] = (), allow_code: bool = True, mode: Mode | None = None
) -> Config:
    """Read the file of a training job.

    Args:
        path: A YAML file; with a training command any YAML, JSON or TOML file, or None.
        overrides: `a.b=c` texts, applied in order before anything is checked. `micro_batch_size=...` sets that of the
            side that is explored, wherever the layout keeps it.
        allow_code: False refuses a file that can make this program run or import something.
        mode: The side to explore; None takes the side with `explore`, else with `auto`.

    Raises:
        UserInputError: The file is wrong; one error lists each mistake with line, rule, value and what to type.
    """
    given = [Override.parse(text) for text in overrides]
    argv = next((one.value for one in given if one.parts == _COMMAND and isinstance(one.value, list)), [])
    read = document.read(Path(path), argv=argv) if path is not None else Document(path=_NO_FILE, values={})
    for override in given:
        if override.parts != _MICRO_BATCH_SIZE:
            _refuse_unknown_section(override, list(read.values))
            read.apply_override(override)
    remember_given(read.values)
    problems = Problems(document=read, warnings=list(read.warnings))
    dialect, has_command = read.get(("explore", "dialect")), read.get(("explore", "command")) is not None
    likeness = None if dialect is None and cerebras.is_modelzoo(read.values) else recognise(read, dialect=dialect)
    own, written_size = None, None
    # A typed command takes the word at any key.
    if likeness is not None and likeness.is_certain and not (has_command and holds_word_elsewhere(read, likeness)):
        own, written_size = _family(problems, likeness, given)
    is_command = own is not None or has_command
    sizes = [override for override in given if override.parts == _MICRO_BATCH_SIZE]
    if is_command and own is None:
        for override in sizes:
            for place, part in place_size(read, override):
                read.put(place, part)
    guess = _notice_misspelt_sections(problems, ("explore",) if is_command else _SECTIONS)
    if is_command:
        text = None if path is None else document.read_text(Path(path))
        return command.load(problems, text=text, own=own, written_size=written_size, allow_code=allow_code)
    layout = cerebras.find_layout(problems) if dialect is None else None
    if layout is None:
        raise refuse_own_file(read, likeness, guess)
    side = mode if mode in layout.micro else next(iter(layout.micro), None)
    for override, place in itertools.product(sizes, [layout.micro[side]] if side is not None else []):
        read.put(place, override)
    return cerebras.load(layout, problems, allow_code=allow_code, mode=mode)


def _family(problems: Problems, likeness: Likeness, given: Sequence[Override]) -> tuple[FamilyFile, Any]:
    """Return the file by its family, and the size that an override has replaced."""
    read, family = problems.document, likeness.family
    sizes = [override for override in given if override.parts == _MICRO_BATCH_SIZE]
    path = family.size_path(Values(read.values)) or tuple(family.micro_batch_size[0].split("."))
    written_size = read.get(path)
    if sizes and has_reference(written_size):
        hint = "type explore at the number that it is made of"
        problems.error(path, f"{dotted_path(path)} is {quote(written_size)}, which is made of other values", hint)
    for override in sizes:
        read.put(path, override)
    return read_family(problems, likeness), written_size if sizes else None


def _refuse_unknown_section(override: Override, sections: list[str]) -> None:
    """Refuse an override of a section that neither stands in the file nor is ours."""
    name = override.parts[0]
    if name not in sections and name not in _SECTIONS:
        near = close_match(name, [*sections, *_SECTIONS])
        hint = f"did you mean {near}?" if near else f"sections: {', '.join(dict.fromkeys([*sections, 'explore']))}"
        raise UserInputError(f"{override.source}: the file has no section {quote(name)}", hint=hint)


def _notice_misspelt_sections(problems: Problems, sections: Sequence[str]) -> str:
    """Warn of an unread section whose name is near to a read one; return the last guess, for a hint."""
    guess, values = "", problems.document.values
    for key, value in values.items():
        near = close_match(key, sections, cutoff=_NEAR_SECTION)
        if near is None or key in sections or near in values:
            continue
        # A section of a file that would be of the ModelZoo with it: `model` is a key of many programs.
        is_like = isinstance(value, Mapping | list) and cerebras.is_modelzoo({**values, near: value})
        if near == "explore" or is_like:
            guess = f"did you mean {quote(near)} by {quote(key)}?"
            if near == "explore":  # no other program reads this section: its settings would be lost
                problems.error((key,), f"the section {quote(key)} is not read", f"did you mean {quote(near)}?")
                continue
            problems.warn((key,), f"the section {quote(key)} is not read; did you mean {quote(near)}?")
    return guess
