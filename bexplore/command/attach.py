"""The observer by a `.pth` file, for a Python that ignores PYTHONPATH (`-I`, `-E`, a launcher that clears it)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bexplore.command.processes import MARK
from bexplore.errors import UserInputError

NAME = "bexplore_attach.pth"
# One line, as `site` wants it. It does nothing outside of a probe: the mark of a start names the start's folder.
LINE = (
    "import os; "
    f"p = os.path.join(os.environ.get('{MARK}', ''), 'observer', 'sitecustomize.py'); "
    f"os.environ.get('{MARK}') and os.path.exists(p) and "
    "exec(compile(open(p).read(), p, 'exec'), {'__file__': p, '__name__': 'bexplore_attach'})\n"
)
_SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"


def site_packages(python: str) -> Path:
    """Return the folder in which a Python looks for `.pth` files.

    Raises:
        UserInputError: It cannot be run.
    """
    try:
        answer = subprocess.run([python, "-c", _SITE], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserInputError(f"{python} cannot be run: {error}", hint="name the Python that trains") from error
    return Path(answer.stdout.strip())


def install(python: str) -> Path:
    """Write the `.pth` file of a Python; return its path.

    Raises:
        UserInputError: The folder cannot be written, or the Python cannot be run.
    """
    path = site_packages(python) / NAME
    try:
        path.write_text(LINE)
    except OSError as error:
        raise UserInputError(
            f"cannot write {path}: {error.strerror}", hint="use the Python of an environment of yours"
        ) from error
    return path


def remove(python: str) -> Path | None:
    """Remove the `.pth` file of a Python; return its path, None where there was none."""
    path = site_packages(python) / NAME
    if not path.exists():
        return None
    path.unlink()
    return path
