"""The call of a script with placeholders, or an error that has the complete line to type."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Sequence
from itertools import chain as chained
from pathlib import Path

from bexplore.config.command import quote_words
from bexplore.config.training_script import declared, fields, places
from bexplore.config.training_script.fixed import (
    CONFIG_VARIABLE,
    VARIABLE,
    Edit,
    find_file_with_size,
    find_fixed_size,
    find_settings_file,
)
from bexplore.config.training_script.help_text import read_help
from bexplore.config.training_script.parameters import (
    NAMES,
    Call,
    Chain,
    Interface,
    Parameter,
    chains,
    choose,
    fill,
    find_chains,
    find_written_folders,
    is_of_training,
    make_call,
    rank,
    spell,
)
from bexplore.config.training_script.ranks import needs_torchrun
from bexplore.config.training_script.source import Program
from bexplore.errors import UserInputError

# What reads a command line, the surest first: where two find a size, the first is taken.
_READERS = (
    *(fields.read_lightning, fields.read_dataclasses, declared.read_commands, fields.read_calls),
    *(declared.read_absl, declared.read_argparse, fields.read_keys),
    *(places.read_configurator, places.read_docopt, places.read_sacred, places.read_argv),
)
_MOST_SHOWN = 5  # calls or options in a message
# Options that name a file of settings, as in torchtune, nanotron, litgpt, detectron2, OpenNMT and speechbrain.
_CONFIGURATIONS = (
    *("config", "configfile", "configpath", "cfg", "conf", "hparams", "hparamsfile", "yaml", "yamlpath"),
    *("configdir", "configsdir", "confdir"),
)
# Packages that make options of the arguments of functions, which `--help` lists. Source: their documentation.
_OPTION_MAKERS = {"argbind", "plac", "defopt", "clize", "yahp"}
# Variables that torchrun, srun and mpirun set for each rank.
_OF_LAUNCHERS = re.compile(r"(LOCAL_|GROUP_)?RANK$|(LOCAL_)?WORLD_SIZE$|MASTER_|SLURM_|OMPI_|PMI_|PMIX_|TORCHELASTIC_")
_TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "1")
_PLACEHOLDER = "{micro_batch_size}"


def start_words(program: Program) -> list[str]:
    """Return the words that start a script: by torchrun where it needs its variables, else by Python.

    It is started as a module where its imports need the current folder.
    """
    python, *words = _start_by_python(program)
    return [*_TORCHRUN, *words] if needs_torchrun(program) else [python, *words]


def _start_by_python(program: Program) -> list[str]:
    script, here = program.script, Path().resolve()
    path = script.resolve()
    if path.is_relative_to(here) and path.parent != here and program.needs_current_folder():
        words = path.relative_to(here).with_suffix("").parts
        if all(word.isidentifier() for word in words):
            return ["python", "-m", ".".join(words)]
    return ["python", str(script)]


def call_of(program: Program, start: Sequence[str]) -> Call:
    """Return the call of a script by its text; raise an error with the line to type where that leaves a question."""
    interfaces = _read_interfaces(program)
    variables = places.read_variables(program)
    found = find_chains(interfaces, variables)
    if not found and "micro_batch_size" in choose([], variables):
        found = [[("", Interface("environment"))]]
    if not found:
        _refuse_without_size(program, start, interfaces)
    return _only_call(found, start, variables, program)


def call_by_help(text: str, start: Sequence[str]) -> Call:
    """Return the call of a program by its own help text."""
    interface = read_help(text, start)
    shown = quote_words(start)
    if interface.commands and "micro_batch_size" not in choose([("", interface)]):
        raise UserInputError(
            f"{shown} has commands: {', '.join(interface.commands)}",
            hint=f"name the one that trains: bexplore init --run-help -- {shown} {next(iter(interface.commands))}",
        )
    interface.commands = {}
    found = find_chains([interface])
    if not found:
        raise UserInputError(
            f"{shown} --help lists no option that is a micro-batch size{_listed([interface])}",
            hint=f"bexplore init -- {shown} OPTION {_PLACEHOLDER}, with the option that is the size",
        )
    return _only_call(found, start, (), None)


def _take_batch_of_a_step(call: Call, program: Program) -> None:
    words = take_batch_of_a_step(call.words, program)
    if words != call.words:
        call.words, size = words, call.chosen.pop("micro_batch_size")
        call.chosen = {"global_batch_size": size, **call.chosen}


def take_batch_of_a_step(words: Sequence[str], program: Program) -> list[str]:
    """Return words whose size is that of a step, where a program divides it by its accumulation."""
    if not any("{accumulation}" in word for word in words) or not places.divides_by_accumulation(program):
        return [*words]
    return [word.replace(_PLACEHOLDER, "{global_batch_size}") for word in words]


def add_to_words(words: Sequence[str], script_index: int, program: Program, taken: set[str]) -> list[str]:
    """Return the words of a typed command with the size and the output folders that they leave out."""
    words, behind = list(words), script_index + 1
    chain = _chain_typed(_read_interfaces(program), words[behind:])
    left_out = {one: name for name, one in choose(chain).items() if name not in taken and name != "accumulation"}
    if "output_dir" in taken or "output_dir" in left_out.values():
        typed = {word.partition("=")[0] for word in words}
        further = (one for one in find_written_folders(chain) if one.head.rstrip("=") not in typed)
        left_out = dict.fromkeys(further, "output_dir") | left_out
    for parameter, placeholder in left_out.items():
        if parameter.is_positional:
            continue
        # An option of the program stands before its command, one of the command behind.
        index = behind if len(chain) > 1 and parameter in chain[0][1].parameters else len(words)
        words[index:index] = parameter.words(fill(placeholder, parameter.name, parameter.default))
    return words


def _read_interfaces(program: Program) -> list[Interface]:
    found = list(chained.from_iterable(read(program) for read in _READERS))
    # Options that are added one by one stand beside those of classes, on one command line.
    flat = [one for one in found if one.style in ("argparse", fields.DATACLASSES) and not one.commands]
    for other in flat[1:]:
        flat[0].parameters += other.parameters
        flat[0].switches += other.switches
        found.remove(other)
    return found


def _chain_typed(interfaces: Sequence[Interface], words: Sequence[str]) -> Chain:
    """Return the commands that typed words name; of several interfaces the first that takes a size."""
    found: list[Chain] = []
    for interface in interfaces:
        path: Chain = [("", interface)]
        while path[-1][1].commands and (word := next((one for one in words if one in path[-1][1].commands), None)):
            path.append((word, path[-1][1].commands[word]))
        found.append(path)
    return next((path for path in found if "micro_batch_size" in choose(path)), found[0] if found else [])


def _only_call(
    found: Sequence[Chain], start: Sequence[str], variables: Sequence[Parameter], program: Program | None
) -> Call:
    shown = quote_words(start) if program is None else program.script
    calls = [make_call(chain, variables) for chain in found]
    if program is not None:
        for call in calls:
            _take_batch_of_a_step(call, program)
    lines = list(dict.fromkeys(_line(start, call) for call in calls))
    if len({tuple(word for word, _ in chain) for chain in found}) > 1:
        names = ", ".join(" ".join(word for word, _ in chain if word) for chain in found)
        raise UserInputError(f"{shown} has several commands with a micro-batch size: {names}", hint=_of(lines))
    if calls[0].missing:
        described = ", ".join(_describe(one) for one in calls[0].missing)
        stand_ins = ", ".join(one.stand_in for one in calls[0].missing)
        raise UserInputError(
            f"{shown} needs values that only you know: {described}", hint=f"write yours for {stand_ins}:\n{lines[0]}"
        )
    return calls[0]


def _of(lines: Sequence[str]) -> str:
    return "type the one that trains:\n" + "\n".join(lines[:_MOST_SHOWN])


def _line(start: Sequence[str], call: Call) -> str:
    words = [*start, *call.words]
    if not call.variables:
        return f"bexplore init -- {quote_words(words)}"
    given = " ".join(f"--env {name}={value}" for name, value in call.variables.items())
    takes_folder = any("{output_dir}" in value for value in call.variables.values())
    return f"bexplore explore {given} -- {quote_words(words)}" if takes_folder else _explore_line(f"{given} ", words)[0]


def _describe(parameter: Parameter) -> str:
    choices = f" ({', '.join(parameter.choices)})" if parameter.choices else ""
    return f"{parameter.spelt}{choices}"


def _listed(interfaces: Sequence[Interface]) -> str:
    heads = [one.head.rstrip("=") for interface in interfaces for one in interface.parameters if one.head]
    more = ", ..." if len(heads) > _MOST_SHOWN else ""
    return f": it takes {', '.join(heads[:_MOST_SHOWN])}{more}" if heads else ""


def _refuse_without_size(program: Program, start: Sequence[str], interfaces: Sequence[Interface]) -> None:
    path, shown = program.script, quote_words(start)
    fixed = find_fixed_size(program)
    if fixed is None or not fixed.is_in_script:
        _refuse_with_configuration(path, start, interfaces)
    if declared.makes_options(program):
        raise UserInputError(
            f"{path} makes options while it runs, so that its text does not name them{_listed(interfaces)}",
            hint=f"let it be asked, which runs {shown} --help once: bexplore init --run-help {shlex.quote(str(path))}",
        )
    if fixed is not None:
        raise UserInputError(
            f"{fixed.where}: {fixed.what} is fixed in the script",
            hint=_tell_edit(fixed, interfaces, start, f"--env {VARIABLE}={_PLACEHOLDER} ") + _further_way(program),
        )
    _refuse_with_settings_file(program, start, interfaces)
    flag = declared.find_config_flag(program)
    if flag:
        call = make_call(next(chains(interfaces[0]))) if interfaces else Call()
        words = [*start, f"--{flag}=CONFIG.py", *call.words, f"--{flag}.KEY={_PLACEHOLDER}"]
        raise UserInputError(
            f"no option of {path} is a micro-batch size; --{flag} names a file of Python, and an option its keys",
            hint="write yours for CONFIG.py, for KEY the size in it (training.batch_size), and what else it needs:\n"
            f"bexplore init -- {quote_words(words)}",
        )
    lightning = next((one for one in interfaces if one.style == fields.LIGHTNING_CLI), None)
    if lightning is not None:
        words = [
            *start,
            *lightning.commands,
            "--data.batch_size",
            _PLACEHOLDER,
            "--trainer.default_root_dir",
            "{output_dir}",
        ]
        raise UserInputError(
            f"{path}: neither the model nor the data module of LightningCLI, where they are seen, takes a batch size",
            hint=f"type it with the name that the size has there:\nbexplore init -- {quote_words(words)}",
        )
    positional = [one for interface in interfaces if interface.style == "sys.argv" for one in interface.parameters]
    if positional:
        words = [*start, *(one.stand_in for one in positional)]
        raise UserInputError(
            f"{path} takes words by their place, and none is named as a micro-batch size",
            hint=f"write {_PLACEHOLDER} at the place of the size and your values at the others:\n"
            f"bexplore init -- {quote_words(words)}",
        )
    hint = (
        f"write {_PLACEHOLDER} where it takes the size: bexplore init -- {shown} OPTION {_PLACEHOLDER}\n"
        f"or let it be asked, which runs {shown} --help once: bexplore init --run-help {shlex.quote(str(path))}"
    )
    if not any(one.parameters for one in interfaces):
        line, _ = _explore_line(f"--env {VARIABLE}={_PLACEHOLDER} ", start)
        hint = (
            f'write int(os.environ["{VARIABLE}"]) where the script has the size, then type:\n{line}\n'
            f"where it takes options, {hint}"
        )
    raise UserInputError(f"no option of {path} is a micro-batch size{_listed(interfaces)}", hint=hint)


def _refuse_with_configuration(path: Path, start: Sequence[str], interfaces: Sequence[Interface]) -> None:
    """Raise an error where a program takes a file of settings: its size is a key of that."""
    for chain in (one for interface in interfaces for one in chains(interface)):
        config = next(filter(_takes_configuration, chain[-1][1].parameters), None)
        if config is not None:
            words, file = make_call(chain, config=config).words, str(config.default or "CONFIG.yaml")
            named, written = "a file that may hold it", "that file"
            if Path(file).is_dir():
                words = [word.replace("{config}", "{config_dir}") for word in words]
                named, file = "a folder, of which a file may hold it", str(find_file_with_size(Path(file)))
                written = file
            line, means = _explore_line(f"{file} ", [*start, *words])
            raise UserInputError(
                f"no option of {path} is a micro-batch size; {config.spelt} names {named}",
                hint=f"write explore as the size in {written}, then type{means}:\n{line}",
            )


def _takes_configuration(parameter: Parameter) -> bool:
    return any(spell(name) in _CONFIGURATIONS for name in (parameter.name, parameter.head.rstrip("=")))


def _explore_line(options: str, words: Sequence[str]) -> tuple[str, str]:
    """Return the line that explores a command, and what it means where no output folder is handed to that."""
    shown = quote_words(words)
    if any("{output_dir}" in word for word in words):
        return f"bexplore explore {options}-- {shown}", ""
    return f"bexplore explore {options}--writes-are-fine -- {shown}", " (each start writes where the script writes)"


def _refuse_with_settings_file(program: Program, start: Sequence[str], interfaces: Sequence[Interface]) -> None:
    """Raise an error where a script names its file of settings itself: the start's copy has another place."""
    found = find_settings_file(program)
    if found is not None:
        path, edit = found
        options = f"{quote_words([str(path)])} --env {CONFIG_VARIABLE}={{config}} "
        raise UserInputError(
            f"{edit.where}: the name of {path}, which may hold the size, is fixed in the script",
            hint=f"write explore as the size in {path}, and\n{_tell_edit(edit, interfaces, start, options)}",
        )


def _tell_edit(edit: Edit, interfaces: Sequence[Interface], start: Sequence[str], options: str) -> str:
    """Return the smallest edit with which a value comes from the environment, and the line to type after it."""
    imported = ", and `import os` among the imports" if edit.needs_import else ""
    ways = [chain for interface in interfaces[:1] for chain in chains(interface)]
    training = [chain for chain in ways if is_of_training(chain)] or ways
    words = make_call(training[0]).words if training else []
    line, means = _explore_line(options, [*start, *words])
    number = edit.where.rpartition(":")[2]
    return f"write this in place of line {number}{imported}:\n{edit.line}\nthen type{means}:\n{line}"


def _further_way(program: Program) -> str:
    """Return how the library of a trainer takes a size without a command, or one of options whose text names none."""
    packages = {dotted.split(".")[0] for dotted, _ in program.main.imports.values()}
    if packages & _OPTION_MAKERS:
        path = shlex.quote(str(program.script))
        return f"\nor let it be asked for its options, which runs it with --help once: bexplore init --run-help {path}"
    if packages & {"lightning", "pytorch_lightning"}:
        if any(_is_fit_of_loaders(one.node) for one in program.calls):  # whose size no callback changes
            return ""
        return (
            "\nor Trainer(callbacks=[bexplore.lightning.MicroBatchSizeFinder()]) finds it in the script (docs/guide.md)"
        )
    if packages & {"transformers", "trl"}:
        return "\nor bexplore.transformers.explore(make_trainer) finds it in the script (docs/guide.md)"
    return ""


def _is_fit_of_loaders(call: ast.Call) -> bool:
    """Return whether a call is `trainer.fit` of a loader that the script made, and not of a DataModule or of none."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "fit":
        return False
    is_second = len(call.args) > 1 and "load" in ast.unparse(call.args[1]).lower()
    return is_second or any(one.arg == "train_dataloaders" for one in call.keywords)


def unset_variables(program: Program) -> list[str]:
    """Return the variables that a program needs and that are not set here; a launcher sets those of ranks."""
    needed = [one for one in places.read_variables(program) if one.is_required and one.name not in os.environ]
    own = [one for one in needed if not _OF_LAUNCHERS.match(one.name)]
    return [one.name for one in own if all(rank(name, place) is None for name in one.names for place in NAMES)]
