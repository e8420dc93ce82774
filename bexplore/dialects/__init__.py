"""Config families that carry a micro-batch size: which one a file is written in, and its `Config`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bexplore import document
from bexplore.config import Config, close_match
from bexplore.dialects import cerebras
from bexplore.document import Document, Problems
from bexplore.errors import UserInputError
from bexplore.job import Mode


def load(path: Path, *, overrides: Sequence[str] = (), allow_code: bool = True, mode: Mode | None = None) -> Config:
    """Read the file of a training job.

    Args:
        path: A YAML file.
        overrides: `a.b=c` texts, applied in order before anything is checked.
        allow_code: False refuses import paths.
        mode: The side to explore; None takes the one that asks for it.

    Raises:
        UserInputError: The file is wrong; one error lists everything that is, with line, rule, value and what to type.
    """
    read = document.read(Path(path))
    for override in overrides:
        read.apply_override(override)
    problems = Problems(document=read, warnings=list(read.warnings))
    _notice_misspelt_sections(read, problems)
    if "trainer" in read.values:
        return cerebras.load_trainer(problems, allow_code=allow_code, mode=mode)
    if any(section in read.values for section in cerebras.SECTIONS):
        return cerebras.load_sections(problems, allow_code=allow_code, mode=mode)
    problems.raise_if_any()
    found = ", ".join(list(read.values)[:8])
    guess = problems.warnings[-1].partition(": ")[2] if problems.warnings else ""
    raise UserInputError(
        f"{path}: neither train_input, eval_input nor trainer is there, so nothing says what to explore (found: {found})",
        hint=guess or "write train_input: {batch_size: 64, micro_batch_size: explore}; configs/ has whole examples",
    )


def _notice_misspelt_sections(read: Document, problems: Problems) -> None:
    """A section that nobody reads, with a name near to one that is read."""
    known = [*cerebras.SECTIONS, *cerebras.OTHER_SECTIONS, "trainer", "explore"]
    for key in read.values:
        near = close_match(key, known, cutoff=0.8)
        if key not in known and near is not None and near not in read.values:
            problems.warn((key,), f'the section "{document.shown(key)}" is not read; did you mean "{near}"?')
