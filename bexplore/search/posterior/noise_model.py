"""The noise model: a value for each size of each probe, and the covariance of their noise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation
from bexplore.measurement.statistics import Array, Index
from bexplore.search.evidence import CONTENTION_INTERLEAVED, Evidence, Interleaved
from bexplore.search.posterior.prior import Kinship

# sensitivity.md is benchmarks/results/sensitivity.md: what half and double of each figure do to searches.
# Source: sensitivity.md. Slow drift from probe to probe, ln(samples/s), and its length in probes.
DRIFT_SD, DRIFT_LENGTH = 0.003, 6.0
# Source: sensitivity.md. Shared against exact compilation, ln(samples/s): size by size, and the same at every size.
COMPILATION_SD, COMPILATION_LEVEL_SD = 0.01, 0.10
# Shared against exact compilation, ln(samples/s): what a variant's difference has beyond that of all variants. Source:
# benchmarks/results/sensitivity.md, variants; as much as a size has beyond all sizes.
COMPILATION_VARIANT_SD = 0.01
# Source: sensitivity.md. ln(samples/s): of a probe that does not know its own noise, and the least of any.
DEFAULT_SE, MIN_SE = 0.01, 0.001
# Source: sensitivity.md. ln(pass time) between passes, autocorrelation included, before any probe knows it; the weight,
# in passes of one probe, of all probes' noise.
DEFAULT_PASS_SD, POOLING_PASSES = 0.015, 10
# Source: sensitivity.md. ln(pass time) of an interleaved timing, without what its round shares: prior, weight in
# rounds.
EXPECTED_ROUND_SD, ROUND_PRIOR_WEIGHT = 0.05, 3.0
# Source: sensitivity.md. Common-mode drift of interleaved sizes, ln(samples/s): wide, as a host that needs interleaving
# drifts; between the rounds of two probes, before any size was in both: prior, weight in probes.
COMMON_MODE_SD = 0.10
EXPECTED_COMMON_MODE_SD, COMMON_MODE_PRIOR_WEIGHT = 0.02, 2.0
# Source: sensitivity.md. A probe this many standard deviations slower than another of its size was disturbed;
# ln(samples/s) between two probes of one size.
DISTURBED_SDS, EXPECTED_PROBE_SD = 4.0, 0.01


@dataclass(frozen=True, slots=True)
class Measurements:
    """Arrays of n measurements; a probe of interleaved sizes has several."""

    at: Index  # (n,), index into the domain
    values: Array  # (n,), ln(samples/s) after centring
    noise: Array  # (n, n), covariance of their own noise
    pass_sd: float  # ln(pass time), between two passes of one probe
    is_own: NDArray[np.bool_]  # (n,), whether a measurement is of the curve's own variant

    @property
    def of_own_variant(self) -> Measurements:
        """Those of the curve's own variant."""
        own = self.is_own
        return Measurements(self.at[own], self.values[own], self.noise[np.ix_(own, own)], self.pass_sd, own[own])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One measurement: of the probe's own size, or of one that was interleaved with it."""

    probe: int
    micro_batch_size: int
    log_throughput: float
    log_pass_sd: float
    num_passes: int
    contention_sd: float
    compilation: Compilation
    was_interleaved: bool
    variant: int

    @property
    def knows_noise(self) -> bool:
        """Whether its passes show their own noise."""
        return math.isfinite(self.log_pass_sd) and self.num_passes >= 2


def collect_measurements(
    sizes: NDArray[np.int64],
    measured: Sequence[Evidence],
    user_compilation: Compilation,
    *,
    kinship: Kinship | None = None,
) -> tuple[Measurements, float]:
    """Return the measurements in some evidence, and the mean that was subtracted from their values.

    Args:
        sizes: (D,), the domain; it covers every measured size.
        kinship: What measurements of other variants tell of the curve's own; None where there is one variant.
    """
    kin = kinship or Kinship()
    rows = [row for probe, item in enumerate(measured) for row in _rows(probe, item)]
    at = np.searchsorted(sizes, [row.micro_batch_size for row in rows])
    values = np.array([row.log_throughput - kin.log_speed_over_own(row.variant) for row in rows])
    noise = np.diag(np.maximum(_standard_errors(rows), MIN_SE) ** 2)
    quiet = [row for row in rows if row.contention_sd == 0.0]  # contention that was seen is no drift
    noise += _drift(rows) + _common_mode(rows, _common_mode_sd(quiet), has_kin=kinship is not None)
    is_own = np.array([row.variant == kin.variant for row in rows])
    noise += _between_compilations(
        rows, at, values, user_compilation, _common_mode_sd(rows), None if kinship is None else is_own
    )
    noise += _of_disturbed(rows, at, values, noise)
    if not is_own.all():
        noise += kin.covariance([row.variant for row in rows], np.log([row.micro_batch_size for row in rows]))
    center = float(values.mean())
    pass_sd = _pooled_pass_sd([row for row in rows if not row.was_interleaved])
    return Measurements(at, values - center, noise, pass_sd, is_own), center


def estimates_alone(data: Measurements, probe_sd: float) -> tuple[Array, Array]:
    """Return (m,) estimates of m measured sizes from their own measurements, and (m, m) the covariance of their errors.

    Source: generalised least squares with a level for each size (Aitken, 1936): interleaved sizes are compared within
    their probe.

    Args:
        probe_sd: ln(samples/s), between two probes of one size.
    """
    member = (data.at[:, None] == np.unique(data.at)[None, :]).astype(float)
    weighted = np.linalg.solve(data.noise + probe_sd**2 * np.eye(len(data.at)), member)
    covariance = np.linalg.inv(member.T @ weighted)
    return covariance @ (weighted.T @ data.values), covariance


def common_mode_sd(measured: Sequence[Evidence]) -> float:
    """Return the machine's drift between two probes, ln(samples/s), from sizes interleaved in several; 0 for none."""
    return _common_mode_sd([row for probe, item in enumerate(measured) for row in _rows(probe, item)])


def estimate_level_share(
    measured: Sequence[Evidence], last: Evidence, user_compilation: Compilation, *, probe_variance: float
) -> float:
    """Return which share, 0 to 1, of a probe's distance from its size's mean is common to all sizes at that moment.

    Common are drift and, of another program than the training's, its level; the probe's own noise is not.
    """
    common = DRIFT_SD**2 + common_mode_sd(measured) ** 2
    if last.compilation is not user_compilation:
        common += COMPILATION_LEVEL_SD**2
    own = probe_variance + float(np.nan_to_num(last.log_throughput_se)) ** 2 + last.contention_sd**2
    return common / (common + own)


def _rows(probe: int, item: Evidence) -> list[_Row]:
    parts: list[Evidence | Interleaved] = [item, *item.interleaved]
    return [
        _Row(
            probe=probe,
            micro_batch_size=part.micro_batch_size,
            log_throughput=part.log_throughput,
            log_pass_sd=part.log_throughput_se * math.sqrt(item.num_passes),
            num_passes=item.num_passes,
            contention_sd=item.contention_sd,
            compilation=item.compilation,
            was_interleaved=bool(item.interleaved),
            variant=item.variant,
        )
        for part in parts
    ]


def _drift(rows: Sequence[_Row]) -> Array:
    """Return (n, n), the covariance of a machine that changes slowly from probe to probe."""
    order = np.array([row.probe for row in rows])
    return DRIFT_SD**2 * np.exp(-np.abs(order[:, None] - order[None, :]) / DRIFT_LENGTH)


def _common_mode(rows: Sequence[_Row], sd: float, *, has_kin: bool) -> Array:
    """Return (n, n), the covariance of drift within seconds: common to interleaved sizes, each probe's own otherwise.

    Zero where nothing was interleaved, since no drift is known then. Sizes of two variants are never interleaved: their
    levels alone compare them, so the drift there is the one that was seen, at least the one that is expected.
    """
    alone = np.where([row.was_interleaved for row in rows], 0.0, sd**2)
    shared_sd = max(EXPECTED_COMMON_MODE_SD if has_kin else COMMON_MODE_SD, sd)
    return shared_sd**2 * _together(rows) + np.diag(alone)


def _common_mode_sd(rows: Sequence[_Row]) -> float:
    """Return the drift of sizes that were interleaved, in several probes or in one beside one alone.

    Where CPU contention was seen, it explains why a size alone differs from itself interleaved: `_of_disturbed`.
    """
    by_program: dict[tuple[int, Compilation, int], list[_Row]] = defaultdict(list)
    for row in rows:
        by_program[row.micro_batch_size, row.compilation, row.variant].append(row)
    groups = []
    for of_size in by_program.values():
        interleaved = [row for row in of_size if row.was_interleaved]
        if interleaved:
            is_quiet = all(row.contention_sd == 0.0 for row in of_size)
            groups.append([row.log_throughput for row in (of_size if is_quiet else interleaved)])
    if not groups:
        return 0.0
    squares = sum(len(values) * float(np.var(values)) for values in groups)
    freedom = sum(len(values) - 1 for values in groups)
    prior = COMMON_MODE_PRIOR_WEIGHT * EXPECTED_COMMON_MODE_SD**2
    return math.sqrt((prior + squares) / (COMMON_MODE_PRIOR_WEIGHT + freedom))


def _of_disturbed(rows: Sequence[_Row], at: Index, values: Array, noise: Array) -> Array:
    """Return (n, n), the covariance of measurements that another of the same size contradicts.

    Either of two may be the disturbed one, too fast as well as too slow, until a third agrees with one of them. CPU
    contention that was seen settles it: it slows a probe down, so the slower of the two is the disturbed one, and it
    excuses that one alone. Other sizes are no reason to distrust a measurement: throughput does fall between two sizes.
    A disturbance of an interleaved size changed all sizes of its probe, by as much but for a share; with CPU
    contention, which takes more from short passes than from long ones, by an amount of its own.
    """
    same = (at[:, None] == at[None, :]) & _same_program(rows) & ~np.eye(len(rows), dtype=bool)
    variance = np.diag(noise)
    contention_sd = np.array([row.contention_sd for row in rows])
    was_seen = (contention_sd[:, None] > 0.0) | (contention_sd[None, :] > 0.0)
    apart = np.maximum(variance[:, None] + variance[None, :] - 2.0 * noise, 0.0) - contention_sd[None, :] ** 2
    apart_sd = np.sqrt(np.maximum(apart, 0.0) + EXPECTED_PROBE_SD**2)
    behind = values[None, :] - values[:, None]  # (n, n), of the first behind the second
    slower = np.where(same & was_seen & (behind > DISTURBED_SDS * apart_sd), behind, 0.0).max(axis=1, initial=0.0)
    either = np.where(np.abs(behind) > DISTURBED_SDS * apart_sd, np.abs(behind), 0.0)
    nearest = np.where(same & ~was_seen, either, np.inf).min(axis=1, initial=np.inf)
    excess = np.maximum(slower, np.where(np.isfinite(nearest), nearest, 0.0))
    together = _together(rows)
    of_all = np.where(together, np.where(together, excess[None, :], 0.0).max(axis=1)[:, None], 0.0)
    is_alike = [row.was_interleaved and row.contention_sd == 0.0 for row in rows]
    own = np.where(is_alike, CONTENTION_INTERLEAVED, 1.0) * excess
    return np.diag(own**2) + of_all**2


def _together(rows: Sequence[_Row]) -> NDArray[np.bool_]:
    was_interleaved = np.array([row.was_interleaved for row in rows])
    probes = np.array([row.probe for row in rows])
    return np.asarray((probes[:, None] == probes[None, :]) & was_interleaved[:, None])


def _same_program(rows: Sequence[_Row]) -> NDArray[np.bool_]:
    programs = [(row.compilation, row.variant) for row in rows]
    numbers = np.array([programs.index(program) for program in programs])
    return np.asarray(numbers[:, None] == numbers[None, :])


def _between_compilations(
    rows: Sequence[_Row],
    at: Index,
    values: Array,
    user_compilation: Compilation,
    common_sd: float,
    is_own: NDArray[np.bool_] | None,
) -> Array:
    """Return (n, n), the covariance of programs that are not the curve's: a level for each, and a part by size.

    Variants of a job have most of the level in common, which takes no part in their comparison: until one of them ran
    in the user's own compilation, it counts nothing.

    Args:
        is_own: (n,), of the curve's own variant; None where there is one variant.
    """
    other = np.array([row.compilation is not user_compilation for row in rows])
    both_other = other[:, None] & other[None, :]
    same_other = both_other & _same_program(rows)
    own = np.ones(len(rows), dtype=bool) if is_own is None else is_own
    size_sd = _compilation_sd(values[own], at[own], other[own], common_sd)
    by_size = same_other * size_sd**2 * (at[:, None] == at[None, :])
    if is_own is None:
        return by_size + same_other * COMPILATION_LEVEL_SD**2
    of_all = 0.0 if other.all() else COMPILATION_LEVEL_SD**2
    return by_size + same_other * COMPILATION_VARIANT_SD**2 + both_other * of_all


def _compilation_sd(values: Array, at: Index, other: NDArray[np.bool_], common_sd: float) -> float:
    """Return how much two compilations differ size by size, beyond what drift between their probes explains."""
    both = np.intersect1d(at[other], at[~other])
    differences = [np.median(values[~other & (at == size)]) - np.median(values[other & (at == size)]) for size in both]
    if not differences:
        return COMPILATION_SD
    if len(differences) == 1:
        return max(COMPILATION_SD, abs(float(differences[0])) - 2.0 * math.hypot(COMPILATION_LEVEL_SD, common_sd))
    unexplained = float(np.var(differences, ddof=1)) - 2.0 * common_sd**2
    return math.sqrt(max(COMPILATION_SD**2, unexplained))


def _standard_errors(rows: Sequence[_Row]) -> Array:
    """Return (n,), of each measurement; few passes hardly show their own noise, so all probes share it.

    Interleaved rounds and passes of a size alone differ in noise, and share it each among themselves.
    """
    errors = np.zeros(len(rows))
    for kind, pooled_sd in ((False, _pooled_pass_sd), (True, _pooled_round_sd)):
        of_kind = [index for index, row in enumerate(rows) if row.was_interleaved is kind]
        if of_kind:
            own = [rows[index] for index in of_kind]
            errors[of_kind] = _shared_errors(own, pooled_sd(own))
    return errors


def _pooled_pass_sd(rows: Sequence[_Row]) -> float:
    known = [row.log_pass_sd for row in rows if row.knows_noise]
    return float(np.median(known)) if known else DEFAULT_PASS_SD


def _pooled_round_sd(rows: Sequence[_Row]) -> float:
    """Return the noise of one timing: two or three rounds show it badly, so variances and a prior are averaged."""
    known = [row for row in rows if row.knows_noise]
    freedom = ROUND_PRIOR_WEIGHT + sum(row.num_passes - 1 for row in known)
    squares = sum((row.num_passes - 1) * row.log_pass_sd**2 for row in known)
    return math.sqrt((ROUND_PRIOR_WEIGHT * EXPECTED_ROUND_SD**2 + squares) / freedom)


def _shared_errors(rows: Sequence[_Row], pooled: float) -> Array:
    num_passes = np.array([row.num_passes for row in rows], dtype=float)
    sds = np.array([row.log_pass_sd for row in rows])
    known = np.array([row.knows_noise for row in rows])
    variance = np.where(known, num_passes * np.nan_to_num(sds) ** 2, 0.0) + POOLING_PASSES * pooled**2
    shared = np.sqrt(variance / (np.where(known, num_passes, 0.0) + POOLING_PASSES) / np.maximum(num_passes, 1.0))
    contention = np.array([row.contention_sd for row in rows])
    return np.hypot(np.where(num_passes > 0, shared, DEFAULT_SE), contention)
