"""What an exception is really about: its innermost cause, and the user's line that led to it."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

_OWN_PACKAGE = str(Path(__file__).parents[1]) + "/"
_STANDARD = str(Path(sysconfig.get_path("stdlib"))) + "/"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_OF_TORCH = "/torch/"
# Where Dynamo runs no line of the user's, its message quotes them. Source: torch/_dynamo/exc.py, augment_exc_message.
_FROM_USER_CODE = "from user code:"
# Below a heading Dynamo explains it, of an operator by its arguments and, at the end, what that raised. Source:
# `format_graph_break_message` in torch/_dynamo/exc.py and `wrap_fake_exception` in torch/_dynamo/utils.py, torch 2.13.
_EXPLANATION = "Explanation: "
_RAISED = "): got "
_QUOTED_FRAME = re.compile(r'File "([^"<]+)", line (\d+)')


def list_causes(error: BaseException) -> list[BaseException]:
    """Return the exception and its explicit causes, outermost first."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        # `inner_exception` is that of torch/_dynamo/exc.py, BackendCompilerFailed
        link = link.__cause__ or getattr(link, "inner_exception", None)
    return links


def find_cause(error: BaseException) -> BaseException:
    """Return the innermost explicit cause that says anything."""
    return next((link for link in reversed(list_causes(error)) if str(link).strip()), error)


def join_explanation(lines: Sequence[str]) -> list[str]:
    """Return the lines of a message with what the compiler explains in its first one."""
    if len(lines) < 2 or not lines[1].startswith(_EXPLANATION):
        return list(lines)
    explained = lines[1].removeprefix(_EXPLANATION)
    return [f"{lines[0]}: {explained.rpartition(_RAISED)[2]}", *lines[2:]]


def find_place(error: BaseException) -> str:
    """Return `file:line` of the user's innermost line; of an installed package's where none is the user's own.

    Neither torch's nor bexplore's files are a place where the user should look. Empty where there is no other.
    """
    frames = list(_list_frames(error))
    own = [frame for frame in frames if not any(part in frame[0] for part in _INSTALLED)]
    file, line = (own or frames or [("", 0)])[-1]
    return f"{file}:{line}" if file else ""


def _list_frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield file and line of the frames of an exception and its causes that are no machinery, the innermost last."""
    for link in list_causes(error):
        found = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(link.__traceback__)]
        _, _, quoted = str(link).partition(_FROM_USER_CODE)
        found += [(file, int(line)) for file, line in _QUOTED_FRAME.findall(quoted)]
        yield from ((file, line) for file, line in found if not _is_machinery(file))


def _is_machinery(file: str) -> bool:
    is_standard = file.startswith(_STANDARD) and not any(part in file for part in _INSTALLED)
    return _OF_TORCH in file or file.startswith((_OWN_PACKAGE, "<")) or is_standard
