"""The smallest file with which a training can be explored: an example, or from its configuration, command or script.

Of a script only the text is read: how it takes parameters, a size that it fixes itself, its Hydra configuration.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from bexplore.config import document
from bexplore.config.command import PLACEHOLDERS, quote_words
from bexplore.config.dialects.own_file import refuse_own_file, suggest_command
from bexplore.config.dialects.recognition import FamilyFile, read_family, recognise
from bexplore.config.document import Problems, dotted_path, is_integer
from bexplore.config.document.writer import with_value
from bexplore.config.hydra_tree import Leaf, is_tree, read_leaves
from bexplore.config.training_script import (
    FAR,
    NAMES,
    OF_EVALUATION,
    WRITTEN_FILES,
    Call,
    Program,
    add_to_words,
    call_by_help,
    call_of,
    command_of_notebook,
    fill,
    rank,
    spell,
    start_words,
    take_batch_of_a_step,
    unset_variables,
)
from bexplore.errors import UserInputError, suggestion

_OF_A_COMMAND = Path("explore.yaml")
_SUFFIX = ".explore.yaml"
_OF_A_STEP = ("micro_batch_size", "accumulation")  # whose product is the batch of a step on a replica
_OF_REPLICA = " on one replica, as the file had them"
_OF_ALL = " over all replicas, as the file had them"
_TRACKERS = {"wandb", "mlflow", "comet", "neptune", "aim", "clearml", "swanlab"}  # which a start switches off
_HYDRA_MAIN = re.compile(r"\bhydra\.main\b")
_MOST_NAMED = 6  # options in one note
_EXAMPLE_SUFFIXES = (".yaml", ".yml", ".py", ".json")  # the first that an example has is the file to explore or to copy
_COMMAND_FILE = """\
# bexplore explore FILE: starts this command once for each size worth a start, and ends it after a few steps.
explore:
  command: {command}
{env}{writes}{replica_batch_size}\
  # global_batch_size: 256  # as an example: samples of one optimizer step over all replicas, to be kept
  # replicas: 8             # as an example: data-parallel replicas; the first start shows them
"""
_WRITES = """\
  # The command has no output folder of its own for each start: it may write over what is there.
  writes_are_fine: false  # true: that is fine
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """The text of a file to explore."""

    text: str
    notes: list[str]  # what was decided, for people
    target: Path  # unless another place is named


# Examples: each a commented file, some with a module or a baseline beside it


def list_examples() -> dict[str, str]:
    """Return the examples by name, each with the first line that it says of itself."""
    firsts = {name: next(iter(read_example(name).values())).partition("\n")[0] for name in _example_names()}
    # Some name a command behind a colon.
    return {name: first.lstrip("# ").partition(":  ")[0].rstrip(".") for name, first in firsts.items()}


def read_example(name: str) -> dict[Path, str]:
    """Return the texts of an example by the names of its files, the one to explore first."""
    paths = [_example_folder() / f"{name}{suffix}" for suffix in _EXAMPLE_SUFFIXES]
    found = [path for path in paths if path.is_file()]
    if not found or Path(name).name != name:
        raise UserInputError(f"there is no example {name!r}", hint=suggestion(name, _example_names()))
    # In this project they lie in configs/, and say so; written for a user they lie where the user is.
    return {Path(path.name): path.read_text().replace(f"configs/{path.stem}", path.stem) for path in found}


def _example_names() -> list[str]:
    return sorted({path.stem for path in _example_folder().iterdir() if path.suffix in (".yaml", ".yml")})


def _example_folder() -> Path:
    installed = Path(__file__).parent / "example_files"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "configs"


# From a configuration


def from_file(path: Path) -> Starter:
    """Return a family's file with the word at its micro-batch size, or a file for the command of a Hydra tree."""
    read = document.read(path)
    likeness = recognise(read)
    is_known = likeness is not None and likeness.is_certain
    if not is_known and is_tree(read.values):
        return _from_tree(path)
    if likeness is None or not is_known:
        raise refuse_own_file(read, likeness)
    problems = Problems(document=read)
    own = read_family(problems, likeness)
    problems.raise_if_any()
    if "micro_batch_size" not in own.places and not own.family.reads_absent_size:
        raise UserInputError(
            f"{path} is of {own.why}, and has no micro-batch size: the script that reads it has",
            hint=f"type your training command behind it: {suggest_command(path, own.family)}",
        )
    size = own.numbers.micro_batch_size
    text = with_value(document.read_text(path), own.size_path, "explore", source=str(path))
    notes = [f"{path} is of {own.why}", f"{dotted_path(own.size_path)}: {size or 'absent'} -> explore"]
    if own.family.program is None:
        notes.append("its command is yours: bexplore explore FILE -- COMMAND {config}")
    if own.numbers.num_replicas is None:
        notes.append("replicas are not in the file: the first start shows them, or write explore.replicas: N")
    text = _with_batch_of_a_step(text, own, path)
    return Starter(text=text, notes=notes, target=path.with_suffix(f".explore{path.suffix}"))


def _with_batch_of_a_step(text: str, own: FamilyFile, path: Path) -> str:
    """Return a text with the batch of a step that the file's own size gave, where the file does not hold it itself."""
    numbers = own.numbers
    if numbers.global_batch_size is not None or not numbers.micro_batch_size or own.values.has("explore"):
        return text
    name, samples, of = "replica_batch_size", numbers.micro_batch_size * (numbers.accumulation or 1), _OF_REPLICA
    if numbers.num_replicas is not None:
        name, samples, of = "global_batch_size", samples * numbers.num_replicas, _OF_ALL
    if path.suffix == ".json":
        return with_value(text, ("explore", name), samples, source=str(path))
    comment = f"# samples of one optimizer step{of}"
    section = f"\nexplore:\n  {name}: {samples}  {comment}\n"
    if path.suffix == ".toml":
        section = f"\n[explore]\n{name} = {samples}  {comment}\n"
    section = section if not text or text.endswith("\n") else f"\n{section}"
    return text + (section.replace("\n", "\r\n") if "\r\n" in text else section)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overrides:
    """The overrides of a Hydra tree that a start needs, and what is said of them."""

    words: list[str]
    notes: list[str]
    samples: int  # of a step on one replica
    keeps_batch: bool  # whether these are to be kept


def _from_tree(path: Path, script: Path | None = None) -> Starter:
    tree = _read_tree(path, script)
    chosen: list[str] = []
    if script is None:
        script, chosen = _find_hydra_script(path)
    notes = [f"{path} is of Hydra, by defaults", *tree.notes]
    if script is None:
        notes.append("no script with hydra.main was found: write its name for train.py")
    words = ["python", str(script or "train.py"), *chosen, *tree.words]
    text = _fill_command_file(words, samples=tree.samples, keeps_batch=tree.keeps_batch)
    return Starter(text=text, notes=notes, target=_OF_A_COMMAND)


def _read_tree(path: Path, script: Path | None) -> _Overrides:
    leaves = read_leaves(path)
    size, accumulation = _find_leaf(leaves, "micro_batch_size"), _find_leaf(leaves, "accumulation")
    if size is None:
        raise UserInputError(
            f"{path}: no value of its tree is a micro-batch size",
            hint=f"bexplore init -- python {script or 'train.py'} KEY=16 'hydra.run.dir={{output_dir}}'",
        )
    words = [f"{size.override}={{micro_batch_size}}"]
    notes = [f"{size.override}: {size.value} -> explore ({size.where})"]
    samples, keeps_batch = size.value, False
    if accumulation is not None:
        # Of an accumulation of one the batch is the size, above which nothing would be tried.
        keeps_batch = accumulation.value > 1
        words.append(f"{accumulation.override}={{accumulation}}")
        samples *= accumulation.value
        notes.append(f"{accumulation.override}: {accumulation.value} -> {{accumulation}} ({accumulation.where})")
    folder = _find_own_folder(leaves)
    if folder is not None:
        words.append(f"{folder.override}={{output_dir}}")
        notes.append(f"{folder.override}: {folder.value or 'empty'} -> {{output_dir}} ({folder.where})")
    words.append("hydra.run.dir={output_dir}")
    return _Overrides(words=words, notes=notes, samples=samples, keeps_batch=keeps_batch)


def _find_leaf(leaves: Sequence[Leaf], placeholder: str) -> Leaf | None:
    numbers = [leaf for leaf in leaves if is_integer(leaf.value) and leaf.value > 0]
    for name in NAMES[placeholder]:
        named = [leaf for leaf in numbers if spell(str(leaf.path[-1])) == name]
        if named:
            return min(named, key=lambda leaf: (bool(OF_EVALUATION.search(leaf.override)), len(leaf.path)))
    return None


def _find_own_folder(leaves: Sequence[Leaf]) -> Leaf | None:
    """Return the output folder that a tree has beside Hydra's own, and does not make of that."""
    plain = [one for one in leaves if one.value in (None, "") or (isinstance(one.value, str) and "$" not in one.value)]
    ranks = [(rank(str(one.path[-1]), "output_dir"), len(one.path), one) for one in plain]
    known = [
        (found, depth, one)
        for found, depth, one in ranks
        if found is not None and found < FAR and _TRACKERS.isdisjoint(map(str, one.path))
    ]
    return min(known, key=lambda own: own[:2])[2] if known else None


def _leave_out_typed(overrides: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """Yield the overrides whose key, or a part above it, was not typed, and whose placeholder is not there yet."""
    typed = {word.lstrip("+~").partition("=")[0] for word in words}
    found = _placeholders_in(words)
    for override in overrides:
        parts = override.partition("=")[0].split(".")
        keys = {".".join(parts[:number]) for number in range(1, len(parts) + 1)}
        if keys.isdisjoint(typed) and (override.startswith("hydra.") or found.isdisjoint(_placeholders_in([override]))):
            yield override


def _find_hydra_script(path: Path) -> tuple[Path | None, list[str]]:
    """Return the script of a tree: that which names its file, near it or below, else one near it; and its options."""
    folders = [*dict.fromkeys((path.resolve().parent.parent, Path.cwd(), path.resolve().parent))]
    near = [script for folder in folders for script in sorted(folder.glob("*.py"))]
    below = [
        script for folder in folders[:2] for depth in ("*", "*/*") for script in sorted(folder.glob(f"{depth}/*.py"))
    ]
    of_hydra = {script: _hydra_configuration(script) for script in [*near, *below] if _is_of_hydra(script)}
    own = [script for script, chosen in of_hydra.items() if chosen is not None and chosen.resolve() == path.resolve()]
    found = next(iter([*own, *(script for script in near if script in of_hydra)]), None)
    if found is None:
        return None, []
    named = found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found
    return named, [] if found in own else [f"--config-name={path.stem}"]


# From a command


def from_command(words: Sequence[str], *, target: Path | None = None) -> Starter:
    """Return a file for a training command, whose values are replaced by placeholders."""
    scripts = [
        (index, path) for index, word in enumerate(words) if (path := _script_at(words, index, word)) is not None
    ]
    filled, typed = _with_placeholders(list(words))
    for index, path in scripts[:1]:
        tree = _hydra_configuration(path)
        if tree is not None:
            filled += _leave_out_typed(_read_tree(tree, path).words, filled)
        else:
            program = Program(path)
            filled = add_to_words(filled, index, program, taken=_placeholders_in(filled))
            filled = take_batch_of_a_step(filled, program)
    found = _placeholders_in(filled)
    if found.isdisjoint(("micro_batch_size", "global_batch_size")):
        raise UserInputError("no word of the command is a micro-batch size", hint=_whole_command(words, scripts))
    of_a_step = _OF_A_STEP
    if "global_batch_size" in found and "micro_batch_size" in typed:
        typed["global_batch_size"], of_a_step = typed.pop("micro_batch_size"), ("global_batch_size", "")
    notes = [
        f"{typed[name][0]} takes {fill(name, *typed[name])} in place of {typed[name][1]}"
        if name in typed
        else f"{name} is filled in by bexplore"
        for name in PLACEHOLDERS
        if name in found
    ]
    numbers = [typed[name][1] if name in typed else "" if name in found else "1" for name in of_a_step]
    samples = math.prod(map(int, numbers)) if all(number.isdecimal() for number in numbers) else None
    return _of_words(filled, notes, target=target or _OF_A_COMMAND, samples=samples)


def _whole_command(words: Sequence[str], scripts: Sequence[tuple[int, Path]]) -> str:
    """Return what to type in place of a command without a size; raise what its script says of that."""
    for index, path in scripts[:1]:
        call = call_of(Program(path), words[: index + 1])
        return f"the script takes it so: bexplore init -- {quote_words([*words[: index + 1], *call.words])}"
    return "write {micro_batch_size} where the command takes it"


def _script_at(words: Sequence[str], index: int, word: str) -> Path | None:
    """Return the script that a word of a command starts: by its path, or behind `-m` by its name."""
    path = Path(word)
    if index and words[index - 1] == "-m":
        path = Path(*word.split(".")).with_suffix(".py")
    return path if path.suffix == ".py" and path.is_file() else None


def from_help(words: Sequence[str], text: str, *, script: Path | None = None) -> Starter:
    """Return a file for a program by its own help text."""
    target = _OF_A_COMMAND if script is None else script.with_suffix(_SUFFIX)
    return _of_call(words, call_by_help(text, words), [], target=target)


def _of_call(start: Sequence[str], call: Call, notes: Sequence[str], *, target: Path) -> Starter:
    told = [
        f"{one.spelt} takes {fill(name, one.name, one.default)}{one.told_default}" for name, one in call.chosen.items()
    ]
    told += [f"{one.spelt} takes {{output_dir}}{one.told_default}" for one in call.further]
    if call.doubtful:
        left_out = ", ".join(one.spelt for one in call.doubtful[:_MOST_NAMED])
        told.append(f"left out, as they have no default: {left_out}; add what your training needs to the command")
    of_a_step = _OF_A_STEP if "micro_batch_size" in call.chosen else ("global_batch_size", "")
    size, accumulation = (call.chosen[name].default if name in call.chosen else 1 for name in of_a_step)
    samples = size * accumulation if is_integer(size) and is_integer(accumulation) else None
    words = [*start, *call.words]
    return _of_words(words, [*told, *notes], target=target, env=call.variables, samples=samples)


def _of_words(
    words: Sequence[str],
    notes: Sequence[str],
    *,
    target: Path,
    env: Mapping[str, str] | None = None,
    samples: int | None = None,
) -> Starter:
    text = _fill_command_file(words, env=env or {}, samples=samples)
    return Starter(text=text, notes=[*notes, *_consent(words, env or {})], target=target)


def _consent(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return what somebody must decide where no output folder is handed to a command."""
    if "output_dir" in _placeholders_in([*words, *env.values()]):
        return []
    return ["it takes no output folder: if starts may write where it writes, add `writes_are_fine=True` to that line"]


def _fill_command_file(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    samples: int | None = None,
    keeps_batch: bool = False,
) -> str:
    fixed = f"  replica_batch_size: {samples}  # samples of one optimizer step{_OF_REPLICA}\n"
    usual = f"  # replica_batch_size: {samples}  # samples of one optimizer step on one replica, as it was\n"
    variables = "".join(f'    {name}: "{value}"\n' for name, value in (env or {}).items())
    return _COMMAND_FILE.format(
        command=_quote_for_yaml(quote_words(words)),
        env=f"  env:\n{variables}" if variables else "",
        writes="" if not _consent(words, env or {}) else _WRITES,
        replica_batch_size="" if samples is None else fixed if keeps_batch else usual,
    )


def _quote_for_yaml(text: str) -> str:
    """Return a text for YAML: plain where that reads back the same."""
    is_plain = re.search(r"[:#'\"]\s|^[\[{&*!|>%@`'\"]|: |^\s|\s$", text) is None
    return text if is_plain else "'" + text.replace("'", "''") + "'"


def _placeholders_in(words: Iterable[str]) -> set[str]:
    return {name for word in words for name in re.findall(r"\{(\w+)\}", word) if name in PLACEHOLDERS}


def _with_placeholders(words: list[str]) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return words with placeholders, and the option and the value of each that was typed."""
    found, typed = _placeholders_in(words), {}
    for placeholder, names in NAMES.items():
        place = None if placeholder in found else _find_value(words, names) or _find_written_file(words, placeholder)
        if place is not None:
            index, head = place
            option, value = head.rstrip("=") or words[index - 1], words[index].removeprefix(head)
            words[index] = f"{head}{fill(placeholder, option, value)}"
            typed[placeholder] = option, value
    return words, typed


def _find_written_file(words: Sequence[str], placeholder: str) -> tuple[int, str] | None:
    place = _find_value(words, WRITTEN_FILES) if placeholder == "output_dir" else None
    return place if place and PurePath(words[place[0]]).suffix[1:].isalpha() else None


def _find_value(words: Sequence[str], names: Iterable[str]) -> tuple[int, str] | None:
    """Return the index of the word with an option's value, and what stands before the value in it."""
    for name in names:
        for index, word in enumerate(words):
            option, equals, _value = word.partition("=")
            if name not in (spell(option), spell(option.rpartition(".")[2])) or option == word.lstrip("-") != option:
                continue
            if equals:
                return index, f"{option}="
            if word.startswith("-") and index + 1 < len(words) and not words[index + 1].startswith("--"):
                return index + 1, ""
    return None


# From a script


def list_start_words(script: Path) -> list[str]:
    """Return the words that start a script."""
    return start_words(Program(script))


def from_script(path: Path) -> Starter:
    """Return a file for a training script or a notebook: of its Hydra configuration, or of how it takes parameters."""
    target = path.with_suffix(_SUFFIX)
    if path.suffix == ".ipynb":
        missing = [] if shutil.which("papermill") else ["papermill is to be installed: pip install papermill"]
        return _of_words(command_of_notebook(path), missing, target=target)
    tree = _hydra_configuration(path)
    if tree is not None:
        return _from_tree(tree, script=path)
    program = Program(path)
    start = start_words(program)
    unset = [f"{name} is to be set in the environment, as for a training" for name in unset_variables(program)]
    return _of_call(start, call_of(program, start), unset, target=target)


def _is_of_hydra(path: Path) -> bool:
    return _HYDRA_MAIN.search(document.read_text(path)) is not None


def _hydra_configuration(path: Path) -> Path | None:
    """Return the primary file that a script's `hydra.main` names; None where it names none that is there."""
    text = document.read_text(path)
    named = {name: re.search(rf"""{name}\s*=\s*["']([^"'\n]+)["']""", text) for name in ("config_path", "config_name")}
    if not _HYDRA_MAIN.search(text) or named["config_name"] is None:
        return None
    folder = path.parent / (named["config_path"][1] if named["config_path"] else "")
    configuration = Path(os.path.normpath(folder / f"{named['config_name'][1].removesuffix('.yaml')}.yaml"))
    return configuration if configuration.is_file() else None
