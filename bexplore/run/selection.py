"""The variants of a job that a search takes, as a run keeps them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.config.variants import JobVariant
from bexplore.host.records import to_record
from bexplore.host.secret_values import hidden_record
from bexplore.job import Job
from bexplore.trace.cost_model import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedVariant:
    """A variant of a job, and what its trace tells."""

    name: str  # its settings in words
    settings: Mapping[str, Any]  # its values, by key of `explore.settings`
    job: Job  # its program
    cost_model: CostModel | None = None  # its trace; None where it could not be traced
    reason: str = ""  # why it could not; empty where it could

    @classmethod
    def of(cls, variant: JobVariant, traced: CostModel | str) -> TracedVariant:
        """Return a variant with its trace, or with the reason why it has none."""
        plain = cls(name=variant.name, settings=variant.values, job=variant.job)
        if isinstance(traced, CostModel):
            return dataclasses.replace(plain, cost_model=traced)
        return dataclasses.replace(plain, reason=traced)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A variant that the search does not take, and why."""

    name: str
    settings: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The variants of a job."""

    # Those that the search takes, in the order of their numbers there; the file's own is the first.
    searched: tuple[TracedVariant, ...] = ()
    left_out: tuple[LeftOut, ...] = ()  # the others

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to choose from but the size."""
        return len(self.searched) < 2

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; secrets among the arguments of a job are masked, so that it only reads."""
        record = to_record(self)
        for one in record["searched"]:
            one["job"] = hidden_record(one["job"], by_value=False)
        return record

    def with_jobs(self, jobs: Mapping[str, Job]) -> Selection:
        """Return the selection with the jobs of a configuration, by the names of its variants."""
        searched = (dataclasses.replace(one, job=jobs.get(one.name, one.job)) for one in self.searched)
        return dataclasses.replace(self, searched=tuple(searched))
