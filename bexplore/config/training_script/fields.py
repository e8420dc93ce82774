"""Options that a library makes of a function's arguments or of a class's fields.

typer, fire, tyro, transformers' HfArgumentParser, jsonargparse, LightningCLI, OmegaConf and what is made like them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bexplore.config.training_script.parameters import Interface, Parameter
from bexplore.config.training_script.source import UNKNOWN, Definition, Node, Program, texts

_DEEPEST = 6  # classes as fields of classes
_TRAINING_ARGUMENTS = {"per_device_train_batch_size": 8, "output_dir": None, "gradient_accumulation_steps": 1}
_TRL_SCRIPTS = ("ModelConfig", "ScriptArguments")  # of trl, which are no training arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a library spells the arguments of a function."""

    name: str  # of the library
    has_dashes: bool = False  # whether `_` in a name becomes `-`
    is_assigned: bool = False  # whether it is `name=value` in one word
    prefix: str = "--"  # before the name
    is_nested: bool = True  # whether fields of a class get the name of the argument before theirs
    required_is_positional: bool = False  # whether an argument without a default has its place as its name

    def spell(self, name: str, *, is_required: bool) -> str:
        """Return what stands before the value of a field; empty where its place is its name."""
        if is_required and self.required_is_positional and "." not in name:
            return ""
        return f"{self.prefix}{name.replace('_', '-') if self.has_dashes else name}{'=' if self.is_assigned else ''}"


TYPER = Style(name="typer", has_dashes=True, required_is_positional=True)
DATACLASSES = "HfArgumentParser"  # the style of what reads the fields of classes
LIGHTNING_CLI = "LightningCLI"
_HF = Style(name=DATACLASSES)
_LIGHTNING = Style(name=LIGHTNING_CLI)
_OMEGACONF = Style(name="OmegaConf", is_assigned=True, prefix="")
_FIRE = Style(name="fire", is_nested=False, is_assigned=True)
_TYRO = Style(name="tyro", has_dashes=True)
_JSONARGPARSE = Style(name="jsonargparse", required_is_positional=True)
_CHZ = Style(name="chz", is_assigned=True, prefix="")
_DRACCUS, _PYRALLIS = Style(name="draccus"), Style(name="pyrallis")
# The function that reads the command line, by its dotted name -> how it spells what it is given.
_CALLS = {
    "typer.run": TYPER,
    "fire.Fire": _FIRE,
    "fire.core.Fire": _FIRE,
    "tyro.cli": _TYRO,
    "tyro.extras.subcommand_cli_from_dict": _TYRO,
    "cyclopts.run": Style(name="cyclopts", has_dashes=True),
    "defopt.run": Style(name="defopt", has_dashes=True, required_is_positional=True),
    "simple_parsing.parse": Style(name="simple_parsing", is_nested=False),
    "draccus.parse": _DRACCUS,
    "pyrallis.parse": _PYRALLIS,
    "pydantic_settings.CliApp.run": Style(name="pydantic-settings"),
    "chz.entrypoint": _CHZ,
    "chz.nested_entrypoint": _CHZ,
}
_CALLS_BY_LAST = {"CLI": _JSONARGPARSE, "auto_cli": _JSONARGPARSE}  # by its last part alone: projects wrap these
_WRAPPERS = {"draccus.wrap": _DRACCUS, "pyrallis.wrap": _PYRALLIS}
_COMPONENTS = ("component", "f", "config_class", "components")  # keywords for what they are given
_PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
# Methods of jsonargparse's parser: what it is, the key before its names.
_ADDED_WITH_KEY = ("add_class_arguments", "add_dataclass_arguments", "add_function_arguments")
_TAPS = ("tap.Tap", "tap.TypedArgs")


# Arguments of functions, fields of classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """An argument of a function or a field of a class; what it does not have is an absent node."""

    name: str
    annotation: Node
    default: Node
    choices: tuple[str, ...] = ()


def list_fields(found: Node, depth: int = 0) -> list[Field]:
    """Return the arguments of a function, or of a class what it is made with."""
    if not found.is_a(ast.ClassDef):
        return _list_arguments(found)
    init = next((one for one in _list_methods(found) if one.node.name == "__init__"), None)
    if init is not None:
        return _list_arguments(init)[1:]
    fields: list[Field] = []
    for base in found.each(found.node.bases):
        above = base.find_class()
        if above and depth < _DEEPEST:
            fields += list_fields(above, depth + 1)
        elif not above and _is_training_arguments(base.name):
            fields += _list_training_arguments(found)
    for statement in found.node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            fields += _read_field(statement.target.id, found.at(statement.annotation), found.at(statement.value))
    return list({one.name: one for one in fields}.values())


def _list_arguments(function: Node) -> list[Field]:
    given = function.node.args
    places = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(places) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    named = zip([*places, *given.kwonlyargs], defaults, strict=True)
    return [
        Field(name=one.arg, annotation=function.at(one.annotation), default=function.at(default))
        for one, default in named
    ]


def _list_methods(found: Node) -> list[Node]:
    return found.each([one for one in found.node.body if isinstance(one, ast.FunctionDef)])


def _read_field(name: str, annotation: Node, default: Node) -> Iterator[Field]:
    if "ClassVar" in annotation.unparse() or name.startswith("_") or name == "model_config":
        return
    if default.is_a(ast.Call) and default.last in ("field", "Field", "HfArg"):
        if default.keyword("init").value is False:
            return
        given = default.keyword("default", "default_factory") or default.argument(0)
        default = default.at(None) if given.value is Ellipsis else given
    if default.last == "MISSING":  # of omegaconf
        default = default.at(None)
    choices: Sequence[Any] = ()
    if annotation.is_a(ast.Subscript) and annotation.at(annotation.node.value).last == "Literal":
        values = annotation.node.slice
        choices = values.elts if isinstance(values, ast.Tuple) else [values]
    yield Field(name=name, annotation=annotation, default=default, choices=tuple(texts(annotation.each(choices))))


def _is_training_arguments(name: str) -> bool:
    first, _, last = name.rpartition(".")
    is_of_trl = first.split(".")[0] == "trl" and last.endswith("Config") and last not in _TRL_SCRIPTS
    return last.endswith("TrainingArguments") or is_of_trl


def _list_training_arguments(place: Node) -> list[Field]:
    values = ((name, place.at(ast.Constant(value))) for name, value in _TRAINING_ARGUMENTS.items())
    return [Field(name=name, annotation=place.at(None), default=default) for name, default in values]


def spell_fields(style: Style, fields: Sequence[Field], before: str = "", depth: int = 0) -> list[Parameter]:
    """Return fields as a library's command line takes them, those of a class in a field included."""
    parameters: list[Parameter] = []
    for field in fields:
        name = f"{before}{field.name}"
        inner = field.annotation.find_class()
        if style is TYPER:
            parameters += _spell_by_typer(field)
        elif _is_record(inner) and depth < _DEEPEST:
            parameters += spell_fields(style, list_fields(inner), f"{name}." if style.is_nested else "", depth + 1)
        else:
            default, is_required = field.default.scalar, not field.default
            is_flag = isinstance(default, bool) or field.annotation.name == "bool"
            if not is_flag or is_required:
                is_positional = "Positional" in field.annotation.unparse()  # of tyro
                head = "" if is_positional else style.spell(name, is_required=is_required)
                parameters.append(
                    Parameter(name=name, head=head, is_required=is_required, default=default, choices=field.choices)
                )
    return parameters


def _is_record(found: Node) -> bool:
    """Return whether a class has fields, and is no enumeration."""
    bases = " ".join(map(ast.unparse, found.node.bases)) if found else "Enum"
    return "Enum" not in bases and any(isinstance(one, ast.AnnAssign) for one in found.node.body)


def _spell_by_typer(field: Field) -> Iterator[Parameter]:
    """Yield an argument of a function as typer takes it, by `Option`, `Argument` and `Annotated`."""
    annotation, default = field.annotation.unparse(), field.default
    if annotation.endswith("Context"):
        return
    described = [one for one in (default, *field.annotation.descend(ast.Call)) if one.last in ("Option", "Argument")]
    description = next((one for one in described if one.is_a(ast.Call)), default.at(None))
    if description and description.node is default.node:
        default = description.keyword("default") or description.argument(0)
    is_required = not default or default.value is Ellipsis
    value = default.scalar
    is_flag = isinstance(value, bool) or annotation.partition("[")[2].startswith("bool") or annotation == "bool"
    if is_flag and not is_required:
        return
    flags = [one for one in texts(description.arguments) if one.startswith("-")]
    flag = next((one for one in flags if one.startswith("--")), next(iter(flags), ""))
    is_positional = description.last == "Argument" or (is_required and description.last != "Option")
    head = "" if is_positional else flag or TYPER.spell(field.name, is_required=False)
    yield Parameter(name=field.name, head=head, is_required=is_required, default=value, choices=field.choices)


# One call that reads the command line into a function or a class


def read_calls(program: Program) -> Iterator[Interface]:
    """Yield what `fire.Fire(train)`, `tyro.cli(Config)` and their like take."""
    for node in program.select(ast.Call, ast.FunctionDef):
        if node.is_a(ast.Call):
            style = _CALLS.get(node.name) or _CALLS_BY_LAST.get(node.last)
            if style is not None:
                yield from _read_component(style, node.argument(0) or node.keyword(*_COMPONENTS))
        elif styles := [_WRAPPERS[one.name] for one in node.decorators if one.name in _WRAPPERS]:
            given = node.node.args.args
            yield from _read_component(styles[0], node.at(given[0].annotation)) if given else []


def _read_component(style: Style, target: Node) -> Iterator[Interface]:
    program = target.program
    if not target:  # all of the script
        main = Node(program, program.main, None)
        own = ((name, node) for name, node in program.main.definitions.items() if isinstance(node, ast.FunctionDef))
        at_top = [(name, node) for name, node in own if program.main.parents.get(id(node)) is program.main.tree]
        yield _read_several(style, [(name, main.at(node)) for name, node in at_top])
        return
    found = target.find() or target
    node = found.node
    if isinstance(node, ast.Dict):
        words = [str(key.value) for key in found.each(node.keys)]
        values = [one.find() for one in found.each(node.values)]
        yield _read_several(style, [(word, one) for word, one in zip(words, values, strict=True) if one])
    elif isinstance(node, ast.List | ast.Tuple):
        values = [one.find() for one in found.each(node.elts)]
        yield _read_several(style, [(getattr(one.node, "name", ""), one) for one in values if one])
    elif style is _TYRO and (kinds := _list_union(found)):
        words = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.unparse()).lower() for kind in kinds]
        yield _read_several(style, [(word, kind.find()) for word, kind in zip(words, kinds, strict=True)])
    elif isinstance(node, ast.Call) and (made := found.find_class()):
        yield Interface(style.name, [], _read_methods(style, made))
    elif isinstance(node, Definition):
        yield _read_one(style, found)
    elif isinstance(node, ast.Attribute) and (made := found.owner.find_class()):
        method = _read_methods(style, made).get(node.attr)  # Fire(Trainer().train)
        yield from [] if method is None else [method]


def _list_union(found: Node) -> list[Node]:
    """Return the members of `A | B` and of `Union[A, B]`; none of another expression."""
    node = found.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left = found.at(node.left)
        return [*(_list_union(left) or [left]), found.at(node.right)]
    is_union = isinstance(node, ast.Subscript) and found.at(node.value).last == "Union"
    return found.each(node.slice.elts) if is_union and isinstance(node.slice, ast.Tuple) else []


def _read_several(style: Style, functions: Sequence[tuple[str, Node]]) -> Interface:
    commands = {name: _read_one(style, one) for name, one in functions if one.is_a(Definition)}
    if style is _JSONARGPARSE and len(commands) == 1:  # the only one is not named
        return next(iter(commands.values()))
    return Interface(style.name, [], commands)


def _read_one(style: Style, found: Node) -> Interface:
    interface = Interface(style.name, spell_fields(style, list_fields(found)))
    if found.is_a(ast.ClassDef) and style in (_FIRE, _JSONARGPARSE) and not _is_record(found):
        interface.commands = _read_methods(style, found)
    return interface


def _read_methods(style: Style, found: Node) -> dict[str, Interface]:
    methods = [one for one in _list_methods(found) if not one.node.name.startswith("_")]
    return {one.node.name: Interface(style.name, spell_fields(style, _list_arguments(one)[1:])) for one in methods}


# Classes that a parser reads: transformers, simple_parsing, typed-argument-parser


def read_dataclasses(program: Program) -> Iterator[Interface]:
    """Yield the fields of the classes that HfArgumentParser, TrlParser, simple_parsing and Tap read."""
    fields: list[Parameter] = []
    for node in program.select(ast.Call, ast.ClassDef):
        if node.is_a(ast.ClassDef):
            if any(base.name in _TAPS for base in node.each(node.node.bases)):
                fields += spell_fields(_HF, list_fields(node))
        elif node.last in _PARSERS:
            fields += _read_classes(node.argument(0) or node.keyword("dataclass_types"))
        elif node.last in _ADDED_WITH_KEY and (found := node.argument(0).find()).is_a(Definition):
            values = node.each([one.value for one in node.node.keywords])
            keys = texts([node.argument(1)]) or texts(values)
            fields += spell_fields(_HF, list_fields(found), f"{keys[0]}." if keys else "")
        elif node.last == "add_arguments" and (found := node.argument(0).find_class()):
            fields += spell_fields(replace(_HF, is_nested=False), list_fields(found))
    if fields:
        yield Interface(_HF.name, fields)


def _read_classes(given: Node) -> Iterator[Parameter]:
    found = given.find()
    listed = found if found.is_a(ast.List, ast.Tuple) else given
    for one in listed.each(listed.node.elts) if listed.is_a(ast.List, ast.Tuple) else [given]:
        own = one.find_class()
        if own:
            yield from spell_fields(_HF, list_fields(own))
        elif _is_training_arguments(one.name):
            yield from spell_fields(_HF, _list_training_arguments(one))


# Keys of a configuration: LightningCLI, OmegaConf, Hydra's structured configurations


def read_lightning(program: Program) -> Iterator[Interface]:
    """Yield what `LightningCLI` takes behind `fit`: arguments of the model, the data and the trainer."""
    for call in program.calls:
        made = call.find_class()
        bases = made.each(made.node.bases) if made else []
        if LIGHTNING_CLI not in (call.last, *(base.last for base in bases)):
            continue
        model = call.argument(0) or call.keyword("model_class")
        data = call.argument(1) or call.keyword("data_class", "datamodule_class")
        groups = (("model", "LightningModule", model), ("data", "LightningDataModule", data))
        # What gets the value of another is given by nobody.
        linked = texts([one.argument(1) for one in program.calls if one.method == "link_arguments"])
        parameters = [one for group in groups for one in _read_group(*group) if one.name not in linked]
        for name in ("accumulate_grad_batches", "default_root_dir"):
            parameters.append(Parameter(name=f"trainer.{name}", head=f"--trainer.{name}"))
        own = Interface(LIGHTNING_CLI, parameters)
        yield own if call.keyword("run").value is False else Interface(LIGHTNING_CLI, [], {"fit": own})


def _read_group(group: str, base: str, expr: Node) -> Iterator[Parameter]:
    found = expr.find_class()
    if not expr:
        classes = expr.program.select(ast.ClassDef)
        named = [one for one in classes if any(above.last == base for above in one.each(one.node.bases))]
        if len(named) == 1:
            found = named[0]
            yield Parameter(name=group, head=f"--{group}", is_required=True, default=found.node.name)
    if found:
        fields = [one for one in list_fields(found) if one.name not in ("args", "kwargs")]
        yield from spell_fields(_LIGHTNING, fields, f"{group}.")


def read_keys(program: Program) -> Iterator[Interface]:
    """Yield the keys of configurations that `OmegaConf.from_cli` or Hydra merges with the command line."""
    names = {call.name for call in program.calls}
    is_hydra = "hydra.main" in names
    if not is_hydra and not any(name.endswith("OmegaConf.from_cli") for name in names):
        return
    parameters: list[Parameter] = []
    for call in program.calls:
        if call.last not in ("store", "structured", "create"):
            continue
        given = call.keyword("node") if call.last == "store" else call.argument(0)
        found = given.find_class()
        if found:
            parameters += spell_fields(_OMEGACONF, list_fields(found))
        elif isinstance(value := given.value, dict):
            parameters += _read_keys_of(value)
    if is_hydra:
        parameters.append(Parameter(name="hydra.run.dir", head="hydra.run.dir="))
    yield Interface("Hydra" if is_hydra else _OMEGACONF.name, parameters)


def _read_keys_of(values: dict[Any, Any], before: str = "") -> Iterator[Parameter]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _read_keys_of(value, f"{before}{key}.")
        elif value is not UNKNOWN and not isinstance(value, list):
            yield Parameter(name=f"{before}{key}", head=f"{before}{key}=", default=value)
