"""The smallest file with which a training can be explored: an example, or from its configuration, command or script.

Of a script only the text is read: its options, a size that it fixes itself, its Hydra configuration. Nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bexplore.config import document
from bexplore.config.command import PLACEHOLDERS, quote_words
from bexplore.config.dialects.own_file import refuse_own_file, suggest_command
from bexplore.config.dialects.recognition import FamilyFile, read_family, recognise
from bexplore.config.document import Problems, dotted_path, is_integer
from bexplore.config.document.writer import with_value
from bexplore.config.hydra_tree import Leaf, is_tree, read_leaves
from bexplore.errors import UserInputError, suggestion

# Options of training scripts, as `--name`, `-name` or `name=`, with `_` for `-`. Sources: the arguments of
# transformers, DeepSpeed, Megatron-LM, timm, torchvision's references and PyTorch's examples.
_OPTIONS = {
    "micro_batch_size": (
        *("micro_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "device_batch_size"),
        *("train_batch_size", "batch_size", "batchsize", "mbs", "bs", "b"),
    ),
    "accumulation": (
        *("gradient_accumulation_steps", "grad_accum_steps", "accumulation_steps", "accumulation", "grad_accum"),
        "accumulate_grad_batches",
    ),
    "output_dir": (
        *("hydra.run.dir", "output_dir", "out_dir", "output", "save_dir", "log_dir", "checkpoint_dir"),
        *("default_root_dir", "out"),
    ),
}
_OF_A_COMMAND = Path("explore.yaml")
_OF_REPLICA = " on one replica, as the file had them"
_OF_ALL = " over all replicas, as the file had them"
_OF_EVALUATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation|test|predict|inference)(?![a-z])")
_HYDRA_MAIN = re.compile(r"\bhydra\.main\b")
_EXAMPLE_SUFFIXES = (".yaml", ".yml", ".py", ".json")  # the first that an example has is the file to explore or to copy
_COMMAND_FILE = """\
# bexplore explore FILE: starts this command once for each size worth a start, and ends it after a few steps.
explore:
  command: {command}
{writes}{replica_batch_size}\
  # global_batch_size: 256  # samples of one optimizer step over all replicas, to be kept
  # replicas: 8             # data-parallel replicas; the first start shows them
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


def _from_tree(path: Path) -> Starter:
    leaves = read_leaves(path)
    size, accumulation = _find_leaf(leaves, "micro_batch_size"), _find_leaf(leaves, "accumulation")
    if size is None:
        raise UserInputError(
            f"{path}: no value of its tree is a micro-batch size",
            hint="bexplore init -- python train.py KEY=16 'hydra.run.dir={output_dir}'",
        )
    script, chosen = _find_hydra_script(path)
    words = ["python", str(script or "train.py"), *chosen, f"{size.override}={{micro_batch_size}}"]
    notes = [f"{path} is of Hydra, by defaults", f"{size.override}: {size.value} -> explore ({size.where})"]
    samples = size.value
    if accumulation is not None:
        words.append(f"{accumulation.override}={{accumulation}}")
        samples *= accumulation.value
        notes.append(f"{accumulation.override}: {accumulation.value} -> {{accumulation}} ({accumulation.where})")
    if script is None:
        notes.append("no script with hydra.main was found: write its name for train.py")
    text = _fill_command_file([*words, "hydra.run.dir={output_dir}"], replica_batch_size=samples)
    return Starter(text=text, notes=notes, target=_OF_A_COMMAND)


def _find_leaf(leaves: Sequence[Leaf], placeholder: str) -> Leaf | None:
    for name in _OPTIONS[placeholder]:
        named = [leaf for leaf in leaves if leaf.path[-1] == name and is_integer(leaf.value) and leaf.value > 0]
        if named:
            return min(named, key=lambda leaf: (bool(_OF_EVALUATION.search(leaf.override)), len(leaf.path)))
    return None


def _find_hydra_script(path: Path) -> tuple[Path | None, list[str]]:
    for folder in dict.fromkeys((path.resolve().parent.parent, Path.cwd(), path.resolve().parent)):
        for script in sorted(folder.glob("*.py")):
            if _is_of_hydra(script):
                named = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
                chosen = _hydra_configuration(script)
                is_chosen = chosen is not None and chosen.resolve() == path.resolve()
                return named, [] if is_chosen else [f"--config-name={path.stem}"]
    return None, []


# From a command


def from_command(words: Sequence[str], *, target: Path | None = None) -> Starter:
    """Return a file for a training command, whose values are replaced by placeholders."""
    scripts = [Path(word) for word in words if word.endswith(".py") and Path(word).is_file()]
    known = [option for script in scripts for option in _read_options(script)]
    filled = _with_options(_with_placeholders(list(words)), known)
    found = _placeholders_in(filled)
    if "micro_batch_size" not in found:
        for script in scripts:
            _refuse_fixed_size(script)
        message = "no word of the command is a micro-batch size"
        raise UserInputError(message, hint="write {micro_batch_size} where the command takes it")
    notes = [f"{name} is filled in by bexplore" for name in PLACEHOLDERS if name in found]
    return Starter(text=_fill_command_file(filled), notes=notes, target=target or _OF_A_COMMAND)


def _fill_command_file(words: Sequence[str], *, replica_batch_size: int | None = None) -> str:
    samples = f"  replica_batch_size: {replica_batch_size}  # samples of one optimizer step{_OF_REPLICA}\n"
    return _COMMAND_FILE.format(
        command=_quote_for_yaml(quote_words(words)),
        writes="" if "output_dir" in _placeholders_in(words) else _WRITES,
        replica_batch_size="" if replica_batch_size is None else samples,
    )


def _quote_for_yaml(text: str) -> str:
    """Return a text for YAML: plain where that reads back the same."""
    is_plain = re.search(r"[:#'\"]\s|^[\[{&*!|>%@`'\"]|: |^\s|\s$", text) is None
    return text if is_plain else "'" + text.replace("'", "''") + "'"


def _placeholders_in(words: Iterable[str]) -> set[str]:
    return {name for word in words for name in re.findall(r"\{(\w+)\}", word) if name in PLACEHOLDERS}


def _with_placeholders(words: list[str]) -> list[str]:
    found = _placeholders_in(words)
    for placeholder, names in _OPTIONS.items():
        place = None if placeholder in found else _find_value(words, names)
        if place is not None:
            index, head = place
            words[index] = f"{head}{{{placeholder}}}"
    return words


def _find_value(words: Sequence[str], names: Iterable[str]) -> tuple[int, str] | None:
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


def _with_options(words: list[str], known: Sequence[str]) -> list[str]:
    found = _placeholders_in(words)
    for placeholder in ("micro_batch_size", "output_dir"):
        ranks = {option: option.lstrip("-").replace("-", "_") for option in known}
        names = [option for option, spelt in ranks.items() if spelt in _OPTIONS[placeholder]]
        if placeholder not in found and names:
            best = min(names, key=lambda option: _OPTIONS[placeholder].index(ranks[option]))
            words += [best, f"{{{placeholder}}}"] if best.startswith("-") else [f"{best}={{{placeholder}}}"]
    return words


# From a script


def from_script(path: Path) -> Starter:
    """Return a file for a training script: of its Hydra configuration, or of its options."""
    tree = _hydra_configuration(path)
    if tree is not None:
        return from_file(tree)
    return from_command(("python", str(path)), target=path.with_suffix(".explore.yaml"))


def _read_options(path: Path) -> Iterator[str]:
    """Yield each option that a script gives to `add_argument` or `option`; `TrainingArguments` brings its own."""
    tree = _parse(path)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if {"HfArgumentParser", "TrainingArguments"} <= names:
        yield from ("--per_device_train_batch_size", "--output_dir")
    if _is_of_hydra(path):
        yield "hydra.run.dir"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_argument", "option"):
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (text for text in texts if text.startswith("--"))


def _refuse_fixed_size(path: Path) -> None:
    """Raise an error where a script gives a number to a name of the micro-batch size, as a keyword or a variable."""
    tree = _parse(path)
    for node in ast.walk(tree):
        found: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Call):
            found = [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
        elif isinstance(node, ast.Assign):
            found = [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
        for name, value in found:
            is_number = isinstance(value, ast.Constant) and type(value.value) is int
            if name.lower() in _OPTIONS["micro_batch_size"] and is_number:
                size = ast.unparse(value)
                raise UserInputError(
                    f"{path}:{value.lineno}: {name}={size} is fixed in the script", hint=_way_out(tree, path, size)
                )


def _way_out(tree: ast.Module, path: Path, size: str) -> str:
    """Return how a script of a trainer, or of none, can take its size from outside."""
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {module.split(".")[0] for module in imported}
    if packages & {"lightning", "pytorch_lightning"}:
        return "Trainer(callbacks=[bexplore.lightning.MicroBatchSizeFinder()]) finds it in the script (docs/guide.md)"
    if packages & {"transformers", "trl"}:
        return "bexplore.transformers.explore(make_trainer) finds it in the script (docs/guide.md)"
    return (
        f'write int(os.environ.get("MICRO_BATCH_SIZE", {size})) there, then type\n'
        f"bexplore explore --env MICRO_BATCH_SIZE={{micro_batch_size}} -- python {path}"
    )


def _is_of_hydra(path: Path) -> bool:
    return _HYDRA_MAIN.search(document.read_text(path)) is not None


def _hydra_configuration(path: Path) -> Path | None:
    """Return the primary file that a script's `hydra.main` names; None where it names none that is there."""
    text = document.read_text(path)
    named = {name: re.search(rf"""{name}\s*=\s*["']([^"'\n]+)["']""", text) for name in ("config_path", "config_name")}
    if not _HYDRA_MAIN.search(text) or named["config_name"] is None:
        return None
    folder = path.parent / (named["config_path"][1] if named["config_path"] else "")
    configuration = folder / f"{named['config_name'][1].removesuffix('.yaml')}.yaml"
    return configuration if configuration.is_file() else None


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(document.read_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserInputError(f"{path} is not Python: {error}") from None
