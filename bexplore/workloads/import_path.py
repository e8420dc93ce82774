"""Import paths of the user's own code, `package.module:name`; errors of the code itself are not caught."""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bexplore.errors import UserInputError, require, suggestion

_SECTION = "explore.workload"  # section of the configuration with the paths


def load_callable(path: Any, *, setting: str, import_root: str | None = None) -> Callable[..., Any]:
    """Import the callable that a path names; errors of the imported module are not caught."""
    module_name, colon, attribute = path.partition(":") if isinstance(path, str) else ("", "", "")
    require(
        bool(module_name and colon and attribute),
        f"{setting} is {path!r}, which is not an import path.",
        "Write package.module:name, such as my_project.model:build.",
    )
    if import_root is not None and sys.path[0] != import_root:
        sys.path.insert(0, import_root)
    found: Any = _import_module(module_name, path, setting, import_root)
    for name in attribute.split("."):
        names = [known for known in dir(found) if not known.startswith("_")]
        require(hasattr(found, name), f"{setting} is {path!r}: there is no {name!r} in it.", suggestion(name, names))
        found = getattr(found, name)
    require(callable(found), f"{setting} is {path!r}, which is no function or class.", "Name something to call.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCallable:
    """A callable of the user's own with the keyword arguments of every call."""

    path: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *positional: Any) -> Any:
        """Call the function; its errors are not caught."""
        return self.function(*positional, **self.arguments)


def load_callables(
    paths: Mapping[str, Any], arguments: Mapping[str, Any], *, import_root: str | None = None
) -> dict[str, UserCallable]:
    """Import callables that share one set of keyword arguments: each gets those that its signature names."""
    functions = {
        name: load_callable(path, setting=f"{_SECTION}.{name}", import_root=import_root) for name, path in paths.items()
    }
    taken = {name: _find_taken(function, arguments) for name, function in functions.items()}
    for argument in arguments:
        require(
            any(argument in names for names in taken.values()),
            f"{_SECTION}.arguments holds {argument!r}, which {' and '.join(map(str, paths.values()))} do not take.",
            "Remove it, or correct its name.",
        )
    return {
        name: UserCallable(path=paths[name], function=function, arguments={key: arguments[key] for key in taken[name]})
        for name, function in functions.items()
    }


def check_call(user_callable: UserCallable, *positional: str, setting: str) -> None:
    """Raise UserInputError where a call with these positional arguments lacks some, or has too many."""
    try:
        signature = inspect.signature(user_callable.function)
    except ValueError:  # some functions written in C have none
        return
    try:
        signature.bind(*positional, **user_callable.arguments)
    except TypeError as error:
        given = [*positional, *(f"{key}={value!r}" for key, value in user_callable.arguments.items())]
        raise UserInputError(
            f"{_SECTION}.{setting} is {user_callable.path!r}, whose signature {signature} does not fit the call "
            f"({', '.join(given)}): {error}.",
            hint=f"Correct {_SECTION}.arguments, or the signature.",
        ) from error


def check_calls(callables: Mapping[str, UserCallable]) -> None:
    """Check the calls of the callables that make or read batches."""
    for name, argument in (("batch", "micro_batch_size"), ("loader", "micro_batch_size"), ("samples_of", "batch")):
        if name in callables:
            check_call(callables[name], argument, setting=name)


def _find_taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions written in C have none
        return list(arguments)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return list(arguments)
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in by_keyword and parameter.name in arguments]


def _import_module(name: str, path: str, setting: str, import_root: str | None) -> Any:
    importlib.invalidate_caches()  # the file may be younger than the interpreter's listing of its folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != name and not name.startswith(f"{missing}."):
            raise  # the module exists; one of its own imports does not
        where = import_root or "the import path"
        folders = (Path.cwd(), *Path(where).parents)
        found = next((one for one in folders if (one / f"{missing}.py").is_file() or (one / missing).is_dir()), None)
        before = f"PYTHONPATH={shlex.quote(str(found))}"
        tip = f" It lies in {found}: type {before} in front of the command." if found else ""
        raise UserInputError(
            f"{setting} is {path!r}: there is no module {missing!r} in {where}.",
            hint=f"Module names are looked up next to the configuration first, then on the import path.{tip}",
        ) from error
