"""A training command: its placeholders, its environment, and the copy of the user's file that one start gets."""

from __future__ import annotations

import glob
import hashlib
import itertools
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from bexplore.config.document import dotted_path
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.writer import Scalar, with_value
from bexplore.host.process_tree import LAUNCHERS, find_program, list_pids
from bexplore.host.secret_values import MASK, hidden_words

NUMBERS = ("micro_batch_size", "accumulation", "global_batch_size", "replicas")
PLACEHOLDERS = (*NUMBERS, "output_dir", "config", "config_dir")
_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")  # `${output_dir}` is a reference of a file, or a variable of a shell
_PATH_BEHIND = re.compile(r"(/[\w.-]+)*/?")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_SCRIPT_OPTION = re.compile(r"-[a-z]*c")  # `bash -c SCRIPT`, `bash -lc SCRIPT`
# Options of launchers that give their processes, and the hosts of which each has as many.
_COUNTS = {
    "processes": re.compile(
        r"(?:--(?:nproc(?:[-_]per[-_]node)?|num[-_]processes|num[-_]gpus|ntasks)|-(?:np|n))(?:=(.+))?"
    ),
    "hosts": re.compile(r"--(?:nnodes|num[-_]nodes)(?:=(.+))?"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKey:
    """A key of the user's file that each start has a value of its own for."""

    path: KeyPath  # the key itself may be absent
    name: str  # of the placeholder whose value it holds
    factor: int = 1  # of the value: tokens of a sample, where the file counts tokens

    def value(self, values: Mapping[str, str]) -> Scalar:
        """Return the value among those of the placeholders: a number, or the folder of the output."""
        text = values[self.name]
        return text if self.name == "output_dir" else int(text) * self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFile:
    """The user's file, of which each start gets a copy with its size."""

    name: str  # which the copy keeps
    text: str  # without the section of bexplore
    keys: tuple[FileKey, ...] = ()  # whose values change from start to start
    probing: Mapping[KeyPath, Scalar] = field(default_factory=dict)  # what changes the size by itself is off
    beside: Path | None = None  # folder in which copies must lie, as the file names others from there; None for any
    # Folder of the user's file, where the command takes a folder: beside a copy lie links to all else of it
    siblings: Path | None = None

    @property
    def names(self) -> set[str]:
        """The placeholders that the keys of the file stand for."""
        return {key.name for key in self.keys}

    @property
    def texts(self) -> list[str]:
        """The texts in which placeholders are filled in."""
        return [self.text, *(value for value in self.probing.values() if isinstance(value, str))]

    def list_placeholders(self) -> list[str]:
        """Return the placeholders in the user's own text, which stay there when a size is written into it."""
        found = {name for name in _PLACEHOLDER.findall(self.text) if name in PLACEHOLDERS}
        return sorted(f"{{{name}}}" for name in found - ({"micro_batch_size"} & self.names))

    def paths(self, name: str) -> list[KeyPath]:
        """Return the paths of the keys of one placeholder."""
        return [key.path for key in self.keys if key.name == name]

    def place_copy(self, folder: Path) -> Path:
        """Return where the copy of a start lies: in its folder, or under a hidden name beside the user's file.

        The name has the process that made it, by which a copy that a killed explorer left behind is known.
        """
        if self.siblings is not None:
            return folder / "config" / self.name
        if self.beside is None:
            return folder / self.name
        stem, suffix = Path(self.name).stem, Path(self.name).suffix
        start = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        return self.beside / f".{stem}.bexplore-{os.getpid()}-{start}{suffix}"

    def find_old_copies(self) -> list[Path]:
        """Return the copies beside the user's file whose explorers are gone."""
        if self.beside is None:
            return []
        name = Path(self.name)
        copies = self.beside.glob(f".{glob.escape(name.stem)}.bexplore-*{glob.escape(name.suffix)}")
        pids = {path: path.name.removeprefix(f".{name.stem}.bexplore-").partition("-")[0] for path in copies}
        alive = {str(pid) for pid in list_pids()} if pids else set()
        return [path for path, pid in pids.items() if pid not in alive]

    def copy(self, values: Mapping[str, str]) -> str:
        """Return the text with its values and placeholders filled in; every other character is kept."""
        text = self.text
        for key in self.keys:
            text = with_value(text, key.path, key.value(values), source=self.name)
        for path, value in self.probing.items():
            text = with_value(text, path, value, source=self.name)
        return fill(text, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command that trains, before a size is filled in."""

    argv: tuple[str, ...]  # program and arguments, with placeholders
    env: Mapping[str, str] = field(default_factory=dict)  # further variables of the environment, with placeholders
    file: CommandFile | None = None  # the user's file; None where the command has none
    # Data-parallel replicas that the command must start; None where the first probe shows it.
    num_replicas: int | None = None
    # Micro-batches of one replica in a step that the training has by itself, by a word of the command or by its file;
    # None where neither says.
    accumulation: int | None = None
    writes_are_fine: bool = False  # whether the user consents to a command without `{output_dir}`
    is_typed: bool = False  # whether the command stood on the command line and not in the file
    # Length of each sample of its data set, in the order of the set; empty where none are given.
    sample_lengths: tuple[int, ...] = ()

    @property
    def placeholders(self) -> set[str]:
        """The placeholders that the command, its environment and its file use."""
        texts = [*self.argv, *self.env.values(), *(self.file.texts if self.file else [])]
        written = {name for text in texts for name in _PLACEHOLDER.findall(text) if name in PLACEHOLDERS}
        return written | (self.file.names if self.file else set())

    @property
    def has_size_in_file(self) -> bool:
        """Whether a key of the user's file is the size, which `apply` then writes; else the command itself has it."""
        return self.file is not None and "micro_batch_size" in self.file.names

    @property
    def needs_replicas(self) -> bool:
        """Whether a start is given a number that depends on the replicas."""
        return bool(self.placeholders & {"replicas", "global_batch_size"})

    @property
    def sets_accumulation(self) -> bool:
        """Whether a start chooses how many micro-batches make a step; a global batch alone has one of each rank."""
        used = self.placeholders
        return "accumulation" in used or {"global_batch_size", "micro_batch_size"} <= used

    @property
    def shown(self) -> str:
        """The command, quoted for a shell, with its placeholders as they were typed; secrets are masked."""
        return quote_words(hidden_words(self.argv))

    def shown_with(self, *, micro_batch_size: int, accumulation: int | None, num_replicas: int) -> str:
        """Return the command with a size, quoted for a shell; an unknown accumulation stays a placeholder.

        Secrets are masked, and of variables only the names and what placeholders stand for are shown.
        """
        values = self.values(
            micro_batch_size=micro_batch_size, accumulation=accumulation or 1, num_replicas=num_replicas
        )
        if accumulation is None and self.sets_accumulation:
            values = {name: text for name, text in values.items() if name in ("micro_batch_size", "replicas")}
        variables = [
            f"{name}={shlex.quote(fill(text, values)) if is_placeholder(text) else MASK}"
            for name, text in self.env.items()
        ]
        return " ".join([*variables, quote_words(_fill_words(hidden_words(self.argv), values))])

    def describe_copy(self, *, micro_batch_size: int, accumulation: int | None, num_replicas: int) -> str:
        """Return what `{config}` stands for in a line with a size; empty without a file of which starts get copies."""
        if self.file is None:
            return ""
        values = self.values(
            micro_batch_size=micro_batch_size, accumulation=accumulation or 1, num_replicas=num_replicas
        )
        keys = [(key.path, key.value(values)) for key in self.file.keys if key.name in NUMBERS]
        is_known = accumulation is not None or not self.sets_accumulation
        words = [f"{dotted_path(path)}: {value}" for path, value in keys if is_known]
        return f"{self.file.name}{' with ' if words else ''}{', '.join(words)}"

    def describe_by_hand(self, micro_batch_size: int, accumulation: int, num_replicas: int) -> str:
        """Return what stands for placeholders of files, and the line of a start behind a colon."""
        line = self.shown_with(micro_batch_size=micro_batch_size, accumulation=accumulation, num_replicas=num_replicas)
        # A line may name the folder several times, a script of a shell inside of it too, and means one.
        first = "export OUT=$(mktemp -d); " if "{output_dir}" in line else ""
        copy = ""
        if self.file is not None and "{config}" in line:
            copy = f" ({{config}} is a copy of {self.file.name} whose size is {micro_batch_size})"
        elif self.file is not None and "{config_dir}" in line:
            copy = f" ({{config_dir}} has a copy of {self.file.name} whose size is {micro_batch_size})"
        return f"{copy}: {first}{line.replace('{output_dir}', '$OUT')}"

    def filled(self, values: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and the variables of one start."""
        return _fill_words(self.argv, values), {name: fill(text, values) for name, text in self.env.items()}

    def values(
        self, *, micro_batch_size: int, accumulation: int, num_replicas: int, folder: Path | None = None
    ) -> dict[str, str]:
        """Return the text of each placeholder; without the folder of a start, those of files stay as they are."""
        numbers = {
            "micro_batch_size": micro_batch_size,
            "accumulation": accumulation,
            "global_batch_size": micro_batch_size * accumulation * num_replicas,
            "replicas": num_replicas,
        }
        values = {name: str(number) for name, number in numbers.items()}
        if folder is not None:
            values["output_dir"] = str(folder / "output")
            place = self.file.place_copy(folder) if self.file else None
            values |= {"config": str(place or ""), "config_dir": str(place.parent) if place else ""}
        return values


def is_placeholder(text: str) -> bool:
    """Return whether a text is one placeholder and nothing else, so that it holds no value of the user's."""
    found = _PLACEHOLDER.fullmatch(text)
    return found is not None and found[1] in PLACEHOLDERS


def begins_with_placeholder(text: str) -> bool:
    """Return whether a text is a placeholder and no more than a path behind it: `{output_dir}/logs`."""
    found = _PLACEHOLDER.match(text)
    is_path = found is not None and _PATH_BEHIND.fullmatch(text[found.end() :]) is not None
    return is_path and found is not None and found[1] in PLACEHOLDERS


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled in; other braces stay."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def fill_script(script: str, values: Mapping[str, str]) -> str:
    """Return a script of a shell with its placeholders filled in, each as one word wherever it stands.

    A value is quoted as its place demands: outside of quotes, in single and in double ones. Source: POSIX, Shell
    Command Language, 2.2 Quoting.
    """
    parts, end = [], 0
    for found in _PLACEHOLDER.finditer(script):
        parts.append(script[end : found.start()])
        end = found.end()
        value = values.get(found[1])
        parts.append(found[0] if value is None else _QUOTED[_open_quote(script[: found.start()])](value))
    return "".join([*parts, script[end:]])


_QUOTED = {
    "": shlex.quote,
    "'": lambda value: value.replace("'", "'\"'\"'"),
    '"': lambda value: re.sub(r'([$`"\\])', r"\\\1", value),
}


def _open_quote(script: str) -> str:
    """Return the quote that is open at the end of a part of a script; empty for none."""
    quote, is_escaped = "", False
    for character in script:
        if is_escaped:
            is_escaped = False
        elif character == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
    return quote


def is_script(words: Sequence[str], index: int) -> bool:
    """Return whether a word is a script in the words of a shell."""
    shells = (word for word in words[:index] if PurePath(word).name in _SHELLS)
    return index > 1 and _SCRIPT_OPTION.fullmatch(words[index - 1]) is not None and any(shells)


def quote_words(words: Sequence[str]) -> str:
    """Return words quoted for a shell; a placeholder or a masked secret alone asks for no quotes."""
    bare = {word: _PLACEHOLDER.sub("", word).replace(MASK, "") for word in words}
    as_is = (word and bare[word] in ("", shlex.quote(bare[word])) for word in words)
    return " ".join(word if plain else shlex.quote(word) for word, plain in zip(words, as_is, strict=True))


def _fill_words(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    return [(fill_script if is_script(words, index) else fill)(word, values) for index, word in enumerate(words)]


def count_processes(argv: Sequence[str], *, on_all_hosts: bool = True) -> int | None:
    """Return the processes that the launcher of a command starts, of one host or of all; None where none is to be seen.

    Source: the command lines of torch.distributed.run, accelerate launch, deepspeed, composer, Slurm's srun and MPI.
    """
    program = find_program(argv)
    if program not in LAUNCHERS:
        return None
    # What stands behind the script is the training's own.
    words = [*itertools.takewhile(lambda word: not word.endswith(".py"), argv), ""]
    found = {name: _find_number(pattern, words) for name, pattern in _COUNTS.items()}
    counts, hosts = found["processes"], found["hosts"] if on_all_hosts else None
    if counts is None and program.startswith("torch"):
        counts = "1"
    numbers = [one for one in (counts, hosts) if one is not None]
    return math.prod(map(int, numbers)) if counts and all(one.isdecimal() for one in numbers) else None


def _find_number(pattern: re.Pattern[str], words: Sequence[str]) -> str | None:
    """Return the value of the first option that is named so, which may be no number (`--nproc-per-node gpu`)."""
    for word, following in itertools.pairwise(words):
        found = pattern.fullmatch(word)
        if found:
            return found[1] or following
    return None


def find_unknown_placeholders(argv: tuple[str, ...]) -> list[str]:
    """Return the words in braces of a command that are no placeholders."""
    return [name for text in argv for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]
