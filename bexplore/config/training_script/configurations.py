"""Keys of a configuration that the command line changes: LightningCLI, OmegaConf, Hydra's structured configurations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from bexplore.config.training_script.declared import keyword, texts
from bexplore.config.training_script.parameters import Interface, Parameter
from bexplore.config.training_script.signatures import Style, list_fields, spell_fields
from bexplore.config.training_script.source import UNKNOWN, Found, Module, Program

LIGHTNING_CLI = "LightningCLI"
_LIGHTNING = Style(name=LIGHTNING_CLI)
_ASSIGNED = Style(name="OmegaConf", is_assigned=True, prefix="")

# LightningCLI


def read_lightning(program: Program) -> Iterator[Interface]:
    """Yield what `LightningCLI` takes behind `fit`: arguments of the model, the data and the trainer."""
    for module, node in program.walk():
        if not isinstance(node, ast.Call) or not _is_lightning_cli(program, module, node):
            continue
        places = dict(zip(("model", "data"), node.args, strict=False))
        parameters: list[Parameter] = []
        for group, base in (("model", "Module"), ("data", "DataModule")):
            expr = places.get(group) or keyword(node, f"{group}_class", "datamodule_class" if group == "data" else "")
            parameters += _lightning_group(program, module, group, base, expr)
        linked = _linked_arguments(program)
        parameters = [one for one in parameters if one.name not in linked]
        for name in ("accumulate_grad_batches", "default_root_dir"):
            parameters.append(Parameter(name=f"trainer.{name}", head=f"--trainer.{name}"))
        own = Interface(_LIGHTNING.name, parameters)
        runs = program.value(module, keyword(node, "run"))
        yield own if runs is False else Interface(_LIGHTNING.name, [], {"fit": own})


def _is_lightning_cli(program: Program, module: Module, call: ast.Call) -> bool:
    if program.name(module, call).split(".")[-1] == "LightningCLI":
        return True
    found = program.find_class(module, call)
    bases = found.node.bases if found is not None and isinstance(found.node, ast.ClassDef) else []
    return any(program.name(found.module, base).split(".")[-1] == "LightningCLI" for base in bases)  # type: ignore[union-attr]


def _lightning_group(
    program: Program, module: Module, group: str, base: str, expr: ast.expr | None
) -> Iterator[Parameter]:
    found = program.find_class(module, expr)
    if found is None and expr is None:
        named = [
            Found(where, node)
            for where, node in program.walk()
            if isinstance(node, ast.ClassDef)
            and any(program.name(where, one).split(".")[-1] == f"Lightning{base}" for one in node.bases)
        ]
        found = named[0] if len(named) == 1 else None
        if found is not None:
            name = found.node.name  # type: ignore[attr-defined]
            yield Parameter(name=group, head=f"--{group}", is_required=True, default=name)
    if found is not None:
        fields = [one for one in list_fields(program, found) if one.name not in ("args", "kwargs")]
        yield from spell_fields(program, _LIGHTNING, fields, f"{group}.")


def _linked_arguments(program: Program) -> set[str]:
    """Return the arguments that get the value of others, which nobody gives by hand."""
    calls = [(module, node) for module, node in program.walk() if isinstance(node, ast.Call)]
    links = [(module, node) for module, node in calls if getattr(node.func, "attr", "") == "link_arguments"]
    return {text for module, node in links for text in texts(program, module, node.args[1:2])}


# Keys as `name=value`: OmegaConf, Hydra's structured configurations


def read_keys(program: Program) -> Iterator[Interface]:
    """Yield the keys of configurations that `OmegaConf.from_cli` or Hydra merges with the command line."""
    calls = [(module, node) for module, node in program.walk() if isinstance(node, ast.Call)]
    names = {program.name(module, node) for module, node in calls}
    is_hydra = "hydra.main" in names
    if not is_hydra and not any(name.endswith("OmegaConf.from_cli") for name in names):
        return
    parameters: list[Parameter] = []
    for module, node in calls:
        last = program.name(module, node).split(".")[-1]
        given = next(iter(node.args), None)
        if last == "store":
            given = keyword(node, "node")
        if last not in ("store", "structured", "create") or given is None:
            continue
        found = program.find_class(module, given)
        if found is not None:
            parameters += spell_fields(program, _ASSIGNED, list_fields(program, found))
        elif isinstance(value := program.value(module, given), dict):
            parameters += _keys_of(value)
    if is_hydra:
        parameters.append(Parameter(name="hydra.run.dir", head="hydra.run.dir="))
    yield Interface("Hydra" if is_hydra else _ASSIGNED.name, parameters)


def _keys_of(values: dict[Any, Any], before: str = "") -> Iterator[Parameter]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _keys_of(value, f"{before}{key}.")
        elif value is not UNKNOWN and not isinstance(value, list):
            yield Parameter(name=f"{before}{key}", head=f"{before}{key}=", default=value)
