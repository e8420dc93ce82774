"""The observer by a `.pth` file, for a Python that ignores PYTHONPATH (`-I`, `-E`).

The file does something only in a process of a start, whose mark is in its environment: a launcher that clears the
environment clears the mark, too.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from bexplore.engine.protocol.failures import describe_exit
from bexplore.errors import UserInputError
from bexplore.host.json_files import replace_file
from bexplore.host.process_tree import PROBE_MARK

NAME = "bexplore_attach.pth"
# One line, as `site` wants it. It does nothing outside of a probe: the mark of a start names the start's folder.
LINE = (
    "import os; "
    f"p = os.path.join(os.environ.get('{PROBE_MARK}', ''), 'observer', 'sitecustomize.py'); "
    f"os.environ.get('{PROBE_MARK}') and os.path.exists(p) and "
    "exec(compile(open(p).read(), p, 'exec'), {'__file__': p, '__name__': 'bexplore_attach'})\n"
)
# Written by a Python, behind whatever its own `sitecustomize` writes.
_SITE = "import sysconfig; print(); print(sysconfig.get_paths()['purelib'])"
_SEEN = "print('bexplore: loaded')"
_PYTHON_S = 60.0  # for a Python to start. Source: far above the seconds of a cold network disk


def site_packages(python: str) -> Path:
    """Return the folder in which a Python looks for `.pth` files."""
    lines = _run(python, _SITE).splitlines()
    folder = Path(lines[-1]) if lines else Path()
    if not folder.is_absolute():
        raise UserInputError(f"{python} is no Python: it does not name its site-packages", hint=_NAME_IT)
    return folder


def install(python: str) -> Path:
    """Write the `.pth` file of a Python, and see that it is read there; return its path."""
    path = site_packages(python) / NAME
    try:
        replace_file(path, LINE.encode())  # a Python that starts meanwhile reads no half of a line
    except OSError as error:
        raise _not_allowed("write", path, error) from error
    if not _is_read(python):
        path.unlink()
        raise UserInputError(
            f"{python} does not read {path} when it starts: it runs without `site`, or has its packages elsewhere",
            hint="let the command start a Python that reads PYTHONPATH, without -I, -E and -S",
        )
    return path


def remove(python: str) -> Path | None:
    """Remove the `.pth` file of a Python; return its path, None where there was none."""
    path = site_packages(python) / NAME
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _not_allowed("remove", path, error) from error
    return path


_NAME_IT = "name the Python that trains: `python=/opt/training/bin/python`"


def _run(python: str, program: str, **variables: str) -> str:
    """Return what a Python writes that ignores its environment, as the training's does."""
    command, environment = [python, "-I", "-c", program], os.environ | variables
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=_PYTHON_S
        ).stdout
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()[-1:] or [f"it {describe_exit(error.returncode)}"]
        raise UserInputError(f"{python} cannot be run: {said[0]}", hint=_NAME_IT) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise UserInputError(f"{python} cannot be run: {error}", hint=_NAME_IT) from error


def _is_read(python: str) -> bool:
    """Return whether a Python loads what stands in the place of the observer when it starts as in a probe."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "observer", "sitecustomize.py")
        program.parent.mkdir()
        program.write_text(_SEEN)
        return "bexplore: loaded" in _run(python, "", **{PROBE_MARK: folder})


def _not_allowed(verb: str, path: Path, error: OSError) -> UserInputError:
    command = shlex.join(
        ["bexplore", "attach", f"--{'install' if verb == 'write' else 'remove'}", "--python", "PYTHON"]
    )
    return UserInputError(
        f"cannot {verb} {path}: {error.strerror}",
        hint=f"type it as the owner of {path.parent}, or with the Python of an environment of yours: {command}",
    )
