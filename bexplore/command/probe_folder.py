"""The folder of a probe: its reports and, where it has a start of its own, the observer, output, log and file."""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.command.processes import LOG
from bexplore.config.command import Command
from bexplore.host import process_tree
from bexplore.host.secret_values import hide_in_file

OBSERVER = Path(__file__).parent / "observer"
LOG_VARIABLE = "BEXPLORE_OBSERVER_LOG"  # names a file to which each observed process adds a line for each event
TOLD = ("last_step", "release", "next")  # files with a line for the ranks
# Switches with which trackers and telemetry are off, by their own documentation.
TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFolder:
    """The folder of a probe; of a further probe of a start it has reports alone."""

    path: Path

    @property
    def reports(self) -> Path:
        """Where the observer writes."""
        return self.path / "reports"

    def write(self, command: Command, values: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
        """Write all that a start needs; return the variables of its environment.

        Args:
            command: The command.
            values: The placeholders' texts.
            settings: Of the observer.
        """
        inject = self.path / "observer"
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)  # the copy of the file, the environment and what the training prints may hold secrets
        (self.path / "output").mkdir()
        self._make_reports()
        shutil.copytree(OBSERVER, inject, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(process_tree.__file__, inject / "bexplore_process_tree.py")
        (inject / process_tree.LIFE).touch()
        (inject / "place").write_text(process_tree.read_namespace())
        _compile(inject)
        if command.file is not None:
            (self.path / command.file.name).write_text(command.file.copy(values))
        _, env = command.filled(values)
        log = env.get(LOG_VARIABLE, os.environ.get(LOG_VARIABLE))
        told = {**settings, "reports": str(self.reports), "log": str(Path(log).absolute()) if log else None}
        (inject / "probe.json").write_text(json.dumps(told))
        own_path = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        path = os.pathsep.join([str(inject), *([own_path] if own_path else [])])
        # MLflow has no switch: its runs go where all that the start writes is removed.
        trackers = TRACKERS_OFF | {"MLFLOW_TRACKING_URI": (self.path.resolve() / "output" / "mlruns").as_uri()}
        trackers |= {name: value for name, value in env.items() if name in trackers}
        # For hosts to which a launcher carries PYTHONPATH alone.
        (inject / "environment").write_text("".join(f"{name}={value}\n" for name, value in trackers.items()))
        return trackers | env | {"PYTHONPATH": path}

    def beat(self) -> None:
        """Tell the ranks that the explorer lives: they leave where the file stays as it is."""
        with contextlib.suppress(OSError):
            (self.reports / "explorer").write_text(str(time.time()))

    def stop_after(self, step: int) -> None:
        """Name the step after which all ranks stop."""
        self._tell("last_step", str(step))

    def go_on(self, following: ProbeFolder, settings: Mapping[str, Any]) -> None:
        """Let the parked ranks of this probe go on with a further one.

        Args:
            following: Folder of the further probe, in which they report.
            settings: Of the observer.
        """
        following._make_reports()
        self._tell("next", json.dumps({**settings, "reports": str(following.reports)}))

    def release(self) -> None:
        """Let the ranks end: every one has its record. A folder that somebody removed keeps none of them from it."""
        with contextlib.suppress(OSError):
            self._tell("release", "now")

    def _make_reports(self) -> None:
        """Make the folder and, empty, the files that the ranks wait for.

        A host that has looked for a file in vain may not see for half a minute that there is one now, but an opened
        file has what was last written in it: close-to-open consistency, nfs(5).
        """
        self.reports.mkdir(parents=True)
        for name in TOLD:
            (self.reports / name).touch()

    def _tell(self, name: str, text: str) -> None:
        """Write the line that the ranks wait for in its file."""
        (self.reports / name).write_text(text + "\n")

    def clean(self) -> None:
        """Remove what the training wrote, its copy of the file and the observer; reports and log stay, masked."""
        shutil.rmtree(self.path / "output", ignore_errors=True)
        shutil.rmtree(self.path / "observer", ignore_errors=True)
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.is_file() and path.name != LOG:
                path.unlink(missing_ok=True)
        hide_in_file(self.path / LOG)
        self.hide_in_reports()

    def hide_in_reports(self) -> None:
        """Mask secrets in what the ranks have reported, such as the text of an exception."""
        for path in self.reports.glob("*.json"):
            hide_in_file(path)


def _compile(folder: Path) -> None:
    """Compile what every process of a start imports; a Python of another version compiles it for itself."""
    for path in folder.rglob("*.py"):
        cached = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        py_compile.compile(str(path), cfile=str(cached), doraise=True)
