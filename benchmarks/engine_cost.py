"""What tuning costs in all: the seconds of a finder, and those that a long training loses at its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.config.schema import TRAINING_TIME_S

TRAINING_S = TRAINING_TIME_S
OURS, SWEEP = "bexplore", "sweep"
SHARE_OF_JOBS = 0.75  # in which ours is to be below every rival: 3 of 4

Record = Mapping[str, Any]


def finders(job: Record) -> list[dict[str, Any]]:
    """Each finder's median run of a job, by what it costs in all; ours first.

    A training at an answer that a check of 100 steps saw end has no finite cost. `cost_s` is then what it would be if
    that training had gone on, `ends` says how it ended, and such a run counts as dearer than any that goes on.

    Args:
        job: Of `jobs` in the results: `explorations`, `rivals` and `sweeps`.

    Returns:
        `name`, the fields of the run (`answer`, `total_s`, `regret`, ...), `loss_s` and `cost_s` (None where the
        truth does not reach the answer), `sure_loss_s` (beyond the truth's interval), `ends` and `costs_s` of all runs.
    """
    ours = [_of_exploration(run) for run in job["explorations"]]
    sweeps = [_known(run, SWEEP) for run in job["sweeps"]]
    names = dict.fromkeys(rival["name"] for rival in job["rivals"])
    rivals = [[_known(one, name) for one in job["rivals"] if one["name"] == name] for name in names]
    return [_median(runs) for runs in (ours, *rivals, sweeps) if runs]


def sums(jobs: Mapping[str, Record]) -> dict[str, float | None]:
    """Seconds over all jobs by finder, ours first; None where a cost of one job is not known."""
    by_job = {job: {one["name"]: one["cost_s"] for one in finders(row)} for job, row in jobs.items()}
    names = dict.fromkeys([OURS, *(name for costs in by_job.values() for name in costs)])
    found = {name: [costs.get(name) for costs in by_job.values()] for name in names}
    return {name: None if None in costs else sum(c for c in costs if c is not None) for name, costs in found.items()}


def beats_every_rival(job: Record) -> bool | None:
    """Whether ours costs less than each other finder; None where that is not known.

    The answer of another that ends in a training counts as if it went on, so that nothing is won by that alone; ours
    then loses.
    """
    ours, *others = finders(job) or [None]
    if ours is None or ours["name"] != OURS or not others:
        return None
    if ours["ends"]:
        return False
    costs = [one["cost_s"] for one in (ours, *others)]
    return None if None in costs else costs[0] < min(costs[1:])


def cheapest_rival(job: Record) -> dict[str, Any]:
    """The other finder that costs least, its answer counted as if it went on."""
    return min((one for one in finders(job) if one["name"] != OURS), key=lambda one: one["cost_s"])


def _of_exploration(run: Record) -> dict[str, Any]:
    own = {"answer": run["micro_batch_size"], "num_trials": run["num_probes"], "was_run": True}
    return _known({**run, **own}, OURS)


def _known(run: Record, name: str) -> dict[str, Any]:
    """A run with what it costs."""
    regret = run["regret"]
    loss_s = None if regret is None else TRAINING_S * regret["estimate"]
    return {
        **run,
        "name": name,
        "loss_s": loss_s,
        "sure_loss_s": None if regret is None else TRAINING_S * regret["beyond_interval"],
        "cost_s": None if loss_s is None else run["total_s"] + loss_s,
        "ends": run["survived"] if run["survived"].startswith(("no:", "in ")) else "",
    }


def _median(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The run in the middle, the dearer of two; what ends is dearer than what goes on, and the unknown dearest."""

    def dearness(run: Mapping[str, Any]) -> tuple[bool, bool, float]:
        return run["cost_s"] is None, bool(run["ends"]), run["total_s"] + (run["loss_s"] or 0.0)

    ordered = sorted(runs, key=dearness)
    return {**ordered[len(ordered) // 2], "costs_s": [run["cost_s"] for run in ordered]}
