"""A job that is the user's own training command, with or without a file of any family."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bexplore.config.code_keys import refuse_usual_command
from bexplore.config.command import (
    NUMBERS,
    PLACEHOLDERS,
    Command,
    CommandFile,
    FileKey,
    count_processes,
    find_unknown_placeholders,
    is_placeholder,
    is_script,
)
from bexplore.config.config import Config, RequestKind, SizeRequest
from bexplore.config.dialects.family import LAUNCHERS, Numbers, add_launcher, find_sizes
from bexplore.config.dialects.own_file import suggest_command
from bexplore.config.dialects.recognition import FamilyFile
from bexplore.config.dialects.recognition import count_processes as count_processes_of_file
from bexplore.config.document import Document, Problems, dotted_path, is_integer, read_bounds
from bexplore.config.document.reader import KeyPath, quote
from bexplore.config.document.writer import without_section
from bexplore.config.schema import ExploreSettings, read_settings
from bexplore.config.workload import read_lengths
from bexplore.errors import close_match
from bexplore.host.secret_values import MASK, hidden, hidden_record, hidden_words, is_secret_name, keyed_digest
from bexplore.job import CompileSettings, Job

# Keys of a file, and options, that hold the accumulation. Sources: `TrainingArguments` of transformers; Lightning's
# `Trainer`.
_ACCUMULATION_KEYS = ("gradient_accumulation_steps", "accumulate_grad_batches")
# Keys with which a file names those that it extends. Sources: fvcore and mmengine (`_base_`), Hydra (`defaults`), and
# the loaders of LitGPT, PaddleDetection and OpenPCDet.
_LINKS = ("_base_", "_base_config_", "base_config", "includes", "include", "extends", "defaults", "inherit_from")
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
_NEED_QUOTES = (".json", ".jsonc", ".toml")  # formats in which a placeholder without quotes is no value
_LONGEST_NAME = 4096  # characters of a path on Linux: PATH_MAX
# An option, an override of Hydra or a variable of that name, without its leading signs.
_ACCUMULATION_WORD = re.compile(
    rf"(?:[\w.]+\.)?(?:{'|'.join(_ACCUMULATION_KEYS)})(?:=(?P<value>.*))?", re.DOTALL | re.IGNORECASE
)


def load(
    problems: Problems,
    *,
    text: str | None,
    own: FamilyFile | None = None,
    written_size: Any = None,
    allow_code: bool = True,
) -> Config:
    """Return the Config of a training command, or raise one error with every mistake.

    Args:
        problems: Of the file, or of an empty document where the command has none.
        text: The file's text; None for no file.
        own: The file's numbers by its family; None where no family is recognised.
        written_size: Micro-batch size of the file where the command line replaces it.
        allow_code: False refuses the command, whether the file, the command line or the family names it.
    """
    document = problems.document
    settings = read_settings(document.values.get("explore"), problems, allow_code=allow_code)
    if not allow_code and own is not None and settings.command is None:
        refuse_usual_command(problems, own.size_path, own.family.title)
    _refuse_other_settings(problems, settings)
    problems.raise_if_any()
    numbers = _read_numbers(settings, own, written_size)
    replica_batch_size = _read_replica_batch_size(problems, settings, own, numbers, written_size)
    if replica_batch_size is not None:
        total = replica_batch_size * (numbers.num_replicas or 1)
        numbers = dataclasses.replace(numbers, global_batch_size=total)
    argv = tuple(settings.command or ()) or _find_usual_command(problems, own, settings, numbers)
    fixed = _find_fixed_accumulation(argv)
    command = Command(
        sample_lengths=_read_sample_lengths(problems, settings),
        argv=argv,
        env=settings.env,
        file=None
        if text is None
        else _make_file(problems, text, own, fixed, takes_folder=_takes_folder(argv, settings)),
        num_replicas=numbers.num_replicas,
        accumulation=fixed or _find_accumulation_of_file(document, own),
        writes_are_fine=settings.writes_are_fine,
        is_typed=bool(document.position(("explore", "command")).override),
    )
    is_of_launcher = bool(argv) and numbers.num_replicas is None
    if is_of_launcher:
        command, numbers = _assume_replicas(problems, command, numbers, replica_batch_size)
    request = _read_request(problems, own, command.file)
    if request.is_search:
        _check_command(problems, command, own)
    problems.raise_if_any()
    job = _make_job(command, numbers, own, document)
    return Config(
        path=document.path,
        layout="command" if own is None else own.family.name,
        mode=job.mode,
        request=request,
        batch_size=numbers.global_batch_size,
        batch_size_path=(own.places.get("global_batch_size") if own else None) or ("explore", "global_batch_size"),
        has_replica_batch_size=replica_batch_size is not None,
        num_replicas=numbers.num_replicas or 1,
        model_dir=_name_results(document.path if text is not None else None, argv),
        job=job,
        settings=settings,
        command=command,
        recognised="" if own is None else own.why,
        num_replicas_started=command.num_replicas if is_of_launcher else None,
        warnings=(*problems.warnings, *_describe_probing(document, command)),
    )


def _name_results(path: Path | None, argv: Sequence[str]) -> str:
    """Return the name of the folder of results: that of the file, else of the script, module or program."""
    scripts = re.findall(r"([\w.-]+)\.(?:py|sh)(?![\w.-])", " ".join(argv))  # in a command that a shell gets, too
    modules = [word for before, word in itertools.pairwise(argv) if before == "-m"][-1:]  # a launcher stands before it
    programs = [Path(word).name for word in argv[:1]]
    found = path.name.removesuffix(path.suffix).removesuffix(".explore") if path else ""
    name = next((one for one in (found, *scripts, *modules, *programs) if one.strip(".")), "command")
    return re.sub(r"[^\w.-]", "_", name)


def _assume_replicas(
    problems: Problems, command: Command, numbers: Numbers, replica_batch_size: int | None
) -> tuple[Command, Numbers]:
    """Take the processes of the command's launcher for the replicas, where a number depends on them, and say so.

    Where none are to be seen, a start is given the numbers of one replica, and shows whether that is true.
    """
    is_fixed = numbers.global_batch_size is not None and replica_batch_size is None
    if not command.needs_replicas and not is_fixed:
        return command, numbers
    found = count_processes(command.argv)
    if found is None and command.needs_replicas:  # else no start depends on it, and the first one shows it
        told = "1 is assumed, which the first start checks"
        problems.warn((), f"the number of replicas is not given: {told}; `replicas=N` sets another")
    if found is not None:
        total = numbers.global_batch_size if replica_batch_size is None else replica_batch_size * found
        numbers = dataclasses.replace(numbers, num_replicas=found, global_batch_size=total)
    return dataclasses.replace(command, num_replicas=found), numbers


# Keys of the section that tell how bexplore builds a job itself.
_OF_BUILT_JOBS = (
    "precision",
    "activation_checkpointing",
    "checkpointed_modules",
    "activation_memory_budget",
    "optimizer",
    "compile",
    "torch",
)


def _refuse_other_settings(problems: Problems, settings: ExploreSettings) -> None:
    of_training = "remove it, and set it in the training: a training command decides this itself"
    hints = dict.fromkeys((name for name in _OF_BUILT_JOBS if name in settings.model_fields_set), of_training) | {
        "settings": "remove it, and explore the command with each setting in turn; `model_dir` keeps the runs apart",
        "parallelism": "remove it: a training command decides itself how its ranks share the work",
    }
    for name, hint in hints.items():
        if getattr(settings, name) is not None:
            problems.error(("explore", name), f"explore.{name} does not work with training commands", hint)
    if settings.launcher is not None and settings.launcher not in LAUNCHERS:
        near = close_match(settings.launcher, LAUNCHERS)
        hint = f"did you mean {near}?" if near else f"known here: {', '.join(LAUNCHERS)}"
        problems.error(("explore", "launcher"), f"{quote(settings.launcher)} is no launcher of a command", hint)


def _read_sample_lengths(problems: Problems, settings: ExploreSettings) -> tuple[int, ...]:
    """Return the length of each sample of the command's data set, in its order; none where they are not given."""
    options = settings.lengths
    if options is None:
        return ()
    place: KeyPath = ("explore", "lengths")
    for name in sorted(options.model_fields_set - {"values", "file", "column"}):
        key = {"source": "from"}.get(name, name)
        problems.error(
            (*place, key),
            f"explore.lengths.{key} does not work with training commands: they make batches of their own data",
            "give the length of each sample, in the order of the data set, by file or values",
        )
    found = None if options.source or options.quantiles else read_lengths(problems, options)
    return () if found is None else tuple(found[0].tolist())


def _read_numbers(settings: ExploreSettings, own: FamilyFile | None, written_size: Any) -> Numbers:
    """Return the numbers of the file; those of the section `explore` go before, and a size that is replaced counts."""
    numbers = Numbers() if own is None else own.numbers
    given = {"num_replicas": settings.replicas, "global_batch_size": settings.global_batch_size}
    numbers = dataclasses.replace(numbers, **{name: number for name, number in given.items() if number is not None})
    if own is not None and is_integer(written_size) and numbers.micro_batch_size is None:
        size = int(written_size) // own.tokens_of_a_sample
        steps = numbers.accumulation or (1 if numbers.global_batch_size is None else None)
        before = dataclasses.replace(numbers, micro_batch_size=size, accumulation=steps).solved()
        return dataclasses.replace(before, micro_batch_size=None, accumulation=numbers.accumulation)
    return numbers


def _read_replica_batch_size(
    problems: Problems, settings: ExploreSettings, own: FamilyFile | None, numbers: Numbers, written_size: Any
) -> int | None:
    """Return the samples of one replica in a step, where they are fixed and the global batch is not."""
    given = settings.replica_batch_size
    if given is not None and numbers.global_batch_size is not None:
        problems.error(
            ("explore", "replica_batch_size"),
            f"the global batch size {numbers.global_batch_size} is fixed already",
            "give one of the two",
        )
        return None
    if given is not None or own is None or numbers.global_batch_size is not None or not is_integer(written_size):
        return given
    return int(written_size) // own.tokens_of_a_sample * (numbers.accumulation or 1)


def _find_usual_command(
    problems: Problems, own: FamilyFile | None, settings: ExploreSettings, numbers: Numbers
) -> tuple[str, ...]:
    if own is None:
        return ()
    num_processes = settings.processes or count_processes_of_file(own) or numbers.num_replicas or 1
    family, launcher = own.family, settings.launcher
    program = family.find_program(own.values, num_processes)
    if program is None or not program.is_certain:
        return ()
    if launcher is None and (program.words and (num_processes == 1 or not program.launched)):
        return program.words
    if not program.launched:
        problems.error(
            ("explore", "launcher"),
            f"{family.title} starts its own processes, so launcher: {launcher} does not go with it",
            f"remove it; the command is: {' '.join(program.words)}",
        )
        return program.words
    return add_launcher(launcher or "torchrun", num_processes, program.launched)


def _make_job(command: Command, numbers: Numbers, own: FamilyFile | None, document: Document) -> Job:
    words = hidden_words(command.argv, by_value=False)
    model: dict[str, Any] = {
        "command": words,
        "env": {name: _hide_value(name, text) for name, text in command.env.items()},
    }
    if command.file is not None:
        batch = {key.path for key in command.file.keys}
        rest = {dotted_path(path): value for path, value in _find_leaves(document.values) if path not in batch}
        own_keys = {name: value for name, value in rest.items() if name.partition(".")[0] != "explore"}
        own_keys = hidden_record(own_keys, by_value=False)
        values = json.dumps(own_keys, sort_keys=True, default=str)
        model |= {"file": command.file.name, "values_sha256": _digest(values.encode())}
    if own is not None:
        model |= {"family": own.family.name, "memory": own.memory()}
    if command.sample_lengths:
        model["sample_lengths_sha256"] = _digest(json.dumps(command.sample_lengths).encode())
    if code := {word: _digest(Path(word).read_bytes()) for word in command.argv if _is_script_of_python(word)}:
        model["code_sha256"] = code
    return Job(
        workload="command",
        model=model,
        num_replicas=numbers.num_replicas or 1,
        sequence_length=numbers.sequence_length,
        device="auto",
        compile=CompileSettings(enabled=False),
    )


def _hide_value(name: str, text: str) -> str:
    """Return what stands for a variable's value where jobs are compared; another password is the same job."""
    if is_placeholder(text):
        return text
    return MASK if is_secret_name(name) else keyed_digest(hidden(text, by_value=False))


def _describe_probing(document: Document, command: Command) -> Iterator[str]:
    probing = command.file.probing if command.file is not None else {}
    for path, value in probing.items():
        if document.position(path).override:
            continue  # the user has typed it
        yield f"{dotted_path(path)} is {str(value).lower()} in each start, so that the requested size runs"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _is_script_of_python(word: str) -> bool:
    return word.endswith(".py") and Path(word).is_file()


def _takes_folder(argv: Sequence[str], settings: ExploreSettings) -> bool:
    return any("{config_dir}" in text for text in (*argv, *settings.env.values()))


def _make_file(
    problems: Problems, text: str, own: FamilyFile | None, fixed_accumulation: int | None, *, takes_folder: bool
) -> CommandFile:
    """Return the user's file without the section of bexplore, and its keys that change from start to start.

    Where a word of the command fixes the accumulation, the file's own stays as it is.
    """
    document = problems.document
    sizes = [path for path, value in _find_own_leaves(document) if _is_word(value)]
    _check_place_of_word(problems, sizes, own)
    if own is None:
        keys = [FileKey(path=path, name="micro_batch_size") for path in sizes]
        keys += [FileKey(path=path, name="accumulation") for path in _find_accumulations(document)]
    else:
        keys = list(_find_family_keys(own, sizes))
    if fixed_accumulation is not None:
        keys = [key for key in keys if key.name != "accumulation"]
    keys += _find_placeholders(document, {key.path for key in keys})
    keys = [key for key in keys if key.name != "output_dir" or "{output_dir}" not in str(document.get(key.path))]
    probing = {} if own is None else dict(_find_probing(own))
    probing |= _find_overrides(document, {key.path for key in keys})
    name, folder = document.path.name, document.path.resolve().parent
    return CommandFile(
        name=name,
        text=without_section(text, "explore", source=name),
        keys=tuple(keys),
        probing=probing,
        beside=folder if _names_files_beside(document) and not takes_folder else None,
        siblings=folder if takes_folder else None,
    )


def _names_files_beside(document: Document) -> bool:
    """Return whether the program that reads the file finds others from where it lies."""
    folder = document.path.parent
    for path, value in _find_leaves(document.values):
        is_link = any(str(key).lower() in _LINKS for key in path)
        if not isinstance(value, str) or Path(value).is_absolute() or not value:
            continue
        if value.startswith("!include") or (is_link and path[0] != "explore"):
            return True
        # Many programs look for such a file from the folder that they run in: then any place of the copy will do.
        is_name = value.endswith(_CONFIGURATIONS) and "\n" not in value and len(value) < _LONGEST_NAME
        if is_name and (folder / value).is_file() and os.access(folder, os.W_OK):
            return True
    return False


def _check_place_of_word(problems: Problems, sizes: list[KeyPath], own: FamilyFile | None) -> None:
    if len(sizes) > 1:
        where = ", ".join(dotted_path(path) for path in sizes)
        problems.error(sizes[1], f"more than one value is explore: {where}", "leave the word at the micro-batch size")
    elif sizes and own is not None and sizes[0] != own.size_path:
        keys = " or ".join(own.family.micro_batch_size[:2])
        problems.error(
            sizes[0],
            f"{dotted_path(sizes[0])} is explore, and {own.family.title} keeps its micro-batch size in {keys}",
            f"type {dotted_path(own.size_path)}: explore, or explore.dialect for another family",
        )


def _find_accumulations(document: Document) -> dict[KeyPath, int]:
    return {
        path: value
        for path, value in _find_own_leaves(document)
        if path[-1] in _ACCUMULATION_KEYS and is_integer(value)
    }


def _find_accumulation_of_file(document: Document, own: FamilyFile | None) -> int | None:
    """Return the accumulation that the file has by itself; None where it has none, or several that differ."""
    if own is not None:
        return own.numbers.accumulation
    found = set(_find_accumulations(document).values())
    return found.pop() if len(found) == 1 and min(found) >= 1 else None


def _find_fixed_accumulation(argv: Sequence[str]) -> int | None:
    """Return the accumulation that a word of the command fixes; the last one counts, as in argparse and Hydra."""
    values = list(_find_accumulation_words(argv))
    return int(values[-1]) if values and values[-1].isdecimal() and int(values[-1]) else None


def _find_accumulation_words(argv: Sequence[str]) -> Iterator[str]:
    """Yield the values of options that are named as accumulation is, in the script of a shell (`bash -c`) too."""
    for index, word in enumerate(argv):
        if is_script(argv, index):
            yield from _find_accumulation_words(_split_script(word))
        found = _ACCUMULATION_WORD.fullmatch(word.lstrip("-+").replace("-", "_"))
        if found is not None and found["value"] is not None:
            yield found["value"]
        elif found is not None and word.startswith("-"):
            yield "".join(argv[index + 1 : index + 2])


def _split_script(script: str) -> list[str]:
    try:
        return shlex.split(script)
    except ValueError:  # an open quote, which is the shell's to refuse
        return []


def _find_own_leaves(document: Document) -> list[tuple[KeyPath, Any]]:
    return [(path, value) for path, value in _find_leaves(document.values) if path[0] != "explore"]


def _find_placeholders(document: Document, filled: Collection[KeyPath]) -> Iterator[FileKey]:
    """Yield the keys whose value is the placeholder of a number alone.

    YAML tells a number from a text by its quotes. JSON, TOML and `--set` cannot, and a size is a number.
    """
    needs_quotes = document.path.suffix in _NEED_QUOTES
    for path, value in _find_own_leaves(document):
        # Words of a list are those of a command, and stay texts.
        if not isinstance(value, str) or not isinstance(path[-1], str) or path in filled:
            continue
        is_number = is_placeholder(value) and value[1:-1] in NUMBERS
        if is_number and (needs_quotes or document.position(path).override):
            yield FileKey(path=path, name=value[1:-1])


def _find_family_keys(own: FamilyFile, sizes: list[KeyPath]) -> Iterator[FileKey]:
    if sizes:
        yield FileKey(path=own.size_path, name="micro_batch_size", factor=own.tokens_of_a_sample)
    steps, total = own.places.get("accumulation"), own.places.get("global_batch_size")
    if steps is not None and own.values.at(steps) is not None and not own.values.is_made_of_others(steps):
        yield FileKey(path=steps, name="accumulation")
    is_made = total is not None and own.values.is_made_of_others(total)
    if total is not None and own.numbers.global_batch_size is not None and not is_made:
        yield FileKey(path=total, name="global_batch_size", factor=own.tokens_of_a_sample)
    if own.family.output_dir:
        place = own.values.first(own.family.output_dir) or tuple(own.family.output_dir[0].split("."))
        yield FileKey(path=place, name="output_dir")


def _find_probing(own: FamilyFile) -> Iterator[tuple[KeyPath, Any]]:
    """Yield what each start's copy sets, where the file has it otherwise."""
    for key, value in own.family.probing.items():
        path = own.values.path(key)
        if path is not None and own.values.at(path) not in (None, value):
            yield path, value


def _find_overrides(document: Document, filled: Collection[KeyPath]) -> dict[KeyPath, Any]:
    """Return what the command line sets in the file, but for the keys that each start fills in."""
    given = (path for path, position in document.positions.items() if position.override)
    return {path: document.get(path) for path in given if path[0] != "explore" and path not in filled}


def _find_leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each plain value, and each `{explore: {...}}`, with its path."""
    if isinstance(value, Mapping) and not _is_word(value):
        for key, inner in value.items():
            yield from _find_leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _find_leaves(inner, (*path, index))
    elif path:
        yield path, value


def _is_word(value: Any) -> bool:
    is_bounded = (
        isinstance(value, Mapping)
        and set(value) == {"explore"}
        and (value["explore"] is None or isinstance(value["explore"], Mapping))
    )
    return value == "explore" or is_bounded


def _read_request(problems: Problems, own: FamilyFile | None, file: CommandFile | None) -> SizeRequest:
    """Return the request of the file: a search, unless a family's file has a number and the command no placeholder."""
    document = problems.document
    sizes = [] if file is None else file.paths("micro_batch_size")
    path: KeyPath = sizes[0] if sizes else (("micro_batch_size",) if own is None else own.size_path)
    position = document.position(path) if document.has(path) else None
    is_filled = file is None or own is None or document.get(("explore", "command")) is not None
    if not sizes and own is not None and not is_filled:
        number = own.numbers.micro_batch_size
        kind = RequestKind.NONE if number is None else RequestKind.FIXED
        return SizeRequest(kind=kind, value=number, path=path, position=position)
    minimum, maximum = (
        read_bounds(problems, (*path, "explore")) if isinstance(document.get(path), Mapping) else (None, None)
    )
    return SizeRequest(kind=RequestKind.EXPLORE, minimum=minimum, maximum=maximum, path=path, position=position)


def _name_size(document: Document) -> str:
    """Return the key of the file that is named as a batch size of the training."""
    return next(map(dotted_path, find_sizes(document.values)), "micro_batch_size")


def _hint_size(command: Command, document: Document) -> str:
    """Return what to type so that a command changes with the size."""
    script = next((word for word in command.argv if word.endswith(".py")), None)
    hint = "write {micro_batch_size} where the command takes it"
    if command.file is not None:
        return f"{hint}, or {_name_size(document)}: explore in its file"
    return hint if script is None else f"{hint}; this reads the script for it: bexplore init {shlex.quote(script)}"


def _check_command(problems: Problems, command: Command, own: FamilyFile | None) -> None:
    """Note what would make every start useless or harmful."""
    document = problems.document
    place: KeyPath = () if command.is_typed else ("explore", "command")
    if not command.argv:
        hint = suggest_command(document.path, own.family, own.values) if own else "type it behind --"
        problems.error(own.size_path if own else (), "there is no command that trains with this file", hint)
        return
    used = command.placeholders
    for name in find_unknown_placeholders(command.argv):
        near = close_match(name, PLACEHOLDERS, cutoff=0.75)
        if near is not None:
            problems.error(place, f"{{{name}}} is no placeholder", f"did you mean {{{near}}}?")
    if not used & {"micro_batch_size", "global_batch_size"}:
        problems.error(place, "nothing of the command changes with the micro-batch size", _hint_size(command, document))
    names = sorted(used & {"config", "config_dir"})
    if command.file is not None and not names and "micro_batch_size" in command.file.names:
        problems.error(
            place,
            f"the command does not read {command.file.name}",
            "write {config} where the command takes the file, {config_dir} where it takes the folder of that",
        )
    if command.file is None and names:
        hint = f"bexplore explore CONFIG -- COMMAND {{{names[0]}}}"
        problems.error(place, f"{{{names[0]}}} is used, and no file is given", hint)
    if "output_dir" not in used and not command.writes_are_fine:
        problems.error(
            place,
            "the command does not take {output_dir}, so each start may write over your checkpoints and logs",
            "write {output_dir} where the command takes its output folder, or consent: `writes_are_fine=True`",
        )
