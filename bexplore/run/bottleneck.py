"""A limit of a job other than its micro-batch size, as a result keeps it; diagnosis/ finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PLAYBOOK = "google-research/tuning_playbook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One finding.

    Attributes:
        kind: `input`, `communication`, `compute`, `bandwidth`, `launch`, `capacity`, `update`, `graph_breaks`,
            `saturated`, `precision` or `shape`.
        finding: The observation, with its numbers.
        action: What to try; empty where nothing needs to be done.
        source: Where the rule comes from.
        evidence: The same numbers by name, units in the names.
    """

    kind: str
    finding: str
    action: str = ""
    source: str = PLAYBOOK
    evidence: Mapping[str, float | int] = field(default_factory=dict)
