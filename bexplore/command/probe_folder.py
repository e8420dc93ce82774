"""The folder of a probe: its reports and, where it has a start of its own, the observer, output, log and file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bexplore.config.command import Command

OBSERVER = Path(__file__).parent / "observer"
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
    """The folder of a probe; of a further probe of a start it has reports alone.

    Attributes:
        path: The folder.
    """

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
        for folder in (self.path / "output", self.reports, inject):
            folder.mkdir(parents=True)
        for source in OBSERVER.glob("*.py"):
            shutil.copyfile(source, inject / source.name)
        (inject / "probe.json").write_text(json.dumps({**settings, "reports": str(self.reports)}))
        if command.file is not None:
            (self.path / command.file.name).write_text(command.file.copy(values))
        _, env = command.filled(values)
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
        self._report("last_step", str(step))

    def go_on(self, following: ProbeFolder, settings: Mapping[str, Any]) -> None:
        """Let the parked ranks of this probe go on with a further one.

        Args:
            following: Folder of the further probe, in which they report.
            settings: Of the observer.
        """
        following.reports.mkdir(parents=True)
        self._report("next", json.dumps({**settings, "reports": str(following.reports)}))

    def release(self) -> None:
        """Let the ranks end: every one has its record. A folder that somebody removed keeps none of them from it."""
        with contextlib.suppress(OSError):
            (self.reports / "release").touch()

    def _report(self, name: str, text: str) -> None:
        """Write a file that the ranks wait for, whole."""
        part = self.reports / f"{name}.part"
        part.write_text(text)
        part.replace(self.reports / name)

    def clean(self) -> None:
        """Remove what the training wrote and what the observer was loaded from; reports and log stay."""
        shutil.rmtree(self.path / "output", ignore_errors=True)
        shutil.rmtree(self.path / "observer", ignore_errors=True)
