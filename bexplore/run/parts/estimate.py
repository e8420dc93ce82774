"""What a model estimated, and nothing ran: how wrong it may be, and what its seconds go to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bexplore.run.facts import Facts
from bexplore.run.parts.row import Row, View
from bexplore.units import format_seconds, format_share

# What bounds a kernel -> the word for people.
_BOUNDS = {"arithmetic": "matrix products", "waves": "waves", "bandwidth": "bandwidth", "launch": "launches"}
_BOUNDS |= {"host": "waiting for the host", "communication": "communication"}
LEAST_SHARE = 0.02  # of a pass that is named
# Waves over those that are begun, from which a last one that is not full is worth no word.
FULL_WAVES = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """The tiles of the matrix product that takes longest, over the multiprocessors."""

    num_multiprocessors: int  # of the device
    waves: float  # tiles over multiprocessors
    smaller: int | None  # the largest size below with as many full waves; None for none
    larger: int | None  # the largest size above that begins no further wave; None for none

    def words(self, micro_batch_size: int) -> str:
        """Return the waves, and the sizes beside this one that fill them; no advice where the last one is full."""
        text = f"{self.num_multiprocessors} multiprocessors, {self.waves:.2f} waves at {micro_batch_size}"
        near = [str(size) for size in (self.smaller, self.larger) if size]
        return f"{text}: {' or '.join(near)}" if near else text


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedCommunication:
    """What ranks exchange in a pass, the mean over a step."""

    seconds: float  # of all collectives
    exposed_s: float  # what computation does not hide, which samples/s hold
    replica_s: float  # seconds of a pass of a replica that exchanges nothing with others
    links: str  # by which they were counted, in words
    is_complete: bool  # whether all links between the ranks are known

    @property
    def words(self) -> str:
        """Return what a pass communicates, and how much of it shows."""
        return f"{format_seconds(self.seconds)} of a pass, {format_seconds(self.exposed_s)} exposed; {self.links}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatePart:
    """The estimate of the recommended size."""

    device_name: str  # the device, which is not here
    relative_sd: float  # standard deviation of ln of samples/s, most of which all sizes have in common
    program: str = ""  # whose kernels were added up, where they are not the device's own; empty where they are
    update_s: float | None = None  # of an update, which samples/s do not have; None where it is unknown
    mfu: float | None = None  # model-flops utilization, 0 to 1; None where the peak is unknown
    has_update: bool = False  # whether a pass has its share of the update; of a command that fixes its accumulation
    waves: Waves | None = None  # of the product that takes longest; None where they do not matter
    communication: EstimatedCommunication | None = None  # None where one rank, or none of the links, is known
    # By size, the share of a pass by what bounds its kernels (`arithmetic`, `waves`, `bandwidth`, `launch`), or by what
    # it waits for (`host`, `communication`).
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def find(cls, facts: Facts) -> EstimatePart | None:
        """Return the estimate of the answer; None where it was measured."""
        ran = facts.ran
        if ran is None or not ran.is_estimated:
            return None
        own = ran.details["estimate"]
        exchanged = own.get("communication")
        estimated = {one.micro_batch_size: one.details["estimate"] for one in facts.own if one.is_estimated}
        return cls(
            device_name=own["device_name"],
            relative_sd=own["relative_sd"],
            program=own["program"],
            update_s=own["update_s"],
            mfu=own["mfu"],
            has_update=own.get("has_update", False),
            waves=None if own["waves"] is None else Waves(**own["waves"]),
            communication=None if exchanged is None else EstimatedCommunication(**exchanged),
            shares={str(size): dict(estimated[size]["shares"]) for size in sorted(estimated)},
        )

    @property
    def words(self) -> str:
        """Return what the answer is and is not."""
        return f"estimated for {self.device_name}, not run"

    def rows(self, view: View, micro_batch_size: int | None) -> Iterator[Row]:
        """Yield how wrong it may be, and what a pass consists of at the recommended size."""
        program = f"; by the kernels of {self.program}" if self.program else ""
        mfu = "" if self.mfu is None else f"; {self.mfu:.0%} of the peak arithmetic (MFU)"
        update = "" if self.update_s is None else f"; an update takes {format_seconds(self.update_s)} beside the passes"
        update = ", updates included" if self.has_update else update
        exchanged = " and what replicas exchange" if view.num_replicas > 1 else ""
        update += f", loading of data{exchanged} not" if view.is_of_command else ""
        yield Row(
            "estimated",
            f"for {self.device_name}, not run: samples/s {describe_error(self.relative_sd)}{update}{mfu}{program}",
        )
        shares = share_words(self.shares.get(str(micro_batch_size), {}))
        waves = "" if self.waves is None or micro_batch_size is None else f"; {self.waves.words(micro_batch_size)}"
        if shares:
            yield Row("dominated by", shares + waves)
        if self.communication is not None:
            yield Row("communication", self.communication.words)


def describe_error(relative_sd: float) -> str:
    """Return how far off an estimate may be, in words."""
    return f"to within {2 * relative_sd:.0%} (two standard deviations)"


def share_words(shares: Mapping[str, float]) -> str:
    """Return what bounds the kernels of a pass, the largest share first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{_BOUNDS[bound]} {format_share(share)}" for bound, share in ordered if share >= LEAST_SHARE)
