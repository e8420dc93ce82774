"""The environment of the processes of an exploration whose configuration names an emulated device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bexplore.config.command import count_processes
from bexplore.config.config import Config
from bexplore.emulated_gpu.environment import emulated_environment
from bexplore.engine.process.limits import Progress
from bexplore.exploration.emulated import find_named_device
from bexplore.exploration.setup import find_launcher

_FIND_TORCH = (
    "from importlib.util import find_spec; s = find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
)
_LONGEST_FIND_S = 60.0


def build_environment(config: Config, on_progress: Progress = lambda report: None) -> dict[str, str]:
    """Build the libraries of the device that a configuration names; return the variables with which processes see it.

    Empty where the configuration names no emulated device.
    """
    if config.settings.device_name is None:
        return {}
    number, emulated = find_named_device(config)
    on_progress({"stage": "emulate", "device": emulated.name})
    return emulated_environment(
        emulated, num_devices=number or num_devices(config), torch_folder=_find_torch_folder(config)
    )


def num_devices(config: Config) -> int:
    """Return the devices that a job's or a command's ranks take on this host; 1 where no number is to be seen."""
    if config.command is None:
        launcher = find_launcher(config)
        return 1 if launcher is None else launcher.num_ranks
    return count_processes(config.command.argv, on_all_hosts=False) or 1


def _find_torch_folder(config: Config) -> Path | None:
    command = config.command
    python = None if command is None else _find_python(command.argv[0])
    if python is None:
        return None
    try:
        found = subprocess.run(
            [python, "-c", _FIND_TORCH], capture_output=True, text=True, timeout=_LONGEST_FIND_S, check=False
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(found) if found else None


def _find_python(word: str) -> str | None:
    """Return the Python that a program is, or that its first line names; None where neither is so."""
    program = shutil.which(word)
    if program is None:
        return None
    if Path(program).name.startswith("python"):
        return program
    try:
        with Path(program).open("rb") as stream:
            first = stream.read(256).split(b"\n")[0].decode(errors="replace")
    except OSError:  # it may be run, and not read
        return None
    named = first.removeprefix("#!").split() if first.startswith("#!") else []
    return named[0] if named and Path(named[0]).name.startswith("python") else None
