"""The file of a training job: its values, their places, overrides, what is wrong with it, readers of single values."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from bexplore.config.document import toml
from bexplore.config.document.reader import (
    MAX_DEPTH,
    WORD,
    KeyPath,
    Position,
    YamlReader,
    is_word,
    name_kind,
    quote,
    read_yaml,
    show,
)
from bexplore.errors import UserInputError, close_match, printable
from bexplore.host.secret_values import MASK, hidden
from bexplore.job.batching import MAX_SAMPLES

MAX_FILE_BYTES = 2 * 2**20  # public files that list their data have 300 KiB, which are read in 0.3 s
_OF_KNOWN_FORMAT = (".yaml", ".yml", ".json", ".toml")  # any other may hold YAML, as .cfg and .conf of some programs do
_OF_SHELLS = (".sh", ".bash")
# What programs have and configurations in Python have not, which import libraries of theirs at most.
_IN_PROGRAMS = re.compile(r"^\s*(?:import|from) (?:torch|argparse|click|hydra|typer)\b|^if __name__\b", re.MULTILINE)
_PLAIN_IN_SHELL = re.compile(r"[\w@%+=:,./{}-]+")
_LIKE_A_SIZE = re.compile(r"batch|micro|bsz|(?:^|_)m?bs(?:$|_)", re.IGNORECASE)  # names of sizes in any program
_NEAR_KEY = 0.8  # similarity from which a new key, or the name of a file, is taken for a misspelt one


@dataclass(slots=True, kw_only=True)
class Document:
    """The values of a file and the position of each; warnings are on dubious text, such as a key that stands twice."""

    path: Path
    values: dict[str, Any]
    positions: dict[KeyPath, Position] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    header: str = ""  # comments above the first key, without their signs

    def get(self, path: Sequence[str | int], default: Any = None) -> Any:
        """Return the value at a path of keys and indices; `default` where there is none."""
        value: Any = self.values
        for key in path:
            is_key = isinstance(value, dict) and key in value
            is_index = isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value)
            if not is_key and not is_index:
                return default
            value = value[key]
        return value

    def has(self, path: Sequence[str | int]) -> bool:
        """Return whether something stands at a path; null counts."""
        missing = object()
        return self.get(path, missing) is not missing

    def dotted_keys(self) -> list[str]:
        """Return every key that holds a plain value, dotted."""
        return [dotted_path(path) for path in self.positions if not isinstance(self.get(path), dict | list)]

    def position(self, path: Sequence[str | int]) -> Position:
        """Return where a path stands, or its nearest parent that does; without a line where none does."""
        for length in range(len(path), 0, -1):
            position = self.positions.get(tuple(path[:length]))
            if position is not None:
                return position
        return Position()

    def where(self, path: Sequence[str | int]) -> str:
        """Return `file:line` of a path; `--set ...` for a value of the command line."""
        position = self.position(path)
        if position.override:
            return f"--set {position.override}"
        return f"{self.path}:{position.line}" if position.line is not None else f"{self.path}"

    def apply_override(self, override: Override) -> None:
        """Set one value, as `--set a.b=c` does, and make what is missing on the way.

        A path may go through list indices (`a.0.b`) and, in a list of single-key mappings, through the key
        (`callbacks.ScopedTrainFlags.x`). Keys that contain dots are found as they stand in the file.
        """
        self.put(self._resolve(override), override)

    def put(self, path: KeyPath, override: Override) -> None:
        """Set the value of an override at a path of keys and indices, and make what is missing on the way."""
        container: Any = self.values
        for depth, key in enumerate(path):
            if not isinstance(container, dict | list if isinstance(key, int) else dict):
                place = dotted_path(path[:depth])
                raise UserInputError(f"{override.source}: {place} is {name_kind(container)}, not a mapping")
            if depth == len(path) - 1:
                _assign(container, key, override.value)
            elif _child(container, key) is None:
                _assign(container, key, [] if isinstance(path[depth + 1], int) else {})
            container = _child(container, key)
        for known in [known for known in self.positions if known[: len(path)] == path]:
            del self.positions[known]
        self.positions[path] = Position(override=override.source.removeprefix("--set "))

    def _resolve(self, override: Override) -> KeyPath:
        parts = list(override.parts)
        path: list[str | int] = []
        value: Any = self.values
        while parts:
            key: str | int | None
            if isinstance(value, list):
                key, used = _list_step(value, parts[0])
            elif value is None or isinstance(value, dict):
                key, used = _mapping_step(value or {}, parts)
                self._notice_new_key(value or {}, key, path, override)
            else:
                raise UserInputError(f"{override.source}: {dotted_path(path)} is {name_kind(value)}, not a mapping")
            if key is None:
                raise UserInputError(f'{override.source}: the list {dotted_path(path)} has no element "{parts[0]}"')
            path.append(key)
            parts = parts[used:]
            value = _child(value, key)
            if value is None and key == "callbacks":
                value = []
        return tuple(path)

    def _notice_new_key(self, container: dict[str, Any], key: Any, path: list[str | int], override: Override) -> None:
        """Warn of a new key that resembles one that is there: it is probably a slip."""
        near = close_match(key, container, cutoff=_NEAR_KEY)
        if key not in container and near and path[:1] != ["explore"]:
            section = dotted_path(path) or "the file"
            self.warnings.append(f"{override.source}: {quote(key)} is new in {section}; did you mean {quote(near)}?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One `--set a.b=c`, its value read as YAML where no placeholder begins it."""

    parts: tuple[str, ...]
    value: Any
    source: str  # as messages show it

    @classmethod
    def parse(cls, text: str) -> Override:
        """Read `a.b=c`."""
        dotted, equals, written = text.partition("=")
        if dotted.count(".") >= MAX_DEPTH:
            raise UserInputError(
                f"--set {quote(dotted)} names {dotted.count('.') + 1} levels of keys; {MAX_DEPTH} are the most"
            )
        parts = tuple(part.strip() for part in dotted.split("."))
        if not equals or not all(parts):
            raise UserInputError(f'--set needs key=value, not "{show(hidden(text))}"', hint="type --set explore.seed=1")
        source = f"--set {show(_without_values(dotted, written))}"
        is_placeholder = re.match(r"\{\w+\}", written)  # of a training command; to YAML it is a mapping
        return cls(parts=parts, value=written if is_placeholder else YamlReader(source).read(written), source=source)


def _without_values(dotted: str, written: str) -> str:
    if dotted.strip() == "explore.env" or dotted.strip().startswith("explore.env."):
        return f"{dotted}={MASK}"
    return hidden(f"{dotted}={written}")


@dataclass(slots=True, kw_only=True)
class Problems:
    """All mistakes of a document, so that one error lists them; its warnings do not stop anything."""

    document: Document
    found: list[tuple[int, str, str, str]] = field(default_factory=list)  # line, place, rule with the value, hint
    warnings: list[str] = field(default_factory=list)

    def error(self, path: Sequence[str | int], rule: str, hint: str = "") -> None:
        """Note a mistake at a path."""
        problem = (self.document.position(path).line or 0, self.document.where(path), rule, hint)
        if problem not in self.found:
            self.found.append(problem)

    def warn(self, path: Sequence[str | int], text: str) -> None:
        """Note something dubious at a path."""
        line = printable(f"{self.document.where(path)}: {text}")
        if line not in self.warnings:
            self.warnings.append(line)

    def raise_if_any(self) -> None:
        """Raise one UserInputError that lists all mistakes, in the order of the file."""
        if len(self.found) == 1:
            _, where, rule, hint = self.found[0]
            raise UserInputError(f"{where}: {rule}", hint=hint)
        if self.found:
            lines = [f"{len(self.found)} problems in {self.document.path}"]
            for _, where, rule, hint in sorted(self.found, key=lambda problem: problem[0]):
                lines.append(f"  {where}: {rule}")
                lines.extend([f"      {hint}"] if hint else [])
            raise UserInputError("\n".join(lines))


def read(path: Path, *, argv: Sequence[str] = ()) -> Document:
    """Read a file whose top level is a mapping; the words of a typed command that takes it are for its error."""
    return parse(path, read_text(path), argv=argv)


def parse(path: Path, text: str, *, argv: Sequence[str] = ()) -> Document:
    """Return the document of a file's text, whose top level is a mapping."""
    is_script = path.suffix == ".py" and _IN_PROGRAMS.search(text) and "LazyCall" not in text
    if is_script or path.suffix in (*_OF_SHELLS, ".ipynb"):
        raise _refuse_program(path)
    if path.suffix == ".py" or (path.suffix not in _OF_KNOWN_FORMAT and not _holds_mapping(path, text)):
        raise _refuse_code(path, text, argv)
    if path.suffix == ".toml":
        table, places = toml.read(text, str(path))
        return Document(path=path, values=_with_lower_word(table), positions=places, header=_read_header(text))
    values, positions, warnings = read_yaml(text, str(path))
    if values is None or values == {}:
        raise UserInputError(f"{path} is empty", hint="start from an example: bexplore init --example quickstart")
    if not isinstance(values, dict):
        raise UserInputError(f"{path}:1: the top level must be a mapping of sections, not {name_kind(values)}")
    return Document(
        path=path,
        values=_with_lower_word(values),
        positions=dict(positions),
        warnings=list(warnings),
        header=_read_header(text),
    )


def _holds_mapping(path: Path, text: str) -> bool:
    """Return whether a text is YAML or JSON, which a file of sections and `key = value` is not."""
    try:
        return isinstance(read_yaml(text, str(path))[0], dict)
    except UserInputError:
        return False


def _with_lower_word(value: Any, key: Any = "") -> Any:
    """Return a copy of the values with the word in lower case at each key that is named as a batch size may be."""
    if isinstance(value, dict):
        return {inner_key: _with_lower_word(inner, inner_key) for inner_key, inner in value.items()}
    if isinstance(value, list):
        return [_with_lower_word(inner, key) for inner in value]
    return WORD if is_word(value) and _LIKE_A_SIZE.search(str(key)) else value


def _refuse_program(path: Path) -> UserInputError:
    """Return the error of a file that is run itself, with the line that leads to its command."""
    name = shlex.quote(str(path))
    if path.suffix in _OF_SHELLS:
        start = f"bexplore explore -- bash {name} {{micro_batch_size}} {{output_dir}}"
        hint = f"let it take the size as $1 and its output folder as $2, and type: {start}"
    else:
        hint = f"write the file with its command: bexplore init {name}"
    return UserInputError(f"{path} is a program, and no configuration", hint=hint)


def _refuse_code(path: Path, text: str, argv: Sequence[str]) -> UserInputError:
    """Return the error of a configuration that is a program or of no known format, with the way by the command line.

    Sources: `--cfg-options` of mmengine, mmcv and xtuner; detectron2's lazy overrides; nanoGPT's configurator.
    """
    named = shlex.quote(str(path))
    plain = f"python train.py {named}"
    line = f"{plain} --batch_size={{micro_batch_size}} --out_dir={{output_dir}}"
    if path.suffix != ".py":  # lines of `key = value`, as configargparse reads them
        plain = f"python train.py --config {named}"
        line = f"{plain} --batch_size {{micro_batch_size}} --out {{output_dir}}, with the names of your program"
    if "train_dataloader" in text or "data = dict(" in text:
        key = "train_dataloader.batch_size" if "train_dataloader" in text else "data.samples_per_gpu"
        start = "xtuner train" if "xtuner" in text else "python tools/train.py"
        line = f"{start} {named} --cfg-options {key}={{micro_batch_size}} --work-dir {{output_dir}}"
    elif "LazyCall" in text or "dataloader.train" in text:
        options = "dataloader.train.total_batch_size={micro_batch_size} train.output_dir={output_dir}"
        line = f"python tools/lazyconfig_train_net.py --config-file {named} {options}"
    refused = f"{path} is not YAML, JSON or TOML, so its copies cannot hold each size"
    takes_copy = any("{config}" in word for word in argv)
    if not argv or takes_copy:
        refused += ", and {config} is not for it"
    elif path.suffix == ".py" and line.startswith(plain):
        return UserInputError(refused, hint=_tell_variable(path, text, argv))
    if re.search(rf"\b{WORD}\b", text) and takes_copy:
        copy = f"{{output_dir}}/{path.name}"
        edit = rf'sed "s/\b{WORD}\b/{{micro_batch_size}}/" {named}'
        # Braces need no quotes; a shell would take them into the inner ones.
        start = _quote_words(word.replace("{config}", copy) for word in argv)
        line = shlex.quote(f"{edit} > {copy}; exec {start}")
        return UserInputError(refused, hint=f"let the command make the copy: bexplore explore -- bash -c {line}")
    by_variable = f"--env SIZE={{micro_batch_size}} -- {plain} --out_dir={{output_dir}}"
    return UserInputError(
        refused,
        hint=f"give the size by an option: bexplore explore -- {line}\n"
        f'or by a variable that it reads, as os.environ["SIZE"]: bexplore explore {by_variable}',
    )


def _tell_variable(path: Path, text: str, argv: Sequence[str]) -> str:
    """Return what lets a typed command take its size, which a module of Python holds, from a variable."""
    lines = text.splitlines()
    number = next((at for at, line in enumerate(lines, start=1) if re.search(rf"=.*\b{WORD}\b", line)), None)
    where = f"where {path} has the size"
    if number is not None:
        where = f"in place of {WORD} in {path}:{number}"
    imported = "" if re.search(r"^import os\b", text, re.MULTILINE) else ", and import os there"
    line = f"bexplore explore --env MICRO_BATCH_SIZE={{micro_batch_size}} -- {_quote_words(argv)}"
    return f'write int(os.environ["MICRO_BATCH_SIZE"]) {where}{imported}, then type it without the file:\n{line}'


def _quote_words(words: Iterable[str]) -> str:
    return " ".join(word if _PLAIN_IN_SHELL.fullmatch(word) else shlex.quote(word) for word in words)


def _read_header(text: str) -> str:
    lines = itertools.takewhile(lambda line: not line.strip() or line.startswith(("#", "---")), text.splitlines())
    return "\n".join(line.lstrip("# ") for line in lines)


def dotted_path(path: Sequence[str | int]) -> str:
    """Return a path as people write it."""
    return ".".join(str(key) for key in path)


def read_text(path: Path) -> str:
    """Read the text of a file, never more than the limit."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError:
        raise UserInputError(
            f"{path} is a folder, not a file", hint="name the YAML file in it; {config_dir} is its folder in a command"
        ) from None
    except FileNotFoundError:
        near = _find_near_file(path)
        hint = "write one to try: bexplore init --example quickstart" if near is None else f"did you mean {near}?"
        raise UserInputError(f"there is no file {path}", hint=hint) from None
    except (OSError, ValueError) as error:
        raise UserInputError(f"{path} cannot be read: {error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise UserInputError(
            f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB; no configuration is",
            hint="name the YAML file of the training job",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserInputError(f"{path} is not text: byte {error.start} is not UTF-8") from None


def _find_near_file(path: Path) -> Path | None:
    """Return the file of the same folder whose name is nearest to a misspelt one; None where none is near."""
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.is_file()]
    except OSError:
        return None
    near = close_match(path.name, names, _NEAR_KEY)
    return path.with_name(near) if near else None


def _child(container: Any, key: str | int) -> Any:
    if isinstance(container, list):
        return container[key] if isinstance(key, int) and key < len(container) else None
    return container.get(key) if isinstance(container, dict) else None


def _assign(container: Any, key: str | int, value: Any) -> None:
    """Set an element of a mapping or a list; the index behind the last appends."""
    if isinstance(container, list) and key == len(container):
        container.append(value)
    else:
        container[key] = value


def _list_step(values: list[Any], part: str) -> tuple[int | None, int]:
    """Return the index that a part of a path means in a list, and how many parts it takes (0: an element's key).

    A key that no element has means a new element behind the last; None where the list does not hold mappings.
    """
    if part.isdecimal() and int(part) < len(values):
        return int(part), 1
    for index, element in enumerate(values):
        if isinstance(element, dict) and part in element:
            return index, 0
    if part.isdecimal() or not all(isinstance(element, dict) for element in values):
        return None, 1
    return len(values), 0


def _mapping_step(values: dict[str, Any], parts: list[str]) -> tuple[str, int]:
    """Return the key that the first parts of a path mean: the longest that is there, else the first part.

    A flag such as `csx.performance.micro_batch_size` is one key of its callback, whether it stands there yet or not.
    """
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in values:
            return ".".join(parts[:length]), length
    length = len(parts) if parts[0] == "csx" else 1
    return ".".join(parts[:length]), length


_NEAR_MISS = 0.85  # similarity from which a key is taken for a misspelt one; lower values catch real foreign keys

_NEAR_BOUND = 0.4  # similarity from which a key is taken for min or max; "minimum" has 0.6, "lower" none


def as_flag(value: Any) -> bool | None:
    """Return true and false, and what YAML 1.1 takes for them; None for anything else.

    Most training tools read YAML 1.1, where `yes` and `off` are truth values; in YAML 1.2 they are texts.
    """
    if isinstance(value, bool):
        return value
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower()) if isinstance(value, str) else None


def as_number(value: Any) -> Any:
    """Return the number in a quoted text; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def is_integer(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_flag(problems: Problems, path: KeyPath, default: bool) -> bool:
    """Read a truth value; the default where it is absent, null, or wrong, which is noted."""
    value = problems.document.get(path)
    if value is None:
        return default
    flag = as_flag(value)
    if flag is None:
        problems.error(path, f"{path[-1]} must be true or false, not {quote(value)}")
        return default
    return flag


def read_positive(problems: Problems, path: KeyPath, largest: int = MAX_SAMPLES) -> int | None:
    """Read a positive integer; None where it is absent, null, or wrong, which is noted."""
    value = problems.document.get(path)
    if value is None:
        return None
    if is_integer(value) and 1 <= value <= largest:
        return int(value)
    hint = f"no sensible value is above {largest}" if is_integer(value) and value > 0 else "type 1 or more"
    problems.error(path, f"{path[-1]} must be a positive integer, not {quote(value)}", hint)
    return None


def read_number(problems: Problems, path: KeyPath, default: float) -> float:
    """Read a finite number, quoted or not; the default where it is absent, null, or wrong, which is noted."""
    value = as_number(problems.document.get(path))
    if value is None:
        return default
    if not is_number(value):
        problems.error(path, f"{path[-1]} must be a number, not {quote(value)}")
        return default
    return float(value)


def read_bounds(problems: Problems, path: KeyPath) -> tuple[int | None, int | None]:
    """Read `{min: N, max: M}`, either of which may be missing."""
    bounds = problems.document.get(path)
    if bounds is None:
        return None, None
    if not isinstance(bounds, dict):
        problems.error(path, f"explore must be {{min: N, max: M}}, not {quote(bounds)}")
        return None, None
    for key in bounds:
        if key not in ("min", "max"):
            near = close_match(key, ["min", "max"], cutoff=_NEAR_BOUND)
            hint = f'did you mean "{near}"?' if near else "known here: min, max"
            problems.error((*path, key), f"unknown key {quote(key)} under explore", hint)
    minimum, maximum = read_positive(problems, (*path, "min")), read_positive(problems, (*path, "max"))
    if minimum is not None and maximum is not None and minimum > maximum:
        problems.error((*path, "min"), f"min {minimum} is above max {maximum}", f"type min: {maximum} or less")
        return None, None
    return minimum, maximum


def require_mapping(problems: Problems, path: KeyPath) -> None:
    """Note a section that is neither a mapping nor null nor absent."""
    value = problems.document.get(path)
    if value is not None and not isinstance(value, dict):
        problems.error(path, f"{path[-1]} must be a mapping, not {name_kind(value)}")


def notice_near_misses(problems: Problems, path: KeyPath, known: Sequence[str]) -> None:
    """Warn of unread keys that resemble a read key that is absent."""
    section = problems.document.get(path)
    if not isinstance(section, dict):
        return
    for key in section:
        near = close_match(key, known, cutoff=_NEAR_MISS)
        if key not in known and near is not None and near not in section:
            problems.warn((*path, key), f"{quote(key)} is not read; did you mean {quote(near)}?")
