"""How few batches stand for all of a size: `python -m benchmarks.lengths_draws`. Nothing is timed; seconds of CPU.

For the lengths of six data sets, four collations and sizes up to 256, the mean over the typical batches of a size is
compared with that over all batches, for pass times that are smooth in the length, have steps, or both; and the mean
length of a batch with that of eight times as many samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.lengths import job_of
from benchmarks.lengths_jobs import JOBS
from bexplore.job import lengths as module
from bexplore.job.lengths import Collation, Lengths

RESULT = Path(__file__).parent / "results" / "lengths_draws.md"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COUNTS = (1, 2, 3, 4, 5, 6)
COLLATIONS = (Collation.LONGEST, Collation.SORTED, Collation.TOKENS)
# Seconds of a pass by the length of its rows, in units of the longest.
PASSES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "fixed part and linear": lambda x: 0.2 + x,
    "with quadratic attention": lambda x: 0.1 + x + 2 * x**2,
    "in steps of an eighth": lambda x: 0.1 + np.ceil(8 * x) / 8,
    "slower beyond a cache": lambda x: x * np.where(x > 0.5, 1.3, 1.0),
}


def main() -> None:
    lines = [
        "# Batches that stand for all of a size",
        "",
        "Written by `python -m benchmarks.lengths_draws`. Error of the mean seconds of a pass over n typical batches, "
        f"percent of that over all batches: lengths of {len(JOBS)} data sets, collations "
        f"{', '.join(one.value for one in COLLATIONS)}, sizes {', '.join(map(str, SIZES))}.",
        "",
        "| n | " + " | ".join(f"{name}: median, worst" for name in PASSES) + " |",
        "| ---: |" + " ---: |" * len(PASSES),
        *(_row(count) for count in COUNTS),
        "",
        f"The mean length of a batch of {module.NUM_SAMPLES} samples against that of eight times as many, percent: "
        f"worst {max(_sample_errors()):.2f}.",
        "",
        f"The padding of packed rows of {module._PACKED_SAMPLES} samples less that of eight times as many, points: "
        f"worst {max(_packing_errors()):.2f}.",
    ]
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())


def _distributions() -> Iterator[Lengths]:
    for one in JOBS:
        lengths = job_of(one).lengths
        assert lengths is not None
        for collation in COLLATIONS:
            yield Lengths(values=lengths.values, weights=lengths.weights, collation=collation)


def _row(count: int) -> str:
    module.NUM_BATCHES = count
    module._typical_batches.cache_clear()
    cells = []
    for function in PASSES.values():
        errors = [_error(lengths, size, function) for lengths in _distributions() for size in SIZES]
        cells.append(f"{100 * statistics.median(errors):.2f}, {100 * max(errors):.2f}")
    return f"| {count} | " + " | ".join(cells) + " |"


def _error(lengths: Lengths, size: int, function: Callable[[np.ndarray], np.ndarray]) -> float:
    everything = function(lengths.batch_lengths(size) / lengths.longest).mean()
    typical = lengths.typical_batches(size)
    places = np.asarray([one.length for one in typical]) / lengths.longest
    return abs(float(function(places) @ [one.share for one in typical]) / float(everything) - 1.0)


def _sample_errors() -> list[float]:
    own = [lengths.batch_lengths(size).mean() for lengths in _distributions() for size in SIZES]
    module.NUM_SAMPLES *= 8
    module._sequence.cache_clear()
    module._batch_lengths.cache_clear()
    many = [lengths.batch_lengths(size).mean() for lengths in _distributions() for size in SIZES]
    module.NUM_SAMPLES //= 8
    return [100 * abs(one / other - 1.0) for one, other in zip(own, many, strict=True)]


def _packing_errors() -> list[float]:
    packed = [
        Lengths(values=one.values, weights=one.weights, collation=Collation.PACKED)
        for one in _distributions()
        if one.collation is COLLATIONS[0]
    ]
    own = [one.padding_share(1) for one in packed]
    module._PACKED_SAMPLES *= 8
    many = [one.padding_share(1) for one in packed]
    module._PACKED_SAMPLES //= 8
    return [100 * abs(one - other) for one, other in zip(own, many, strict=True)]


if __name__ == "__main__":
    main()
