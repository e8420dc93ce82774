"""What was checked at the recommended size: gradients, the data loader, and what else limits the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bexplore.measurement.probe import Observation
from bexplore.run.parts.row import Row, View
from bexplore.units import counted, format_rate

PLAYBOOK = "google-research/tuning_playbook"
MAX_BOTTLENECKS = 2  # rows: the most important; the report lists all


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One finding."""

    # `input`, `communication`, `compute`, `bandwidth`, `launch`, `capacity`, `maximum`, `update`, `graph_breaks`,
    # `saturated`, `precision` or `shape`.
    kind: str
    finding: str  # the observation, with its numbers
    action: str = ""  # what to try; empty where nothing needs to be done
    source: str = PLAYBOOK  # where the rule comes from
    evidence: Mapping[str, float | int] = field(default_factory=dict)  # the same numbers by name, units in the names


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksPart:
    """What was checked at the recommended size."""

    gradient_equivalence: Mapping[str, Any] | None = None  # the gradient check's answer: `message` and numbers
    # The timing of the user's data loader: `samples_per_s`, `num_workers`, `problem` (empty for none).
    loader: Mapping[str, Any] | None = None
    bottlenecks: tuple[Bottleneck, ...] = ()  # limits other than the size, the most important first

    def rows(self, view: View) -> Iterator[Row]:
        """Yield whether the size changes the training, the speed of the loader, and the most important limits."""
        message = (self.gradient_equivalence or {}).get("message")
        if message:
            yield Row("training", message)
        loader = self.loader_words()
        if loader:
            yield Row("input", loader)
        for item in self.bottlenecks[:MAX_BOTTLENECKS]:
            yield Row("limits", item.finding + (f"; try: {item.action}" if item.action else ""))

    def loader_words(self) -> str | None:
        """Return the measured speed of the user's loader; None where there is none, or it could not be timed."""
        loader = self.loader
        if not loader or loader["problem"]:
            return None
        workers = "" if loader["num_workers"] is None else f", {counted(loader['num_workers'], 'worker')}"
        speed = f"{format_rate(loader['samples_per_s'])} samples/s"
        return f"your data loader gives {speed} (timed alone, no step beside it{workers})"


def not_compared_in_command(ran: Observation | None) -> dict[str, Any]:
    """Return what is known of the gradients of a training command, whose batches are its own."""
    coupled = (ran.details.get("batch_coupled") if ran else None) or ()
    message = "Gradients of two micro-batch sizes were not compared: a training command has batches of its own."
    if coupled:
        names = ", ".join(coupled)
        message += (
            f" It has {names}, with which the result of a sample depends on its batch: the size changes the training."
        )
    return {"same": None, "message": message, "modules": list(coupled)}


def not_compared_on_emulated_device() -> dict[str, Any]:
    """Return what is known of gradients on a device that computes nothing."""
    message = "Gradients of two micro-batch sizes were not compared: the device is emulated, and computes nothing."
    return {"same": None, "message": message, "modules": []}
