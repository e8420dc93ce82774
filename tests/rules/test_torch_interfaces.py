"""The table of PyTorch's private interfaces lists those that the product uses, and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import bexplore
from bexplore.host.torch_interfaces import CHECKED_VERSIONS, PRIVATE_INTERFACES, is_checked, version_warnings

PACKAGE = Path(bexplore.__file__).parent
USERS = sorted(PACKAGE.rglob("torch_private.py"))
LISTED = [name for names in PRIVATE_INTERFACES.values() for name in names]


def used(tree: ast.Module) -> Iterator[str]:
    """Dotted names of torch that a file imports, reads, or patches by a literal name."""
    local: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "torch":
                    local[one.asname or "torch"] = one.name if one.asname else "torch"
                    yield one.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for one in node.names:
                local[one.asname or one.name] = f"{node.module}.{one.name}"
                yield f"{node.module}.{one.name}"

    def dotted(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return local.get(node.id)
        if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
            return f"{base}.{node.attr}"
        return None

    for node in ast.walk(tree):
        if name := dotted(node):
            yield name
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "find_interface":
            yield ast.literal_eval(node.args[0])
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("mock.patch.object", "setattr"):
            owner, attribute = dotted(node.args[0]), node.args[1]
            if owner and isinstance(attribute, ast.Constant):
                yield f"{owner}.{attribute.value}"


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def test_the_table_has_each_private_interface_that_is_used():
    names = {name for path in USERS for name in used(ast.parse(path.read_text())) if is_private(name)}
    listed = {".".join(name.split(".")[:length]) for name in LISTED for length in range(1, name.count(".") + 2)}
    assert sorted(name for name in names if name not in listed) == []


def test_the_table_has_no_interface_that_is_not_used():
    text = "\n".join(path.read_text() for path in USERS)
    assert [name for name in LISTED if name.rpartition(".")[2] not in text] == []


def test_an_interface_is_listed_once():
    assert sorted(LISTED) == sorted(set(LISTED))


def test_a_version_that_was_not_tested_is_one_warning_and_a_patch_or_a_build_of_one_that_was_is_none():
    assert [is_checked(f"{one}{rest}") for one in CHECKED_VERSIONS for rest in ("", ".0", ".7+cu130")] == [True] * 15
    assert version_warnings("2.13.0+cpu") == version_warnings("absent") == ()
    for version in ("2.16.0", "2.16.0.dev20270101+cu140", "3.0.0", "2.1.5"):
        (text,) = version_warnings(version)
        assert version in text and "bexplore doctor" in text
