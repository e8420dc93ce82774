"""Observations at the speed that the result tells of their size, so that no two numbers of one size disagree."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bexplore.measurement.probe import Observation
from bexplore.search.recommendation import Speed


def estimated(observation: Observation, speeds: Sequence[Speed]) -> Observation:
    """Return a measured observation with all times scaled so that its median pass is the estimate's.

    Its shares stay as they were measured: of the update in a step, of communication, of one rank beside another. One
    without an estimate, or without times, is returned as it is.
    """
    probe = observation.probe
    own = (one for one in speeds if (one.micro_batch_size, one.variant) == (probe.micro_batch_size, probe.variant))
    speed = next(own, None)
    if speed is None or not observation.is_measured or not observation.pass_times_s:
        return observation
    factor = speed.pass_time_s / observation.pass_time_s
    parallel = observation.details.get("parallel")
    details = observation.details if not parallel else observation.details | {"parallel": _scaled(parallel, factor)}
    return dataclasses.replace(observation.scale_times(factor), details=details)


def _scaled(parallel: Mapping[str, Any], factor: float) -> dict[str, Any]:
    found = dict(parallel)
    if found.get("pass_times_by_kind_s"):
        found["pass_times_by_kind_s"] = [[factor * one for one in pair] for pair in found["pass_times_by_kind_s"]]
    if found.get("one_rank_pass_s"):
        found["one_rank_pass_s"] *= factor
    if found.get("ranks"):
        found["ranks"] = [
            {**rank, "inner_pass_s": factor * rank["inner_pass_s"]} if rank.get("inner_pass_s") else rank
            for rank in found["ranks"]
        ]
    return found
