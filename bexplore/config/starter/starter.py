"""The smallest file with which a training can be explored: from its configuration, its command or its script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bexplore.config.command import PLACEHOLDERS, shown
from bexplore.config.dialects.recognition import FamilyFile, read_family, recognise
from bexplore.config.document import document
from bexplore.config.document.document import Problems, dotted_path
from bexplore.config.document.writer import with_value
from bexplore.config.sections.values import is_integer
from bexplore.config.starter import hydra_tree, training_script
from bexplore.errors import UserInputError

# Options of training scripts, as `--name`, `-name` or `name=`, with `_` for `-`. Sources: the arguments of
# transformers, DeepSpeed, Megatron-LM, timm, torchvision's references and PyTorch's examples.
_OPTIONS = {
    "micro_batch_size": (
        "micro_batch_size",
        "per_device_train_batch_size",
        "train_micro_batch_size_per_gpu",
        "device_batch_size",
        "train_batch_size",
        "batch_size",
        "batchsize",
        "mbs",
        "bs",
        "b",
    ),
    "accumulation": (
        "gradient_accumulation_steps",
        "grad_accum_steps",
        "accumulation_steps",
        "accumulation",
        "grad_accum",
        "accumulate_grad_batches",
    ),
    "output_dir": (
        "hydra.run.dir",
        "output_dir",
        "out_dir",
        "output",
        "save_dir",
        "log_dir",
        "checkpoint_dir",
        "default_root_dir",
        "out",
    ),
}
OF_A_COMMAND = Path("explore.yaml")
_OF_REPLICA = " on one replica, as the file had them"
_OF = {"global_batch_size": " over all replicas, as the file had them", "replica_batch_size": _OF_REPLICA}
_OF_EVALUATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation|test|predict|inference)(?![a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A file to explore.

    Attributes:
        text: Its text.
        notes: What was decided, for people.
        target: Where it is written unless another place is named.
    """

    text: str
    notes: list[str]
    target: Path


def of_script(path: Path) -> Starter:
    """Return a file for a training script: of its Hydra configuration, or of its options."""
    tree = training_script.hydra_configuration(path)
    return (
        of_command(("python", str(path)), target=path.with_suffix(".explore.yaml")) if tree is None else of_file(tree)
    )


def of_file(path: Path) -> Starter:
    """Return a family's file with the word at its micro-batch size.

    Raises:
        UserInputError: The file is of no known family, or its numbers are wrong.
    """
    read = document.read(path)
    found = recognise(read)
    if found is None and hydra_tree.is_tree(read.values):
        return _of_tree(path)
    if found is None:
        raise UserInputError(
            f"{path}: the family was not recognised", hint="bexplore init -- COMMAND, with the command that trains"
        )
    problems = Problems(document=read)
    own = read_family(problems, *found)
    problems.raise_if_any()
    text = document.read_text(path)
    size, numbers = own.numbers.micro_batch_size, own.numbers
    text = with_value(text, own.size_path, "explore", source=str(path))
    notes = [f"{path} is of {own.why}", f"{dotted_path(own.size_path)}: {size or 'absent'} -> explore"]
    text = _with_batch_of_a_step(text, own, path)
    if own.family.program is None:
        notes.append("its command is yours: bexplore explore FILE -- COMMAND {config}")
    if numbers.num_replicas is None:
        notes.append("replicas are not in the file: the first start shows them, or type --replicas N")
    return Starter(text=text, notes=notes, target=path.with_suffix(f".explore{path.suffix}"))


def _with_batch_of_a_step(text: str, own: FamilyFile, path: Path) -> str:
    """Return a text with the batch of a step that the file's own size gave, where the file does not hold it itself."""
    numbers = own.numbers
    if numbers.global_batch_size is not None or not numbers.micro_batch_size or own.values.has("explore"):
        return text
    name, samples = "replica_batch_size", numbers.micro_batch_size * (numbers.accumulation or 1)
    if numbers.num_replicas is not None:
        name, samples = "global_batch_size", samples * numbers.num_replicas
    if path.suffix == ".json":
        return with_value(text, ("explore", name), samples, source=str(path))
    comment = f"# samples of one optimizer step{_OF[name]}"
    is_toml, line_break = path.suffix == ".toml", "\r\n" if "\r\n" in text else "\n"
    lines = [f"{name} = {samples}  {comment}"] if is_toml else [f"  {name}: {samples}  {comment}"]
    lines = ["", "[explore]" if is_toml else "explore:", *lines, ""]
    return text + ("" if not text or text.endswith("\n") else line_break) + line_break.join(lines)


def _of_tree(path: Path) -> Starter:
    """Return a file whose command overrides values of a Hydra tree.

    Raises:
        UserInputError: No value of the tree is a micro-batch size.
    """
    leaves = hydra_tree.leaves(path)
    size = _leaf(leaves, "micro_batch_size")
    if size is None:
        raise UserInputError(
            f"{path}: no value of its tree is a micro-batch size",
            hint="bexplore init -- python train.py KEY=16 'hydra.run.dir={output_dir}'",
        )
    script, chosen = _hydra_script(path)
    words = ["python", str(script or "train.py"), *chosen, f"{size.override}={{micro_batch_size}}"]
    notes = [f"{path} is of Hydra, by defaults", f"{size.override}: {size.value} -> explore ({size.where})"]
    found, replica_batch_size = {"micro_batch_size", "output_dir"}, size.value
    accumulation = _leaf(leaves, "accumulation")
    if accumulation is not None:
        words.append(f"{accumulation.override}={{accumulation}}")
        found.add("accumulation")
        replica_batch_size *= accumulation.value
        notes.append(f"{accumulation.override}: {accumulation.value} -> {{accumulation}} ({accumulation.where})")
    if script is None:
        notes.append("no script with hydra.main was found: write its name for train.py")
    words.append("hydra.run.dir={output_dir}")
    text = _file_of_command(words, found, replica_batch_size=replica_batch_size)
    return Starter(text=text, notes=notes, target=OF_A_COMMAND)


def _leaf(leaves: Sequence[hydra_tree.Leaf], placeholder: str) -> hydra_tree.Leaf | None:
    """Return the value that a placeholder stands for, that of the training before that of an evaluation."""
    for name in _OPTIONS[placeholder]:
        named = [leaf for leaf in leaves if leaf.path[-1] == name and is_integer(leaf.value) and leaf.value > 0]
        if named:
            return min(named, key=lambda leaf: (bool(_OF_EVALUATION.search(leaf.override)), len(leaf.path)))
    return None


def _hydra_script(path: Path) -> tuple[Path | None, list[str]]:
    """Return the script that a tree belongs to, and the option that chooses its primary file."""
    for folder in dict.fromkeys((path.resolve().parent.parent, Path.cwd(), path.resolve().parent)):
        for script in sorted(folder.glob("*.py")):
            if training_script.is_of_hydra(script):
                path_shown = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
                chosen = training_script.hydra_configuration(script)
                is_chosen = chosen is not None and chosen.resolve() == path.resolve()
                return path_shown, [] if is_chosen else [f"--config-name={path.stem}"]
    return None, []


def of_command(words: Sequence[str], *, target: Path | None = None) -> Starter:
    """Return a file for a training command, whose values are replaced by placeholders.

    Raises:
        UserInputError: No word of the command is the micro-batch size.
    """
    scripts = [Path(word) for word in words if word.endswith(".py") and Path(word).is_file()]
    known = [option for script in scripts for option in training_script.options(script)]
    filled, found = _with_placeholders(list(words))
    filled, added = _with_options(filled, found, known)
    if "micro_batch_size" not in found | added:
        raise _without_size(scripts)
    notes = [f"{name} is filled in by bexplore" for name in PLACEHOLDERS if name in found | added]
    return Starter(text=_file_of_command(filled, found | added), notes=notes, target=target or OF_A_COMMAND)


def _without_size(scripts: Sequence[Path]) -> UserInputError:
    """Return the error for a command whose words hold no size, which a script of it may fix itself."""
    for script in scripts:
        fixed = training_script.fixed_size(script, _OPTIONS["micro_batch_size"])
        if fixed is not None:
            return UserInputError(f"{fixed.where}: {fixed.text} is fixed in the script", hint=fixed.hint)
    message = "no word of the command is a micro-batch size"
    return UserInputError(message, hint="write {micro_batch_size} where the command takes it")


def _file_of_command(words: Sequence[str], found: set[str], *, replica_batch_size: int | None = None) -> str:
    """Return the YAML file of a command."""
    lines = [
        "# bexplore explore FILE: starts this command once for each size worth a start, and ends it after a few steps.",
        "explore:",
        f"  command: {_quoted(shown(words))}",
    ]
    if "output_dir" not in found:
        lines += [
            "  # The command has no output folder of its own for each start: it may write over what is there.",
            "  writes_are_fine: false  # true: that is fine",
        ]
    if replica_batch_size is not None:
        lines.append(f"  replica_batch_size: {replica_batch_size}  # samples of one optimizer step{_OF_REPLICA}")
    lines += [
        "  # global_batch_size: 256  # samples of one optimizer step over all replicas, to be kept",
        "  # replicas: 8             # data-parallel replicas; the first start shows them",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text for YAML: plain where that reads back the same."""
    return (
        f"'{text.replace(chr(39), chr(39) * 2)}'"
        if re.search(r"[:#'\"]\s|^[\[{&*!|>%@`'\"]|: |^\s|\s$", text)
        else text
    )


def _with_placeholders(words: list[str]) -> tuple[list[str], set[str]]:
    """Return the words with the values of known options replaced, and the placeholders that stand in them."""
    found = {name for word in words for name in re.findall(r"\{(\w+)\}", word) if name in PLACEHOLDERS}
    for placeholder, names in _OPTIONS.items():
        place = None if placeholder in found else _place_of(words, names)
        if place is not None:
            index, head = place
            words[index] = f"{head}{{{placeholder}}}"
            found.add(placeholder)
    return words, found


def _place_of(words: Sequence[str], names: Iterable[str]) -> tuple[int, str] | None:
    """Return the index of the word with an option's value, and what stands before the value in it."""
    for name in names:
        for index, word in enumerate(words):
            option, equals, _value = word.partition("=")
            spelt = option.lstrip("-+").replace("-", "_")
            if name not in (spelt, spelt.rpartition(".")[2]) or option == word.lstrip("-") != option:
                continue
            if equals:
                return index, f"{option}="
            if word.startswith("-") and index + 1 < len(words) and not words[index + 1].startswith("--"):
                return index + 1, ""
    return None


def _with_options(words: list[str], found: set[str], known: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the words with options that the script has and the command lacks."""
    added = set()
    for placeholder in ("micro_batch_size", "output_dir"):
        names = [option for option in known if option.lstrip("-").replace("-", "_") in _OPTIONS[placeholder]]
        if placeholder not in found and names:
            best = min(names, key=lambda option: _OPTIONS[placeholder].index(option.lstrip("-").replace("-", "_")))
            filled = f"{{{placeholder}}}"
            words += [best, filled] if best.startswith("-") else [f"{best}={filled}"]
            added.add(placeholder)
    return words, added
