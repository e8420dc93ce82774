"""Import paths of the user's own code, `package.module:name`: what is wrong with the path is said, the code is not."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bexplore.errors import UserInputError
from bexplore.workloads.settings import require, suggestion


def load_callable(path: Any, *, setting: str, import_root: str | None = None) -> Callable[..., Any]:
    """Import what a path names.

    Args:
        path: `package.module:name`, where the name may have dots of its own.
        setting: Where the path stands in the configuration, for messages.
        import_root: Folder put first on the import path, and left there for imports that come later.

    Raises:
        UserInputError: The path itself is wrong. Whatever the imported module raises is not caught.
    """
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


def check_arguments(function: Callable[..., Any], *positional: Any, given: Mapping[str, Any], setting: str) -> None:
    """Raise UserInputError where a function cannot be called with these arguments.

    Args:
        function: What will be called.
        positional: Stand-ins for the positional arguments.
        given: Its keyword arguments.
        setting: Where the function stands in the configuration, for messages.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return
    try:
        signature.bind(*positional, **given)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UserInputError(
            f"{setting} names {name}{signature}, which cannot be called with {dict(given)}: {error}.",
            hint="Correct the arguments in the configuration, or the function's signature.",
        ) from error


def _import_module(name: str, path: str, setting: str, import_root: str | None) -> Any:
    importlib.invalidate_caches()  # the file may be younger than the interpreter's view of its folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != name and not name.startswith(f"{missing}."):
            raise  # the module is there; something that it imports is not
        where = import_root or "the import path"
        raise UserInputError(
            f"{setting} is {path!r}: there is no module {missing!r} in {where}.",
            hint="Module names are looked up next to the configuration first, then among installed packages.",
        ) from error
