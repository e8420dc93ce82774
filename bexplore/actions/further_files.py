"""Further files of the same training, in which numbers of the batch stand too: changed with the configuration."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from bexplore.config.dialects.families import FAMILIES
from bexplore.config.dialects.family import Family
from bexplore.config.dialects.recognition import recognise
from bexplore.config.document import document
from bexplore.config.document.values import Values
from bexplore.config.document.writer import with_value
from bexplore.config.sections.values import is_integer
from bexplore.errors import UserInputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """The numbers of a batch, as one training has them in all of its files. None leaves a number as it is.

    Attributes:
        micro_batch_size: Samples of one replica in one pass.
        accumulation: Passes of a step.
        global_batch_size: Samples of a step over all replicas.
    """

    micro_batch_size: int
    accumulation: int | None
    global_batch_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A planned change of one file.

    Attributes:
        path: The file.
        before: Its bytes.
        after: Its bytes with the new values.
    """

    path: Path
    before: bytes
    after: bytes

    @property
    def diff(self) -> str:
        """Return the change as a unified diff; empty where the file has the values already."""
        old, new = (data.decode("utf-8-sig").splitlines(keepends=True) for data in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), n=2)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def change_further(path: Path, numbers: BatchNumbers, *, own_family: str) -> FileChange:
    """Plan the change of a further file: each number of the batch that it gives, at the keys of its family.

    What a family derives (`auto`, -1, null) stays as it is.

    Args:
        path: A YAML, JSON or TOML file.
        own_family: Family of the configuration, whose keys are looked for too.

    Raises:
        UserInputError: It cannot be read, counts tokens, or has no number of a batch.
    """
    read = document.read(path)
    text, values = document.read_text(path), Values(read.values)
    found = recognise(read)
    families = [family for family in (found[0] if found else None, FAMILIES.get(own_family)) if family is not None]
    changed, keys = text, 0
    for family in families:
        for name in ("micro_batch_size", "accumulation", "global_batch_size"):
            place, number = values.first(getattr(family, name)), getattr(numbers, name)
            if place is None or number is None or not is_integer(values.at(place)) or values.at(place) in family.unset:
                continue
            _refuse_tokens(path, family)
            changed, keys = with_value(changed, place, number, source=str(path)), keys + 1
    if not keys:
        tried = ", ".join(key for family in families for key in family.micro_batch_size) or "of no known family"
        raise UserInputError(
            f"{path} has no number of a batch: none of the keys {tried}, nor those of accumulation and global batch",
            hint="leave it out of --also",
        )
    before = path.read_bytes()
    mark = BYTE_ORDER_MARK if before.startswith(BYTE_ORDER_MARK) else b""
    return FileChange(path=path, before=before, after=mark + changed.encode())


def _refuse_tokens(path: Path, family: Family) -> None:
    if family.counts_tokens:
        raise UserInputError(
            f"{path} is of {family.title}, which counts tokens: a second file of it is not written",
            hint="leave it out of --also, and write its numbers yourself",
        )
