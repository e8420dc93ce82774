"""Rules as data: when one applies, what is seen, what to try, and where the rule is from; one loop evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bexplore.run.bottleneck import PLAYBOOK, Bottleneck

Evidence = TypeVar("Evidence")


@dataclass(frozen=True, slots=True)
class Rule(Generic[Evidence]):
    """One rule. Texts are templates of `str.format` over the values that `when` returns.

    Attributes:
        kind: As in `Bottleneck`.
        when: Returns the values of the texts; None where the rule does not apply.
        text: The observation.
        action: What to try; empty where nothing needs to be done.
        source: Where the rule comes from.
    """

    kind: str
    when: Callable[[Evidence], Mapping[str, Any] | None]
    text: str
    action: str = ""
    source: str = PLAYBOOK


def evaluate_rules(rules: Iterable[Rule[Evidence]], evidence: Evidence) -> Iterator[Bottleneck]:
    """Yield a finding for each rule that applies; its evidence is the values that are numbers."""
    for rule in rules:
        values = rule.when(evidence)
        if values is not None:
            yield Bottleneck(
                kind=rule.kind,
                finding=rule.text.format(**values),
                action=rule.action.format(**values),
                source=rule.source,
                evidence={name: value for name, value in values.items() if isinstance(value, int | float)},
            )
