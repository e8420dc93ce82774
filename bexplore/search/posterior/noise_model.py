"""What was measured, as the belief takes it: a value for each size of each probe, and the covariance of their noise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation
from bexplore.search.evidence import CONTENTION_INTERLEAVED, Evidence

Array = NDArray[np.float64]
Index = NDArray[np.intp]

DRIFT_SD = 0.003  # ln(samples/s)
DRIFT_LENGTH = 6.0  # probes
COMPILATION_SD = 0.01  # ln(samples/s), of shared against exact compilation, size by size
COMPILATION_LEVEL_SD = 0.10  # ln(samples/s), of shared against exact compilation, the same at every size
DEFAULT_SE = 0.01  # ln(samples/s), where a probe does not know its own noise
MIN_SE = 0.001
DEFAULT_PASS_SD = 0.015  # ln(pass time), autocorrelation included, before any probe knows it
POOLING_PASSES = 10  # what all probes say of the noise of a pass weighs as much as this many passes of one
EXPECTED_ROUND_SD = 0.05  # ln(pass time) of a turn beside what its round shares: prior, and its weight in rounds
TURN_PRIOR_WEIGHT = 3.0
# Where sizes took turns, next to nothing is believed of their common level: the machine wandered, or they would not
# have. ln(samples/s).
COMMON_MODE_SD = 0.10
# What it wandered between the turns of two probes, before any size was in both: prior, and its weight in probes.
EXPECTED_COMMON_MODE_SD = 0.02
COMMON_MODE_PRIOR_WEIGHT = 2.0


# A probe this many standard deviations slower than another of the same size was disturbed.
DISTURBED_SDS = 4.0
EXPECTED_PROBE_SD = 0.01  # ln(samples/s), between two probes of one size


@dataclass(frozen=True, slots=True)
class Measurements:
    """Arrays of n measurements; a probe whose size took turns with others has several.

    Attributes:
        at: (n,), index into the domain.
        values: (n,), ln(samples/s) after centring.
        noise: (n, n), covariance of their own noise.
        pass_sd: ln(pass time), between two passes of one probe.
    """

    at: Index
    values: Array
    noise: Array
    pass_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One measurement: the probe's own size, or one that took turns with it."""

    probe: int
    micro_batch_size: int
    log_throughput: float
    log_pass_sd: float
    num_passes: int
    contention_sd: float
    compilation: Compilation
    was_interleaved: bool


def measurements_of(
    sizes: NDArray[np.int64], measured: Sequence[Evidence], user_compilation: Compilation
) -> tuple[Measurements, float]:
    """The measurements in some evidence, and what was subtracted from their values.

    Args:
        sizes: (D,), the domain; it covers every measured size.
        measured: Measured probes, in order.
        user_compilation: The program that the curve is about.
    """
    rows = [row for probe, item in enumerate(measured) for row in _rows(probe, item)]
    at = np.searchsorted(sizes, [row.micro_batch_size for row in rows])
    values = np.array([row.log_throughput for row in rows])
    common_sd = _common_mode_sd(rows)
    noise = np.diag(np.maximum(_standard_errors(rows), MIN_SE) ** 2)
    quiet = [row for row in rows if row.contention_sd == 0.0]  # what neighbours did that were seen is no wandering
    noise += _drift(rows) + _common_mode(rows, _common_mode_sd(quiet))
    noise += _between_compilations(rows, at, values, user_compilation, common_sd)
    noise += _of_disturbed(rows, at, values, noise)
    center = float(values.mean())
    pass_sd = _pooled_pass_sd([row for row in rows if not row.was_interleaved])
    return Measurements(at, values - center, noise, pass_sd), center


def estimates_alone(data: Measurements, probe_sd: float) -> tuple[Array, Array]:
    """(m,) and (m, m), what the measurements of m sizes say of each, whatever its neighbours say, and the covariance.

    Source: generalised least squares with a level for each size (Aitken, 1936): sizes that took turns are compared
    within them.

    Args:
        data: The measurements of m sizes.
        probe_sd: ln(samples/s), between two probes of one size.

    Returns:
        Levels, ln(samples/s), centred like the values; the covariance of their errors.
    """
    member = (data.at[:, None] == np.unique(data.at)[None, :]).astype(float)
    weighted = np.linalg.solve(data.noise + probe_sd**2 * np.eye(len(data.at)), member)
    covariance = np.linalg.inv(member.T @ weighted)
    return covariance @ (weighted.T @ data.values), covariance


def common_mode_sd(measured: Sequence[Evidence]) -> float:
    """How far the machine wanders between two probes, ln(samples/s): what sizes show that took turns in several.

    0 where none took turns: nothing is known of it then.
    """
    return _common_mode_sd([row for probe, item in enumerate(measured) for row in _rows(probe, item)])


def _rows(probe: int, item: Evidence) -> list[_Row]:
    found = [(item.micro_batch_size, item.log_throughput, item.log_throughput_se)]
    found += [(other.micro_batch_size, other.log_throughput, other.log_throughput_se) for other in item.interleaved]
    return [
        _Row(
            probe=probe,
            micro_batch_size=size,
            log_throughput=value,
            log_pass_sd=se * math.sqrt(item.num_passes),
            num_passes=item.num_passes,
            contention_sd=item.contention_sd,
            compilation=item.compilation,
            was_interleaved=bool(item.interleaved),
        )
        for size, value, se in found
    ]


def _drift(rows: Sequence[_Row]) -> Array:
    """(n, n), of a machine that changes slowly from probe to probe."""
    order = np.array([row.probe for row in rows])
    return DRIFT_SD**2 * np.exp(-np.abs(order[:, None] - order[None, :]) / DRIFT_LENGTH)


def _common_mode(rows: Sequence[_Row], sd: float) -> Array:
    """(n, n), of a machine that wanders within seconds: common to those that took turns, each probe's own otherwise.

    Nothing where none took turns: it is not known to wander then.
    """
    was_interleaved = np.array([row.was_interleaved for row in rows])
    return max(COMMON_MODE_SD, sd) ** 2 * _together(rows) + np.diag(np.where(was_interleaved, 0.0, sd**2))


def _common_mode_sd(rows: Sequence[_Row]) -> float:
    """Of sizes that took turns, in several probes or in one beside one alone.

    Where neighbours were seen, they are why a size alone differs from itself in turns: `_of_disturbed`.
    """
    by_program: dict[tuple[int, Compilation], list[_Row]] = defaultdict(list)
    for row in rows:
        by_program[row.micro_batch_size, row.compilation].append(row)
    groups = []
    for of_size in by_program.values():
        in_turns = [row for row in of_size if row.was_interleaved]
        if in_turns:
            is_quiet = all(row.contention_sd == 0.0 for row in of_size)
            groups.append([row.log_throughput for row in (of_size if is_quiet else in_turns)])
    if not groups:
        return 0.0
    squares = sum(len(values) * float(np.var(values)) for values in groups)
    freedom = sum(len(values) - 1 for values in groups)
    prior = COMMON_MODE_PRIOR_WEIGHT * EXPECTED_COMMON_MODE_SD**2
    return math.sqrt((prior + squares) / (COMMON_MODE_PRIOR_WEIGHT + freedom))


def _of_disturbed(rows: Sequence[_Row], at: Index, values: Array, noise: Array) -> Array:
    """(n, n), of measurements that another of the same size contradicts: the slower of two is the disturbed one.

    Another tenant slows a probe down, and nothing speeds it up: what a size once reached it reaches alone at the least,
    whatever its neighbours did meanwhile. So they excuse the slower of the two and never the faster one. What the
    neighbours of a size say is no reason to doubt its own measurement: throughput does fall between two sizes. Where it
    took turns, all of them were slowed down; by as much as it was but for a share, unless other tenants were seen, who
    take more from short passes than from long ones.
    """
    same = (at[:, None] == at[None, :]) & _same_program(rows)
    variance = np.diag(noise)
    contention_variance = np.array([row.contention_sd for row in rows]) ** 2
    apart = np.maximum(variance[:, None] + variance[None, :] - 2.0 * noise, 0.0) - contention_variance[None, :]
    apart_sd = np.sqrt(np.maximum(apart, 0.0) + EXPECTED_PROBE_SD**2)
    behind = np.where(same, values[None, :] - values[:, None], 0.0)  # (n, n), of the first behind the second
    excess = np.where(behind > DISTURBED_SDS * apart_sd, behind, 0.0).max(axis=1, initial=0.0)
    together = _together(rows)
    of_all = np.where(together, np.where(together, excess[None, :], 0.0).max(axis=1)[:, None], 0.0)
    is_alike = [row.was_interleaved and row.contention_sd == 0.0 for row in rows]
    own = np.where(is_alike, CONTENTION_INTERLEAVED, 1.0) * excess
    return np.diag(own**2) + of_all**2


def _together(rows: Sequence[_Row]) -> NDArray[np.bool_]:
    """(n, n), which took turns with each other."""
    was_interleaved = np.array([row.was_interleaved for row in rows])
    probes = np.array([row.probe for row in rows])
    return np.asarray((probes[:, None] == probes[None, :]) & was_interleaved[:, None])


def _same_program(rows: Sequence[_Row]) -> NDArray[np.bool_]:
    kinds = np.array([row.compilation.value for row in rows])
    same: NDArray[np.bool_] = kinds[:, None] == kinds[None, :]
    return same


def _between_compilations(
    rows: Sequence[_Row], at: Index, values: Array, user_compilation: Compilation, common_sd: float
) -> Array:
    """(n, n), of programs that are not the one that the curve is about: a level for each, and a part by size."""
    other = np.array([row.compilation is not user_compilation for row in rows])
    kinds = np.array([row.compilation.value for row in rows])
    same_other = other[:, None] & (kinds[:, None] == kinds[None, :])
    same_size = at[:, None] == at[None, :]
    own_sd = _compilation_sd(values, at, other, common_sd)
    return same_other * (COMPILATION_LEVEL_SD**2 + own_sd**2 * same_size)


def _compilation_sd(values: Array, at: Index, other: NDArray[np.bool_], common_sd: float) -> float:
    """How much two compilations differ size by size; more than expected where the sizes that ran both say so.

    What the machine's wandering between their probes explains is not held against the compilations.
    """
    both = np.intersect1d(at[other], at[~other])
    differences = [np.median(values[~other & (at == size)]) - np.median(values[other & (at == size)]) for size in both]
    if not differences:
        return COMPILATION_SD
    if len(differences) == 1:
        return max(COMPILATION_SD, abs(float(differences[0])) - 2.0 * math.hypot(COMPILATION_LEVEL_SD, common_sd))
    unexplained = float(np.var(differences, ddof=1)) - 2.0 * common_sd**2
    return math.sqrt(max(COMPILATION_SD**2, unexplained))


def _standard_errors(rows: Sequence[_Row]) -> Array:
    """(n,), of each measurement; few passes say little of their own noise, so all share what they know of it.

    Rounds of turns and passes of a size alone differ in what is left in them, and share among themselves.
    """
    errors = np.zeros(len(rows))
    for kind, pooled_sd in ((False, _pooled_pass_sd), (True, _pooled_turn_sd)):
        of_kind = [index for index, row in enumerate(rows) if row.was_interleaved is kind]
        if of_kind:
            own = [rows[index] for index in of_kind]
            errors[of_kind] = _shared_errors(own, pooled_sd(own))
    return errors


def _pooled_pass_sd(rows: Sequence[_Row]) -> float:
    known = [row.log_pass_sd for row in rows if _knows_noise(row)]
    return float(np.median(known)) if known else DEFAULT_PASS_SD


def _pooled_turn_sd(rows: Sequence[_Row]) -> float:
    """Of one turn; two or three rounds know it badly each, so their variances are averaged, and with what is usual."""
    known = [row for row in rows if _knows_noise(row)]
    freedom = TURN_PRIOR_WEIGHT + sum(row.num_passes - 1 for row in known)
    squares = sum((row.num_passes - 1) * row.log_pass_sd**2 for row in known)
    return math.sqrt((TURN_PRIOR_WEIGHT * EXPECTED_ROUND_SD**2 + squares) / freedom)


def _knows_noise(row: _Row) -> bool:
    return math.isfinite(row.log_pass_sd) and row.num_passes >= 2


def _shared_errors(rows: Sequence[_Row], pooled: float) -> Array:
    num_passes = np.array([row.num_passes for row in rows], dtype=float)
    sds = np.array([row.log_pass_sd for row in rows])
    known = np.array([_knows_noise(row) for row in rows])
    variance = np.where(known, num_passes * np.nan_to_num(sds) ** 2, 0.0) + POOLING_PASSES * pooled**2
    shared = np.sqrt(variance / (np.where(known, num_passes, 0.0) + POOLING_PASSES) / np.maximum(num_passes, 1.0))
    contention = np.array([row.contention_sd for row in rows])
    return np.hypot(np.where(num_passes > 0, shared, DEFAULT_SE), contention)
