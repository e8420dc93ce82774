"""A training command: its placeholders, its environment, and the copy of the user's file that one start gets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bexplore.config.document.reader import KeyPath
from bexplore.config.document.writer import with_number
from bexplore.errors import UserInputError

PLACEHOLDERS = ("micro_batch_size", "accumulation", "global_batch_size", "replicas", "output_dir", "config")
# Keys of a file that hold the accumulation. Sources: `TrainingArguments` of transformers and axolotl's schema;
# Lightning's `Trainer`.
ACCUMULATION_KEYS = ("gradient_accumulation_steps", "accumulate_grad_batches")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFile:
    """The user's file, of which each start gets a copy with its size.

    Attributes:
        name: Name of the file, which the copy keeps.
        text: Its text, without the section of bexplore.
        size_path: Path of the key with the word `explore`; None where the command's placeholders carry the size.
        accumulation_paths: Paths of the keys that hold the accumulation.
    """

    name: str
    text: str
    size_path: KeyPath | None = None
    accumulation_paths: tuple[KeyPath, ...] = ()

    def copy(self, values: Mapping[str, str]) -> str:
        """Return the text with its numbers and placeholders filled in; every other character is kept."""
        text = self.text
        numbers = [(self.size_path, "micro_batch_size")] if self.size_path is not None else []
        numbers += [(path, "accumulation") for path in self.accumulation_paths]
        for path, name in numbers:
            if path is not None:
                text = self.with_number(text, path, int(values[name]))
        return fill(text, values)

    def with_number(self, text: str, path: KeyPath, number: int) -> str:
        """Return a text of this file with a number at a path.

        Raises:
            UserInputError: The number cannot be written without changing something else.
        """
        if not self.name.endswith(".toml"):
            return with_number(text, path, number, source=self.name)
        key = re.compile(rf"^(\s*{re.escape(str(path[-1]))}\s*=\s*)(\"explore\"|'explore'|\d+)", re.MULTILINE)
        changed, count = key.subn(rf"\g<1>{number}", text)
        if count != 1:
            raise UserInputError(f"{self.name}: {path[-1]} stands {count} times; it cannot be replaced by its name")
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command that trains, before a size is filled in.

    Attributes:
        argv: Program and arguments, with placeholders.
        env: Further variables of the environment, with placeholders.
        file: The user's file; None where the command has none.
        num_replicas: Data-parallel replicas that the command must start; None where the first probe shows it.
        writes_are_fine: Whether the user consents to a command without `{output_dir}`.
        is_typed: Whether the command stood on the command line and not in the file.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    file: CommandFile | None = None
    num_replicas: int | None = None
    writes_are_fine: bool = False
    is_typed: bool = False

    @property
    def placeholders(self) -> set[str]:
        """The placeholders that the command, its environment and its file use."""
        texts = [*self.argv, *self.env.values(), *([self.file.text] if self.file else [])]
        return {name for text in texts for name in _PLACEHOLDER.findall(text) if name in PLACEHOLDERS}

    @property
    def sets_accumulation(self) -> bool:
        """Whether a start chooses how many micro-batches make a step."""
        has_key = self.file is not None and bool(self.file.accumulation_paths)
        return has_key or bool({"accumulation", "global_batch_size"} & self.placeholders)

    @property
    def shown(self) -> str:
        """The command, quoted for a shell, with its placeholders as they were typed."""
        return " ".join(part if _PLACEHOLDER.search(part) else shlex.quote(part) for part in self.argv)

    def shown_with(self, *, micro_batch_size: int, accumulation: int | None, num_replicas: int) -> str:
        """Return the command with a size, quoted for a shell; an unknown accumulation stays a placeholder."""
        values = self.values(
            micro_batch_size=micro_batch_size, accumulation=accumulation or 1, num_replicas=num_replicas
        )
        if accumulation is None:
            values = {name: text for name, text in values.items() if name in ("micro_batch_size", "replicas")}
        variables = [f"{name}={shlex.quote(fill(text, values))}" for name, text in self.env.items()]
        words = [fill(part, values) for part in self.argv]
        return " ".join([*variables, *(one if _PLACEHOLDER.search(one) else shlex.quote(one) for one in words)])

    def filled(self, values: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and the variables of one start."""
        return [fill(part, values) for part in self.argv], {name: fill(text, values) for name, text in self.env.items()}

    def values(
        self, *, micro_batch_size: int, accumulation: int, num_replicas: int, folder: Path | None = None
    ) -> dict[str, str]:
        """Return the text of each placeholder.

        Args:
            micro_batch_size: Samples of one replica in one pass.
            accumulation: Micro-batches of one replica in one optimizer step.
            num_replicas: Data-parallel replicas.
            folder: Folder of the start, for its files; None leaves the two placeholders of files as they are.
        """
        numbers = {
            "micro_batch_size": micro_batch_size,
            "accumulation": accumulation,
            "global_batch_size": micro_batch_size * accumulation * num_replicas,
            "replicas": num_replicas,
        }
        values = {name: str(number) for name, number in numbers.items()}
        if folder is not None:
            values["output_dir"] = str(folder / "output")
            values["config"] = str(folder / self.file.name) if self.file else ""
        return values


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled in; other braces stay."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def unknown_placeholders(argv: tuple[str, ...]) -> list[str]:
    """Return the words in braces of a command that are no placeholders."""
    return [name for text in argv for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]
