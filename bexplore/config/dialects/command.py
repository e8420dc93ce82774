"""A job that is the user's own training command, with or without a file of any family."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bexplore.config.command import ACCUMULATION_KEYS, PLACEHOLDERS, Command, CommandFile, unknown_placeholders
from bexplore.config.config import Config, Request, RequestKind
from bexplore.config.document.document import Document, Problems, dotted_path
from bexplore.config.document.reader import KeyPath
from bexplore.config.schema import ExploreSettings, read_settings
from bexplore.errors import close_match
from bexplore.job import CompileSettings, Job

_RESUME_KEY = re.compile(r"(^|[-_.])(resume|resume_from_checkpoint|auto_resume_from_checkpoints)$")
_IS_OFF = ("", "none", "null", "false", "no", "0")
_SECTION = re.compile(r"^explore[ \t]*:.*?(?=^[^\s#]|\Z)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\[explore(\.[^\]]*)?\].*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


def load(problems: Problems, *, text: str | None) -> Config:
    """Return the Config of a training command, or raise one error with every mistake.

    Args:
        problems: Of the file, or of an empty document where the command has none.
        text: The file's text; None for no file.
    """
    document = problems.document
    settings = read_settings(document.values.get("explore"), problems)
    problems.raise_if_any()
    file = None if text is None else _file(problems, text)
    command = Command(
        argv=tuple(settings.command or ()),
        env=settings.env,
        file=file,
        num_replicas=settings.replicas,
        writes_are_fine=settings.writes_are_fine,
        is_typed=bool(document.position(("explore", "command")).override),
    )
    _check(problems, command)
    problems.raise_if_any()
    request = _request(document, file)
    return Config(
        path=document.path,
        layout="command",
        mode=_job(command, settings).mode,
        request=request,
        batch_size=settings.global_batch_size,
        batch_size_path=("explore", "global_batch_size"),
        num_replicas=settings.replicas or 1,
        model_dir="model_dir",
        job=_job(command, settings),
        explore=settings,
        command=command,
        warnings=tuple(problems.warnings),
    )


def _job(command: Command, settings: ExploreSettings) -> Job:
    """Return what decides the program: the command, its variables and its file."""
    model: dict[str, Any] = {"command": list(command.argv), "env": dict(command.env)}
    if command.file is not None:
        model |= {"file": command.file.name, "file_sha256": _digest(command.file.text.encode())}
    if code := {word: _digest(Path(word).read_bytes()) for word in command.argv if _is_code(word)}:
        model["code_sha256"] = code
    replicas = settings.replicas or 1
    return Job(
        workload="command", model=model, num_replicas=replicas, device="auto", compile=CompileSettings(enabled=False)
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _is_code(word: str) -> bool:
    """Return whether a word of the command names a program of Python, whose change is another program."""
    return word.endswith(".py") and Path(word).is_file()


def _file(problems: Problems, text: str) -> CommandFile:
    """Return the user's file without the section of bexplore, and where its size and its accumulation stand."""
    document = problems.document
    section = _TABLE if document.path.suffix == ".toml" else _SECTION
    leaves = [(path, value) for path, value in _leaves(document.values) if path[0] != "explore"]
    sizes = [path for path, value in leaves if _asks(value)]
    if len(sizes) > 1:
        where = ", ".join(dotted_path(path) for path in sizes)
        problems.error(sizes[1], f"more than one value is explore: {where}", "leave the word at the micro-batch size")
    for path, value in leaves:
        if _RESUME_KEY.search(str(path[-1])) and _is_on(value):
            _refuse_resume(problems, path, f"{dotted_path(path)}: {value}")
    is_key = [path for path, value in leaves if path[-1] in ACCUMULATION_KEYS and type(value) is int]
    return CommandFile(
        name=document.path.name,
        text=section.sub("", text),
        size_path=sizes[0] if sizes else None,
        accumulation_paths=tuple(is_key),
    )


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each plain value, and each `{explore: {...}}`, with its path."""
    if isinstance(value, Mapping) and not _asks(value):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    elif path:
        yield path, value


def _asks(value: Any) -> bool:
    is_bounded = (
        isinstance(value, Mapping)
        and set(value) == {"explore"}
        and (value["explore"] is None or isinstance(value["explore"], Mapping))
    )
    return value == "explore" or is_bounded


def _request(document: Document, file: CommandFile | None) -> Request:
    path: KeyPath = ("micro_batch_size",) if file is None or file.size_path is None else file.size_path
    written = document.get(path)
    bounds = (written.get("explore") or {}) if isinstance(written, Mapping) else {}
    return Request(
        kind=RequestKind.EXPLORE,
        minimum=bounds.get("min"),
        maximum=bounds.get("max"),
        path=path,
        position=document.position(path) if document.has(path) else None,
    )


def _check(problems: Problems, command: Command) -> None:
    """Note what would make every start useless or harmful."""
    place: KeyPath = () if command.is_typed else ("explore", "command")
    used = command.placeholders
    for name in unknown_placeholders(command.argv):
        near = close_match(name, PLACEHOLDERS, cutoff=0.75)
        if near is not None:
            problems.error(place, f"{{{name}}} is no placeholder", f"did you mean {{{near}}}?")
    has_size = "micro_batch_size" in used or (command.file is not None and command.file.size_path is not None)
    if not has_size:
        problems.error(
            place,
            "nothing of the command changes with the micro-batch size",
            "write {micro_batch_size} where the command takes it, or micro_batch_size: explore in its file",
        )
    if command.file is not None and "config" not in used and command.file.size_path is not None:
        problems.error(
            place, f"the command does not read {command.file.name}", "write {config} where the command takes the file"
        )
    if command.file is None and "config" in used:
        problems.error(place, "{config} is used, and no file is given", "bexplore explore CONFIG -- COMMAND {config}")
    if "output_dir" not in used and not command.writes_are_fine:
        problems.error(
            place,
            "the command does not take {output_dir}, so each start may write over your checkpoints and logs",
            "write {output_dir} where the command takes its output folder, or consent: --writes-are-fine",
        )
    _check_resume(problems, command, place)


def _check_resume(problems: Problems, command: Command, place: KeyPath) -> None:
    words = list(command.argv)
    for index, word in enumerate(words):
        name, equals, value = word.lstrip("-+").partition("=")
        after = value if equals else (words[index + 1] if index + 1 < len(words) else "")
        is_flag = word.startswith("-") and not equals and after.startswith("-")
        if (
            _RESUME_KEY.search(name.replace("-", "_"))
            and (equals or word.startswith("-"))
            and (is_flag or _is_on(after))
        ):
            _refuse_resume(problems, place, word if equals or is_flag else f"{word} {after}")


def _is_on(value: Any) -> bool:
    return str(value).strip().lower() not in _IS_OFF


def _refuse_resume(problems: Problems, path: KeyPath, shown: str) -> None:
    problems.error(
        path,
        f"{shown} resumes from a checkpoint: each probe would load it, and its state would decide the steps",
        "leave it out while you explore; the size holds for the resumed training too",
    )
