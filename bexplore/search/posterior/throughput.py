"""Joint posterior draws of the throughput curve: shapes, deviations from them, and cliffs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bexplore.measurement.probe import Compilation
from bexplore.measurement.statistics import Array, Index
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.noise_model import Measurements, collect_measurements, estimates_alone
from bexplore.search.posterior.prior import (
    CLIFF_RATE,
    CLIFF_SDS,
    LENGTHS,
    MAX_SHARE,
    RISE_AGAIN_SHARE,
    ROUGH_OWN_SHARE,
    UNSEEN_BUMP_LOG_WIDTHS,
    UNSEEN_BUMP_RATE,
    UNSEEN_BUMP_SDS,
    Hyper,
    Kinship,
    ShapePrior,
    rough_draws,
    rough_kernel,
    smooth_kernel,
)

Draws = NDArray[np.float32]

# Draws, and how many shapes one stands for where a cliff is weighed. Source: benchmarks/results/sensitivity.md.
NUM_DRAWS = 512
CLIFF_THINNING = 8
LEVEL_SD = 1.0  # ln(samples/s), after centring. Source: far above what measurements leave open
NEGLIGIBLE_LOG_WEIGHT = -16.0  # relative to the best. Source: exp(-16) of all points is below half a draw
# Independent streams of random numbers of one seed. Source: arbitrary.
NORMALS_STREAM, SELECTION_STREAM, DEVIATIONS_STREAM, RISES_STREAM = 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class _Fields:
    """Correlations over the domain, (lengths, D, D) and (D, D), and the ingredients of draws of such functions.

    `smooth_factors`: (lengths, D, D), of Cholesky. `smooth_normal`: (S, D). `rough_draws`: (S, D), of unit variance.
    """

    smooth: Array
    rough: Array
    smooth_factors: NDArray[np.float32]
    smooth_normal: NDArray[np.float32]
    rough_draws: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Weighed:
    """Shapes and hyper-parameters drawn in proportion to their posterior weight.

    `shape` and `hyper`: (S,). `cliff_sd`: (S,), 0 for none. `gap`: (S,), the cliff is after this many distinct sizes.
    """

    shape: Index
    hyper: Index
    cliff_sd: Array
    gap: Index


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveDraws:
    """Posterior draws of the curve."""

    log_throughput: Draws  # (S, D), ln(samples/s); in single precision
    probe_sd: Array  # (S,), ln(samples/s), between two probes of one size
    own_sd: Array  # (S,), ln(samples/s), the part that a size does not share with its neighbours
    surprise: Array  # (D,), leave-one-out z-score of the last probe of a size, positive where it was faster; 0 if none
    own_level: Array  # (D,), ln(samples/s), estimate from the measurements of a size alone; NaN where there are none
    own_level_covariance: Array  # (D, D), of its errors, which sizes of one probe share in part


def draw_curves(
    prior: ShapePrior,
    sizes: NDArray[np.int64],
    measured: Sequence[Evidence],
    *,
    user_compilation: Compilation,
    kinship: Kinship | None = None,
) -> CurveDraws:
    """Draw curves from the exact posterior given shape and hyper-parameters, by Matheron's rule.

    Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", 2020.

    Args:
        sizes: (D,), the domain; it covers every measured size.
        kinship: What measurements of other variants tell of the curve; None where there is one variant.
    """
    shapes = prior.evaluate(sizes)
    data, center = collect_measurements(sizes, measured, user_compilation, kinship=kinship)
    levels = shapes[data.at].mean(axis=0)
    fields = _fields(prior.seed, tuple(sizes.tolist()))
    misfit = (data.values[:, None] - shapes[data.at] + levels).T
    inverse, log_det = _inverse_covariance(data, fields)
    weighed, best = _weigh(data, misfit, inverse, log_det, sizes, seed=prior.seed)
    z_scores = _leave_one_out(misfit[best[1]], inverse[best[0]])
    variant = kinship.variant if kinship is not None else 0
    draws = _draw(data, misfit, inverse, fields, weighed, sizes, seed=prior.seed, variant=variant)
    surprise = np.zeros(len(sizes))
    surprise[data.at[data.is_own]] = z_scores[data.is_own]
    alone = data.of_own_variant
    curves = draws + (shapes[:, weighed.shape] + (center - levels[weighed.shape])).T.astype(np.float32)
    _turn_down(curves, np.unique(alone.at), sizes, seed=prior.seed)
    hyper = Hyper.grid(data.pass_sd)
    own_sd = np.sqrt(ROUGH_OWN_SHARE) * hyper.rough_sd[weighed.hyper]
    own = np.unique(alone.at)
    own_level, own_level_covariance = np.full(len(sizes), np.nan), np.full((len(sizes), len(sizes)), np.nan)
    own_level[own], own_level_covariance[np.ix_(own, own)] = estimates_alone(alone, float(hyper.probe_sd[best[0]]))
    return CurveDraws(
        log_throughput=curves,
        probe_sd=hyper.probe_sd[weighed.hyper],
        own_sd=own_sd,
        surprise=surprise,
        own_level=own_level + center,
        own_level_covariance=own_level_covariance,
    )


@lru_cache(maxsize=4)
def _fields(seed: int, sizes: tuple[int, ...]) -> _Fields:
    logs = np.log(np.array(sizes, dtype=float))
    smooth = np.stack([smooth_kernel(logs, logs, length) for length in LENGTHS])
    smooth_normal, rough_normal, own_normal = _normals(seed, sizes)
    return _Fields(
        smooth=smooth,
        rough=rough_kernel(logs, logs),
        smooth_factors=np.asarray(np.linalg.cholesky(smooth + 1e-9 * np.eye(len(logs))), dtype=np.float32),
        smooth_normal=smooth_normal,
        rough_draws=rough_draws(logs, rough_normal, own_normal),
    )


def _normals(seed: int, sizes: tuple[int, ...]) -> NDArray[np.float32]:
    """Return (3, S, D), standard normal draws; those of a size are the same in every domain."""
    known = _normals_by_size(seed)
    for size in sizes:
        if size not in known:
            known[size] = np.random.default_rng([seed, NORMALS_STREAM, size]).standard_normal(
                (3, NUM_DRAWS), dtype=np.float32
            )
    return np.stack([known[size] for size in sizes], axis=-1)


@lru_cache(maxsize=4)
def _normals_by_size(seed: int) -> dict[int, NDArray[np.float32]]:
    """Return a cache of (3, S) standard normal draws by size."""
    return {}


def _inverse_covariance(data: Measurements, fields: _Fields) -> tuple[Array, Array]:
    """Return (J, n, n) and (J,): inverse and log determinant of the measurements' covariance at each grid point."""
    hyper = Hyper.grid(data.pass_sd)
    pair = np.ix_(data.at, data.at)
    smooth = np.stack([kernel[pair] for kernel in fields.smooth])
    covariance = (
        data.noise
        + LEVEL_SD**2
        + hyper.smooth_sd[:, None, None] ** 2 * smooth[hyper.length_index]
        + hyper.rough_sd[:, None, None] ** 2 * fields.rough[pair]
        + hyper.probe_sd[:, None, None] ** 2 * np.eye(len(data.at))
    )
    return np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]


def _weigh(
    data: Measurements, misfit: Array, inverse: Array, log_det: Array, sizes: NDArray[np.int64], *, seed: int
) -> tuple[_Weighed, tuple[int, int]]:
    """Draw (shape, hyper-parameters, cliff) by posterior weight; return the best without a cliff, too.

    A cliff of unknown size a ~ N(0, s^2) above a gap adds s^2 u u' to the covariance, u = 1 above the gap; its weight
    follows from the weight without it by the matrix determinant lemma.
    """
    hyper = Hyper.grid(data.pass_sd)
    num_shapes, count = misfit.shape
    low, high = np.tril_indices(count)  # of a symmetric form each pair once
    pairs = np.ascontiguousarray(misfit.T)
    forms = inverse[:, low, high] * np.where(low == high, -0.5, -1.0)
    plain = forms.astype(np.float32) @ (pairs[low] * pairs[high]).astype(np.float32)
    plain += (hyper.log_weight - 0.5 * log_det).astype(np.float32)[:, None]
    best = np.unravel_index(int(np.argmax(plain)), plain.shape)
    steps, log_gap = _gaps(data.at, np.unique(data.at), sizes)
    bases = hyper.cliff_bases
    cliff_share = _share(CLIFF_RATE, sizes)
    renormalise = np.log(np.exp(hyper.log_weight[bases]).sum())
    log_prior = log_gap + np.log(cliff_share * CLIFF_THINNING) - renormalise
    thinned = plain[bases, ::CLIFF_THINNING]
    cliffs = _log_weights_of_cliffs(thinned, misfit[::CLIFF_THINNING], inverse[bases], steps, log_prior)
    plain += np.float32(np.log(1.0 - cliff_share))
    log_weight = np.concatenate([plain.ravel(), cliffs.ravel()])
    chosen = _systematic(log_weight, seed)
    num_plain = plain.size
    has_cliff = chosen >= num_plain
    hyper_index, shape = np.divmod(np.where(has_cliff, 0, chosen), num_shapes)
    which, base, gap, cliff_shape = np.unravel_index(np.where(has_cliff, chosen - num_plain, 0), cliffs.shape)
    sds = np.array([sd for sd, _ in CLIFF_SDS])
    weighed = _Weighed(
        shape=np.where(has_cliff, cliff_shape * CLIFF_THINNING, shape),
        hyper=np.where(has_cliff, bases[base], hyper_index),
        cliff_sd=np.where(has_cliff, sds[which], 0.0),
        gap=np.where(has_cliff, gap, 0),
    )
    return weighed, (int(best[0]), int(best[1]))


def _log_weights_of_cliffs(without: Draws, misfit: Array, inverse: Array, steps: Array, log_prior: Array) -> Draws:
    """Return (sds, C, G, K), log weight of each shape with a cliff of each sd in each gap, at C points of the grid.

    Args:
        without: (C, K), log weight without a cliff.
        misfit: (K, n), of the measurements from the shapes.
        inverse: (C, n, n), of their covariance.
        steps: (G, n), which measurements are above each gap.
        log_prior: (G,), of a cliff in each gap.
    """
    projected = steps @ inverse  # (C, G, n)
    stiffness = np.einsum("cgn,gn->cg", projected, steps)
    squares = (projected.astype(np.float32) @ misfit.T.astype(np.float32)) ** 2  # (C, G, K)
    found = np.empty((len(CLIFF_SDS), *squares.shape), dtype=np.float32)
    for log_weight, (sd, weight) in zip(found, CLIFF_SDS, strict=True):
        gain = 1.0 + sd**2 * stiffness
        offset = log_prior + np.log(weight) - 0.5 * np.log(gain)
        np.multiply(squares, (0.5 * sd**2 / gain).astype(np.float32)[..., None], out=log_weight)
        log_weight += without[:, None, :] + offset.astype(np.float32)[..., None]
    return found


def _gaps(at: Index, distinct: Index, sizes: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return (G, n), the measurements above each gap between measured sizes, and (G,), its log share of the span."""
    logs = np.log(sizes.astype(float))
    edges = np.append(logs[distinct], logs[-1])
    span = max(logs[-1] - logs[0], 1e-9)
    width = np.maximum(np.diff(edges), 1e-9) / span
    return (at[None, :] > distinct[:, None]).astype(float), np.log(width)


def _share(rate: float, sizes: NDArray[np.int64]) -> float:
    """Return the probability of an event somewhere among the sizes, from its rate per e-fold."""
    return float(np.clip(rate * np.log(sizes[-1] / sizes[0]), 1e-9, MAX_SHARE))


def _systematic(log_weight: Array, seed: int) -> Index:
    """Draw NUM_DRAWS indices in proportion to the weights, by systematic resampling, in random order."""
    rng = np.random.default_rng([seed, SELECTION_STREAM])
    relative = log_weight - log_weight.max()
    kept = np.flatnonzero(relative > NEGLIGIBLE_LOG_WEIGHT)
    cumulative = np.cumsum(np.exp(relative[kept]))
    points = (np.arange(NUM_DRAWS) + rng.random()) / NUM_DRAWS * cumulative[-1]
    return rng.permutation(kept[np.minimum(np.searchsorted(cumulative, points), len(kept) - 1)])


def _leave_one_out(misfit: Array, inverse: Array) -> Array:
    """Return (n,), leave-one-out z-scores. Source: Rasmussen and Williams, eq. 5.12."""
    return (inverse @ misfit) / np.sqrt(np.diag(inverse))


def _draw(
    data: Measurements,
    misfit: Array,
    inverse: Array,
    fields: _Fields,
    weighed: _Weighed,
    sizes: NDArray[np.int64],
    *,
    seed: int,
    variant: int,
) -> Draws:
    """Return (S, D), deviations from the shapes: functions from the prior, corrected by the measurements.

    Variants of a job have a draw's function in common, and each its own noise: level and tilt are in that.
    """
    hyper = Hyper.grid(data.pass_sd)
    rng = np.random.default_rng([seed, DEVIATIONS_STREAM])
    noise_rng = rng if variant == 0 else np.random.default_rng([seed, DEVIATIONS_STREAM, variant])
    j = weighed.hyper
    length, count = hyper.length_index[j], len(data.at)
    smooth_sd, rough_sd, cliff_sd = (_column(sd) for sd in (hyper.smooth_sd[j], hyper.rough_sd[j], weighed.cliff_sd))
    of_length = [np.flatnonzero(length == index) for index in range(len(fields.smooth))]
    function = rough_sd * fields.rough_draws
    for own, factor in zip(of_length, fields.smooth_factors, strict=True):
        function[own] += (smooth_sd[own] * fields.smooth_normal[own]) @ factor.T
    cliff = _cliff_positions(data.at, weighed, sizes, rng.random(NUM_DRAWS))
    function += cliff_sd * _column(rng.standard_normal(NUM_DRAWS)) * cliff
    function += _column(LEVEL_SD * rng.standard_normal(NUM_DRAWS))
    noise = noise_rng.standard_normal((NUM_DRAWS, count)) @ np.linalg.cholesky(data.noise).T
    noise += hyper.probe_sd[j, None] * noise_rng.standard_normal((NUM_DRAWS, count))
    residual = misfit[weighed.shape] - function[:, data.at] - noise
    alpha = _solve(inverse[j], residual, cliff[:, data.at].astype(float), weighed.cliff_sd)
    function += _column(LEVEL_SD**2 * alpha.sum(axis=1))
    function += (rough_sd**2 * alpha.astype(np.float32)) @ fields.rough[data.at].astype(np.float32)
    function += cliff_sd**2 * _column((alpha * cliff[:, data.at]).sum(axis=1)) * cliff
    for own, kernel in zip(of_length, fields.smooth, strict=True):
        function[own] += (smooth_sd[own] ** 2 * alpha[own].astype(np.float32)) @ kernel[data.at].astype(np.float32)
    return function + _unseen_bumps(data.of_own_variant.at, sizes, rng)


def _turn_down(curves: Draws, measured: Index, sizes: NDArray[np.int64], *, seed: int) -> None:
    """Mirror, in place, most draws that rise again beyond all measurements although their last doubling gained nothing.

    Args:
        curves: (S, D), ln(samples/s).
        measured: Positions of the measured sizes, ascending.
        sizes: (D,), samples.
    """
    if not len(measured):
        return
    last = measured[-1]
    half = measured[sizes[measured] <= sizes[last] / 2.0]
    if not len(half) or last == len(sizes) - 1:
        return
    before = curves[:, half].max(axis=1)
    may_rise = np.random.default_rng([seed, RISES_STREAM]).random(len(curves)) < RISE_AGAIN_SHARE
    falls = np.flatnonzero((curves[:, last] <= before) & ~may_rise)
    top = before[falls, None]
    beyond = curves[falls, last + 1 :]
    curves[falls, last + 1 :] = top - np.abs(beyond - top)


def _column(values: Array) -> Draws:
    """Return (S, 1), in the draws' precision."""
    return values.astype(np.float32)[:, None]


def _cliff_positions(at: Index, weighed: _Weighed, sizes: NDArray[np.int64], uniform: Array) -> Draws:
    """Return (S, D), 1 above a place drawn log-uniformly within each draw's gap; 0 for a draw without a cliff."""
    logs = np.log(sizes.astype(float))
    edges = np.append(logs[np.unique(at)], logs[-1])
    low, high = edges[weighed.gap], edges[weighed.gap + 1]
    place = low + (high - low) * uniform
    return ((logs[None, :] > place[:, None]) & (weighed.cliff_sd > 0)[:, None]).astype(np.float32)


def _solve(inverse: Array, residual: Array, cliff: Array, cliff_sd: Array) -> Array:
    """Return (S, n), (covariance + s^2 u u')^-1 residual, by the Sherman-Morrison formula."""
    plain = np.einsum("snm,sm->sn", inverse, residual)
    direction = np.einsum("snm,sm->sn", inverse, cliff)
    along = (cliff * plain).sum(axis=1)
    gain = 1.0 + cliff_sd**2 * (cliff * direction).sum(axis=1)
    return plain - (cliff_sd**2 * along / gain)[:, None] * direction


def _unseen_bumps(at: Index, sizes: NDArray[np.int64], rng: np.random.Generator) -> Draws:
    """Return (S, D), a narrow peak or hole in some draws, where no measurement would show it."""
    logs = np.log(sizes.astype(float))
    present = np.flatnonzero(rng.random(NUM_DRAWS) < _share(UNSEEN_BUMP_RATE, sizes))
    center = rng.uniform(logs[0], logs[-1], len(present))
    half_width = 0.5 * np.exp(rng.uniform(*UNSEEN_BUMP_LOG_WIDTHS, len(present)))
    height = rng.choice(UNSEEN_BUMP_SDS, len(present)) * rng.standard_normal(len(present))
    inside = np.abs(logs[None, :] - center[:, None]) < half_width[:, None]
    unseen = ~inside[:, at].any(axis=1)
    bumps = np.zeros((NUM_DRAWS, len(sizes)), dtype=np.float32)
    bumps[present] = inside * (height * unseen)[:, None]
    return bumps
