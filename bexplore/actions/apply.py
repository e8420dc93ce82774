"""The edit that writes a run's size and its settings into the user's own file, and its conditions."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bexplore.config import document
from bexplore.config.config import Config
from bexplore.config.dialects.families import FAMILIES
from bexplore.config.dialects.family import Family
from bexplore.config.dialects.recognition import recognise
from bexplore.config.document import dotted_path, is_integer, toml
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.values import Values
from bexplore.config.document.writer import make_fragment, read_values, with_value, without_section
from bexplore.config.variants import find_key_path, get_setting, has_setting
from bexplore.errors import UserInputError
from bexplore.estimate.calibrations import names_this
from bexplore.exploration.emulated import parse_device_name
from bexplore.exploration.setup import add_loader_lengths
from bexplore.host.logs import log
from bexplore.host.machine import processor_name
from bexplore.job import digest_code
from bexplore.job.batching import is_valid_global_batch_size, near_value_message, valid_global_batch_sizes
from bexplore.run import run_directory
from bexplore.run.parts.answer import AnswerPart
from bexplore.run.parts.batch import KeepsBatchSize
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """The numbers of a batch, as one training has them in all of its files. None leaves a number as it is."""

    micro_batch_size: int  # samples of one replica in one pass
    accumulation: int | None  # passes of a step
    global_batch_size: int | None  # samples of a step over all replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A planned change of one file."""

    path: Path  # the file
    before: bytes  # its bytes
    after: bytes  # its bytes with the new values

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
    """
    read = document.read(path)
    text, values = document.read_text(path), Values(read.values)
    found = recognise(read)
    likeliest = found.family if found is not None and found.is_certain else None
    families = [family for family in (likeliest, FAMILIES.get(own_family)) if family is not None]
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
            hint="leave it out of `also`",
        )
    before = path.read_bytes()
    mark = BYTE_ORDER_MARK if before.startswith(BYTE_ORDER_MARK) else b""
    return FileChange(path=path, before=before, after=mark + changed.encode())


def _refuse_tokens(path: Path, family: Family) -> None:
    if family.counts_tokens:
        raise UserInputError(
            f"{path} is of {family.title}, which counts tokens: a second file of it is not written",
            hint="leave it out of `also`, and write its numbers yourself",
        )


class BatchSizeRule(StrEnum):
    """The answer to write where the user's `batch_size` is not valid with the recommended size."""

    KEEP = "keep"  # the fastest size that keeps `batch_size`
    CHANGE = "change"  # the recommended size, and the nearest `batch_size` that is valid with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A `batch_size` that is not valid with the recommended size: one of the two has to change."""

    typed: str  # the user's file and its options, quoted for a shell
    message: str  # the conflict and its place in the file
    batch_size: int  # the user's global batch size
    micro_batch_size: int  # the recommended size
    nearest: int  # the valid global batch size nearest to the user's
    keeps: KeepsBatchSize | None  # the fastest size that keeps `batch_size`; None for none

    def sentence(self, rule: BatchSizeRule) -> str:
        """Return what a rule writes, in words."""
        if rule is BatchSizeRule.CHANGE:
            return f"micro_batch_size {self.micro_batch_size}, batch_size {self.nearest}"
        if self.keeps is None:
            return f"nothing: no size that was run keeps batch_size {self.batch_size}"
        over, free = self.keeps.over_recommended, self.keeps.free_micro_batch_size
        speed = "whose speed is not known" if over is None else f"{over:.2f}x the speed of {free}"
        return f"micro_batch_size {self.keeps.micro_batch_size}, {speed}; batch_size stays {self.batch_size}"

    def refused(self) -> UserInputError:
        """Return the error for a run without a user to choose."""
        keep, change = (f"bexplore apply {self.typed} --{rule}-batch-size" for rule in BatchSizeRule)
        return UserInputError(
            self.message,
            hint=f"{keep} (writes {self.sentence(BatchSizeRule.KEEP)}), or\n"
            f"{change} (writes {self.sentence(BatchSizeRule.CHANGE)})",
        )


def refuse(choice: Choice) -> BatchSizeRule:
    """Raise the error that names both choices."""
    raise choice.refused()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A planned change of the user's file, and of further files of the same training."""

    file: FileChange  # the user's file
    run: Run  # the run that found the values
    answer: AnswerPart | KeepsBatchSize  # the size to write, with its relative performance and confidence
    base_micro_batch_size: int  # the size that the performance is relative to
    batch_size_change: tuple[int, int] | None  # the global batch size before and after; None if it stays
    keeps_section: bool  # whether the new file is another package's and has a section `explore`
    # What is written beside the size, by key of the section `explore`.
    settings: Mapping[str, Any] = field(default_factory=dict)
    estimated: str = ""  # what the answer is, where nothing ran: "estimated for ..., not run"
    further: tuple[FileChange, ...] = ()  # further files in which numbers of the batch stand

    @property
    def files(self) -> tuple[FileChange, ...]:
        """Return the changes of all files."""
        return (self.file, *self.further)

    @property
    def diff(self) -> str:
        """Return all changes as a unified diff; empty where the files have the values already."""
        return "".join(one.diff for one in self.files)

    @property
    def is_change(self) -> bool:
        """Whether any file changes."""
        return any(one.before != one.after for one in self.files)


def plan_edit(
    config: Config,
    *,
    run: Run | None = None,
    batch_size: BatchSizeRule | None = None,
    choose: Callable[[Choice], BatchSizeRule] = refuse,
    drop_section: bool = False,
    force: bool = False,
    also: Sequence[Path] = (),
) -> Edit:
    """Plan the change of a configuration's file, from a run of the same job.

    Args:
        also: Further files of the training, whose numbers of the batch change too.
        run: The run; None for the newest finished one of this job.
        batch_size: The rule where the global batch size is not valid with the recommended size; None calls `choose`.
        drop_section: Remove the section `explore` as well, for a program that refuses keys that are not its own.
        force: Use the run even if the job has changed since.
    """
    config = add_loader_lengths(config)
    chosen = run or _newest_run(config)
    if not force:
        _refuse_another_job(config, chosen)
    result = chosen.result()
    if result is None or result.micro_batch_size is None:
        raise UserInputError(
            f"{chosen.directory} has no recommendation: it is not finished", hint=f"bexplore explore {config.typed}"
        )
    for text in chosen.warn_of_later_probes(result):
        log.warning(text)
    if config.command is not None and result.batch.num_replicas:
        config = config.with_replicas(result.batch.num_replicas)
    answer, new_batch_size = _answer(config, result, batch_size, choose)
    before = _read(config.path)
    text = before.removeprefix(BYTE_ORDER_MARK).decode()
    mark = BYTE_ORDER_MARK if before.startswith(BYTE_ORDER_MARK) else b""
    source = str(config.path)
    if config.command is not None:
        changed = text
        numbers = _list_values_of_command(config, text, answer.micro_batch_size or 0, new_batch_size)
        for path, number in numbers.items():
            changed = with_value(changed, path, number, source=source)
    else:
        changed = with_value(
            text,
            config.request.path,
            written_size(config, answer),
            beside=config.batch_size_path,
            source=source,
        )
        if new_batch_size is not None:
            changed = with_value(changed, config.batch_size_path, new_batch_size, source=source)
    settings = {} if drop_section else settings_to_write(config, result.choice.settings)
    for key, value in settings.items():
        changed = _with_setting(changed, key, value, source=source)
    if drop_section:
        changed = without_section(changed, "explore", source=source)
    return Edit(
        file=FileChange(path=config.path, before=before, after=mark + changed.encode()),
        further=_further(config, also, answer, new_batch_size),
        run=chosen,
        answer=answer.answer if isinstance(answer, RunResult) else answer,
        base_micro_batch_size=result.answer.base_micro_batch_size or 0,
        batch_size_change=None if new_batch_size is None else (config.batch_size or 0, new_batch_size),
        keeps_section=bool(config.recognised) and "explore" in read_values(changed, source=source),
        settings=settings,
        estimated=result.estimate.words if result.estimate else "",
    )


def _further(
    config: Config, paths: Sequence[Path], answer: RunResult | KeepsBatchSize, new_batch_size: int | None
) -> tuple[FileChange, ...]:
    size, batch_size = answer.micro_batch_size or 0, new_batch_size or config.batch_size
    share = size * config.num_replicas
    is_whole = batch_size is not None and batch_size % share == 0
    numbers = BatchNumbers(
        micro_batch_size=size,
        accumulation=batch_size // share if batch_size is not None and is_whole else None,
        global_batch_size=batch_size,
    )
    for path in paths:
        if path.resolve() == config.path.resolve():
            raise UserInputError(f"`also`: {path} is the configuration itself", hint="leave it out")
    return tuple(change_further(path, numbers, own_family=config.layout) for path in paths)


def settings_to_write(config: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a result that the file does not have already, by key of the section `explore`."""
    job = config.job
    return {
        key: value for key, value in settings.items() if not has_setting(key, job) or get_setting(key, job) != value
    }


def _with_setting(text: str, key: str, value: Any, *, source: str) -> str:
    """Return the text with one key of the section `explore`, beside `settings` where it is new."""
    path, beside = find_key_path(key), ("explore", "settings")
    compiling = read_values(text, source=source).get("explore", {}).get("compile")
    if path[1] != "compile" or compiling is None or isinstance(compiling, dict):
        return with_value(text, path, value, beside=beside, source=source)
    # `compile: true` is short for a mapping.
    whole = value if key == "compile.enabled" else {"enabled": compiling, str(path[2]): value}
    return with_value(text, path[:2], whole, source=source)


def _list_values_of_command(
    config: Config, text: str, micro_batch_size: int, new_batch_size: int | None
) -> dict[KeyPath, int]:
    """Return the numbers of a command's file: the size, the accumulation that belongs to it, and a new global batch.

    The global batch is written wherever the file gives it; where the family derives it, the accumulation does.
    """
    file = config.command.file if config.command else None
    sizes = [] if file is None else [key for key in file.keys if key.name == "micro_batch_size"]
    if file is None or not sizes:
        raise UserInputError(
            "the size stands in the command, not in a file", hint="type the command as the summary shows it"
        )
    numbers = {key.path: micro_batch_size * key.factor for key in sizes}
    share = micro_batch_size * config.num_replicas
    batch_size = new_batch_size or config.batch_size
    if batch_size is not None and batch_size % share == 0:
        numbers |= dict.fromkeys(file.paths("accumulation"), batch_size // share)
    if new_batch_size is None:
        return numbers
    given = {
        ("explore", "global_batch_size"): new_batch_size,
        ("explore", "replica_batch_size"): new_batch_size // config.num_replicas,
        config.batch_size_path: new_batch_size * _factor(config, "global_batch_size"),
    }
    values = Values(read_values(text, source=file.name))
    return numbers | {path: number for path, number in given.items() if values.stands_at(path)}


def _factor(config: Config, name: str) -> int:
    """Return by how much a number of the file is larger than its samples; 1 but for files in tokens."""
    file = config.command.file if config.command else None
    return next((key.factor for key in file.keys if key.name == name), 1) if file else 1


def written_size(config: Config, result: RunResult | KeepsBatchSize) -> int:
    """Return the recommended size as the file has it: samples, or tokens for `micro_batch_tokens`."""
    lengths = result.lengths if isinstance(result, RunResult) and config.request.is_in_tokens else None
    in_tokens = lengths and lengths.micro_batch_tokens
    return in_tokens or result.micro_batch_size or 0


def paste(config: Config, size: int, settings: Mapping[str, Any] | None = None) -> str:
    """Return the lines that `plan_edit` would write, and their places; empty where the file is unreadable."""
    source = str(config.path)
    try:
        text = _read(config.path).decode("utf-8-sig")
        values: dict[KeyPath, Any] = {config.request.path: size}
        if config.command is not None and config.command.has_size_in_file:
            present = Values(read_values(text, source=source))
            numbers = _list_values_of_command(config, text, size, None).items()
            values |= {path: one for path, one in numbers if not present.stands_at(path) or present.at(path) != one}
        values |= {find_key_path(key): value for key, value in settings_to_write(config, settings or {}).items()}
        if config.path.suffix == ".toml":
            pairs = ((path[:-1], toml.write_pair(str(path[-1]), value)) for path, value in values.items())
            return "\n".join(f"{pair}  # under [{dotted_path(table)}]" if table else pair for table, pair in pairs)
        pasted = []
        for path, value in values.items():
            (first, *rest), parent = make_fragment(text, path, value, source=source)
            place = f"  # under {dotted_path(parent)}" if parent else ""
            pasted += [f"{first}{place}", *rest]
    except (UserInputError, UnicodeDecodeError):
        return ""
    return "\n".join(pasted)


def write_edit(edit: Edit, target: Path | None = None) -> tuple[Path, ...]:
    """Write the files, the configuration or another one in its place first; return their paths.

    All of them are written beside the present ones before the first is replaced, each in one step.
    """
    for one in edit.files if target is None else edit.further:
        if _read(one.path) != one.before:
            raise UserInputError(f"{one.path} changed meanwhile; nothing was written", hint="run the command again")
    places = [(target or edit.file.path).resolve(), *(one.path.resolve() for one in edit.further)]  # links stay links
    temporaries = [path.with_name(f".{path.name}.{os.getpid()}") for path in places]
    try:
        for temporary, one in zip(temporaries, edit.files, strict=True):
            temporary.write_bytes(one.after)
            shutil.copymode(one.path, temporary)
        for path, temporary in zip(places, temporaries, strict=True):
            temporary.replace(path)
    except OSError as error:
        names = ", ".join(map(str, places))
        raise UserInputError(f"cannot write {names}: {error.strerror}", hint="write another file with -o") from error
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)
    return tuple(places)


def _newest_run(config: Config) -> Run:
    """Return the newest finished run of this job, else the newest of another job, which is refused with its changes.

    Estimates for a device are taken where the configuration names it, and nowhere else.
    """
    folder = run_directory.model_directory(config.mode, config.model_dir)
    finished = [run for run in run_directory.find_runs(folder) if _has_result_for(run, config)]
    if not finished:
        raise UserInputError(
            f"no finished run of this job under {folder}",
            hint=f"bexplore explore {config.typed}, or name a run: `run=RUN`",
        )
    return next((run for run in finished if not _changes(config, run)), finished[0])


def _has_result_for(run: Run, config: Config) -> bool:
    result = run.result()
    if result is None:
        return False
    if result.is_emulated:
        return config.is_emulated or not config.is_estimated
    name = str(config.settings.device_name)
    wanted = (
        (processor_name() if names_this(name) else parse_device_name(name)[1].name) if config.is_estimated else None
    )
    return (str(result.device_info.get("device_name")) if result.is_estimated else None) == wanted


def _refuse_another_job(config: Config, run: Run) -> None:
    changes = _changes(config, run)
    if changes:
        listed = "".join(f"\n  {line}" for line in changes)
        raise UserInputError(
            f"the job of {config.path} has changed since {run.directory}:{listed}",
            hint=f"bexplore explore {config.typed}, or write it anyway: bexplore apply --force {config.typed}",
        )


def _changes(config: Config, run: Run) -> tuple[str, ...]:
    """List the differences between the present file and the explored job; the machine may differ.

    A file that has the settings of the answer already is the explored job, too.
    """
    meta = run.meta()
    changes = _changes_since(config, meta, meta.get("job", {}))
    answer = run.job_of_answer()
    return changes if not changes or answer is None else min(changes, _changes_since(config, meta, answer), key=len)


def _changes_since(config: Config, meta: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[str, ...]:
    before: dict[str, Any] = {
        "job": job,
        "environment": {"code": meta.get("environment", {}).get("code", {})},
    }
    after: dict[str, Any] = {"job": config.job.as_record(), "environment": {"code": digest_code(config.job)}}
    if config.request.is_search and config.request.position is not None:
        # The part of the search specification that bounds the answer; effort, seed and storage do not.
        bounds: dict[str, Any] = {
            "minimum": config.minimum,
            "maximum": config.maximum,
            "candidates": config.candidates,
            "num_replicas": config.num_replicas,
        }
        bounds["memory_budget"] = config.settings.memory_budget
        before["search_specification"] = {name: meta.get("search_specification", {}).get(name) for name in bounds}
        after["search_specification"] = bounds
    return run_directory.differences(before, after)


def _answer(
    config: Config, result: RunResult, rule: BatchSizeRule | None, choose: Callable[[Choice], BatchSizeRule]
) -> tuple[RunResult | KeepsBatchSize, int | None]:
    choice = _choice(config, result)
    if choice is None:
        return result, None
    rule = rule or choose(choice)
    if rule is BatchSizeRule.CHANGE:
        return result, choice.nearest
    if choice.keeps is None:
        raise UserInputError(
            f"no size that was run keeps batch_size {choice.batch_size}",
            hint=f"bexplore explore {config.typed}, which resumes the run",
        )
    return choice.keeps, None


def _choice(config: Config, result: RunResult) -> Choice | None:
    size, given = result.micro_batch_size, config.batch_size
    replicas, rule = config.num_replicas, config.divisibility
    if size is None or given is None or is_valid_global_batch_size(given, size, replicas, rule):
        return None
    keeps = result.batch.keeps_batch_size
    is_kept = keeps is not None and is_valid_global_batch_size(given, keeps.micro_batch_size, replicas, rule)
    sizes = valid_global_batch_sizes(size, replicas, given, rule)
    message = near_value_message(given, size, replicas, rule)
    return Choice(
        typed=config.typed,
        message=f"{dotted_path(config.batch_size_path)}: {message}",
        batch_size=given,
        micro_batch_size=size,
        nearest=min((size.global_batch_size for size in sizes), key=lambda size: abs(size - given)),
        keeps=keeps if is_kept else None,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserInputError(f"cannot read {path}: {error.strerror}") from error
