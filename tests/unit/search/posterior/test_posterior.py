"""The belief over all sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from bexplore.measurement.probe import Compilation, Outcome, Purpose
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.posterior import Posterior, fit_posterior
from bexplore.search.recommendation import recommend
from bexplore.search.space import MemoryAccount, MemoryPrior, Space, default_candidates
from tests.builders import observed
from tests.unit.search.builders import GIB, measured, saturating


def believed(sizes, evidence, **options) -> Posterior:
    return fit_posterior(Space.from_sizes(sizes), evidence, **options)


def mean_of(posterior: Posterior, size: int) -> float:
    return float(np.exp(posterior.log_throughput[:, posterior.index(size)].mean()))


def fits_at(posterior: Posterior, size: int) -> float:
    return float(posterior.feasible[:, posterior.index(size)].mean())


def test_the_same_evidence_gives_the_same_posterior():
    evidence = [measured(size, saturating(size)) for size in (1, 64, 256)]
    first, second = (believed(default_candidates(1, 4096), evidence) for _ in range(2))
    assert np.array_equal(first.log_throughput, second.log_throughput)
    assert np.array_equal(first.feasible, second.feasible)


def test_the_posterior_is_near_measurements_and_wide_elsewhere():
    posterior = believed([1, 8, 64, 512], [measured(size, saturating(size)) for size in (1, 64)])
    spread = posterior.log_throughput.std(axis=0)
    assert mean_of(posterior, 64) == pytest.approx(saturating(64), rel=0.01)
    assert spread[posterior.index(512)] > 5 * spread[posterior.index(64)]


def test_a_replicate_makes_the_posterior_narrower():
    once = believed([1, 8, 64], [measured(1, 30.0), measured(64, 680.0)])
    twice = believed([1, 8, 64], [measured(1, 30.0), measured(64, 680.0), measured(64, 680.0)])
    assert twice.log_throughput[:, 2].std() < once.log_throughput[:, 2].std()


def test_an_outlier_that_a_replicate_contradicts_hardly_counts():
    evidence = [measured(size, saturating(size)) for size in (1, 8, 16, 64, 128)]
    slowed = [*evidence, measured(32, 0.6 * saturating(32)), measured(32, saturating(32))]
    posterior = believed([1, 8, 16, 32, 64, 128], slowed)
    assert mean_of(posterior, 32) == pytest.approx(saturating(32), rel=0.03)


def test_a_fall_between_two_probes_may_be_anywhere_between_them():
    evidence = [measured(size, 1000.0) for size in (32, 40, 48, 64)] + [measured(size, 630.0) for size in (128, 160)]
    posterior = believed(range(32, 161), evidence)
    spread = posterior.log_throughput.std(axis=0)
    assert spread[posterior.index(96)] > 3 * spread[posterior.index(56)]
    high = posterior.log_throughput[:, posterior.index(96)] > math.log(900.0)
    assert 0.1 < high.mean() < 0.9


def test_out_of_memory_is_evidence_about_memory_and_never_a_slow_size():
    evidence = [measured(8, 500.0), Evidence(micro_batch_size=64, outcome=Outcome.OUT_OF_MEMORY)]
    posterior = believed([8, 16, 32, 64, 128], evidence)
    assert fits_at(posterior, 8) == 1.0
    assert fits_at(posterior, 64) == 0.0 == fits_at(posterior, 128)
    assert 0.0 < fits_at(posterior, 32) < 1.0
    assert list(posterior.open) == [True, True, True, False, False]


def test_measured_peaks_place_the_memory_boundary():
    def peak(size: int) -> int:
        return round((2 + 0.05 * size) * GIB)

    evidence = [
        measured(size, saturating(size), peak_memory_bytes=peak(size), memory_budget_bytes=20 * GIB)
        for size in (1, 100)
    ]
    posterior = believed(range(1, 1001), evidence)  # the boundary is at 360
    assert fits_at(posterior, 256) > 0.95
    assert fits_at(posterior, 512) < 0.05


def test_a_trace_that_is_wrong_is_corrected_by_measured_peaks():
    memory = MemoryPrior(peak_bytes=lambda size: (2 + 0.10 * size) * GIB, budget_bytes=20 * GIB)
    before = believed(range(1, 1001), [measured(1, 30.0)], memory=memory)  # the trace says 180
    evidence = [
        measured(size, saturating(size), peak_memory_bytes=round((2 + 0.085 * size) * GIB)) for size in (1, 100, 170)
    ]
    after = believed(range(1, 1001), evidence, memory=memory)  # the peaks say 211
    assert fits_at(before, 192) < 0.5
    assert fits_at(after, 192) > 0.9


def test_where_a_process_holds_more_than_tensors_traces_count_less():
    def tensors(size: int) -> float:
        return (0.4 + 0.04 * size) * GIB

    def ran(size: int, held_over_grown: float) -> Evidence:
        held = 0.45 * GIB + held_over_grown * 0.04 * size * GIB
        return measured(
            size,
            30.0,
            peak_memory_bytes=round(tensors(size)),
            resident_memory_bytes=round(held),
            memory_budget_bytes=4 * GIB,
        )

    memory = MemoryPrior(peak_bytes=tensors, relative_sd=0.012, budget_bytes=4 * GIB, judged_by=MemoryAccount.RESIDENT)
    by_the_trace = 85  # of 90 samples whose tensors fit
    first = believed(range(1, 101), [ran(1, 1.3)], memory=memory)
    assert fits_at(first, by_the_trace) < 0.1
    frugal = believed(range(1, 101), [ran(1, 1.0), ran(30, 1.0), ran(60, 1.0)], memory=memory)
    greedy = believed(range(1, 101), [ran(1, 1.5), ran(30, 1.5), ran(50, 1.5)], memory=memory)
    assert fits_at(frugal, 74) > 0.9
    assert fits_at(greedy, 54) > 0.8
    assert fits_at(greedy, 66) < 0.1


def test_a_failure_far_below_the_budget_makes_the_next_below_uncertain():
    def peak(size: int) -> float:
        return (0.4 + 0.04 * size) * GIB

    memory = MemoryPrior(peak_bytes=peak, relative_sd=0.012, budget_bytes=4 * GIB)
    ran = measured(1, 30.0, peak_memory_bytes=round(peak(1)), memory_budget_bytes=4 * GIB)
    before = believed(range(1, 101), [ran], memory=memory)  # by the trace 90 samples fit
    failed = Evidence(micro_batch_size=85, outcome=Outcome.OUT_OF_MEMORY, memory_budget_bytes=4 * GIB)
    after = believed(range(1, 101), [ran, failed], memory=memory)
    assert fits_at(before, 84) > 0.95
    assert 0.2 < fits_at(after, 84) < 0.8


def test_without_a_budget_everything_may_fit():
    posterior = believed([1, 2, 4, 8], [measured(1, 30.0)])
    assert fits_at(posterior, 8) > 0.5


def test_another_compilation_is_weaker_evidence_than_the_users_own():
    exact = believed([8, 16, 32], [measured(8, 500.0), measured(32, 900.0)])
    shared = believed(
        [8, 16, 32],
        [measured(8, 500.0, compilation=Compilation.SHARED), measured(32, 900.0, compilation=Compilation.SHARED)],
    )

    def ratio_sd(posterior: Posterior) -> float:
        return float((posterior.log_throughput[:, 2] - posterior.log_throughput[:, 0]).std())

    assert ratio_sd(shared) > ratio_sd(exact)


def test_where_exact_and_shared_disagree_exact_wins():
    evidence = [
        measured(8, 500.0, compilation=Compilation.SHARED),
        measured(16, 520.0, compilation=Compilation.SHARED),
        measured(8, 500.0, purpose=Purpose.VERIFY),
        measured(16, 470.0, purpose=Purpose.VERIFY),
    ]
    posterior = believed([8, 16], evidence)
    assert mean_of(posterior, 8) > mean_of(posterior, 16)


def test_a_large_space_keeps_probed_sizes_and_the_memory_boundary():
    evidence = [
        measured(1, 30.0),
        measured(1237, 900.0),
        Evidence(micro_batch_size=1400, outcome=Outcome.OUT_OF_MEMORY),
    ]
    posterior = believed(default_candidates(1, 4096), evidence)
    assert len(posterior.sizes) < 160
    assert {1, 1237, 1400} <= set(posterior.sizes.tolist())
    assert sum(1237 < size < 1400 for size in posterior.sizes) >= 4


def test_a_posterior_needs_a_measurement():
    with pytest.raises(ValueError, match="at least one measurement"):
        believed([1, 2], [Evidence(micro_batch_size=1, outcome=Outcome.OUT_OF_MEMORY)])


def test_a_probe_with_busy_neighbours_says_less():
    quiet = [measured(size, saturating(size)) for size in (1, 8, 16)]
    busy = [dataclasses.replace(item, contention_sd=0.2) if item.micro_batch_size == 8 else item for item in quiet]

    beliefs = [believed([1, 8, 16], evidence) for evidence in (quiet, busy)]

    spreads = [belief.log_throughput[:, belief.index(8)].std() for belief in beliefs]
    assert spreads[1] > 1.5 * spreads[0]


def test_a_pass_that_waited_for_a_processor_says_what_it_is_worth():
    """Seen on a loaded machine: size 1 took 333 ms a pass instead of 28, size 64 took 4.5 s instead of 1.35."""
    waited = Evidence.from_observation(
        observed(1, pass_times_s=(0.333,) * 5, background_cpu_share=0.6, scheduler_wait_fraction=0.9)
    )
    quiet = Evidence.from_observation(
        observed(1, pass_times_s=(0.333,) * 5, background_cpu_share=0.01, scheduler_wait_fraction=0.01)
    )
    assert waited.contention_sd > math.log(0.333 / 0.028) * 0.9
    assert quiet.contention_sd == 0.0


def test_the_score_stays_low_where_neighbours_decide_what_is_measured():
    sizes = [1, 2, 4, 8, 16, 32, 64]

    def confidence(scheduler_wait_fraction: float) -> int:
        rates = {1: 3.0, 64: 14.2, 16: 12.0, 32: 13.0, 8: 9.0}
        evidence = [
            Evidence.from_observation(
                observed(size, pass_times_s=(size / rate,) * 5, scheduler_wait_fraction=scheduler_wait_fraction)
            )
            for size, rate in rates.items()
        ]
        best = recommend(believed(sizes, evidence), evidence, tolerance=0.02)
        assert best is not None
        return best.confidence

    assert confidence(0.0) > 75
    assert confidence(0.7) < 70


def test_a_size_is_near_the_best_in_draws_within_the_tolerance():
    refused = Evidence(micro_batch_size=3000, outcome=Outcome.OUT_OF_MEMORY, purpose=Purpose.SEARCH)
    belief = believed(range(1, 4001), [measured(size, saturating(size)) for size in (1, 300, 1200)] + [refused])

    assert (belief.represented > 1).any(), "the best of all is better than the best of those that are kept"
    for size, tolerance in itertools.product(belief.sizes.tolist(), (0.005, 0.02, 0.1, 0.5)):
        near, regret = belief.near_best(tolerance)[:, belief.index(size)], belief.regret(size)
        is_tie = np.abs(regret - tolerance) < 1e-5  # of single precision
        assert (is_tie | (near == (regret <= tolerance))).all()
    assert belief.regret(3000).max() == 1.0


RESERVED = MemoryPrior(
    peak_bytes=lambda size: (0.5 + 0.05 * size) * GIB,
    relative_sd=0.02,
    budget_bytes=8 * GIB,
    judged_by=MemoryAccount.RESERVED,
)


def on_cuda(size: int, *, reserved_over_allocated: float, allocated_over_traced: float = 1.0, **fields) -> Evidence:
    """Ran, under a caching allocator."""
    allocated = allocated_over_traced * RESERVED.peak_bytes(size)
    facts = {
        "peak_memory_bytes": round(allocated),
        "resident_memory_bytes": round(reserved_over_allocated * allocated),
        "memory_budget_bytes": round(RESERVED.budget_bytes),
    }
    return measured(size, 30.0, **facts | fields)


def test_by_reserved_memory_tensors_alone_do_not_fill_the_budget():
    ran = [on_cuda(1, reserved_over_allocated=1.2)]
    by_the_trace = 148  # of 150 samples whose tensors fit
    assert fits_at(believed(range(1, 201), ran, memory=RESERVED), by_the_trace) < 0.2
    tensors = dataclasses.replace(RESERVED, judged_by=MemoryAccount.TENSORS)
    assert fits_at(believed(range(1, 201), [measured(1, 30.0)], memory=tensors), by_the_trace) > 0.35


def test_measured_ratios_of_reserved_to_allocated_memory_correct_the_prior():
    frugal, greedy = (
        believed(range(1, 201), [on_cuda(size, reserved_over_allocated=ratio) for size in (1, 40, 80)], memory=RESERVED)
        for ratio in (1.01, 1.10)
    )
    assert fits_at(frugal, 138) > 0.8  # 148 samples would fill the budget
    assert fits_at(greedy, 124) > 0.8  # 135 samples would fill the budget
    assert fits_at(greedy, 143) < 0.1


def test_a_small_size_says_little_of_the_ratio_at_large_ones():
    small, large = (
        believed(range(1, 201), [on_cuda(size, reserved_over_allocated=1.25)], memory=RESERVED) for size in (1, 80)
    )
    assert fits_at(small, 125) > 0.6
    assert fits_at(large, 125) < 0.1


def test_allocated_memory_corrects_the_trace_where_nothing_tells_the_ratio():
    as_traced, smaller = (
        [
            on_cuda(size, reserved_over_allocated=1.0, allocated_over_traced=share, resident_memory_bytes=None)
            for size in (1, 40, 80)
        ]
        for share in (1.0, 0.8)
    )
    assert fits_at(believed(range(1, 201), as_traced, memory=RESERVED), 150) < 0.2
    assert fits_at(believed(range(1, 201), smaller, memory=RESERVED), 150) > 0.8  # 187 samples would fill the budget


def test_an_allocator_at_its_limit_says_nothing_of_the_ratio():
    quiet = [on_cuda(size, reserved_over_allocated=1.08) for size in (40, 80, 100)]
    at_the_limit = on_cuda(118, reserved_over_allocated=8.0 / 6.4, num_alloc_retries=3)
    again = on_cuda(118, reserved_over_allocated=8.0 / 6.4)  # its peak is that of the first time
    before = believed(range(1, 201), quiet, memory=RESERVED)
    after = believed(range(1, 201), [*quiet, at_the_limit, again], memory=RESERVED)
    assert fits_at(after, 130) == pytest.approx(fits_at(before, 130), abs=0.1)
