"""The accumulation to which a training's warmup rises: the first steps of YOLO's trainers have fewer micro-batches.

Source: `_do_train` of ultralytics/engine/trainer.py; `train` of YOLOv5's and YOLOv7's train.py, and of what is made of
them. Their loops name the pass `ni`, the last pass of the warmup `nw`, and the samples of a step `nbs`.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

MOST_FRAMES = 40  # from an update up to the training loop. Source: chosen


def find_accumulation_after_warmup(frame: FrameType | None) -> int | None:
    """Return the micro-batches that a step has after the warmup of the loop that runs; None where it has none."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        names = frame.f_locals
        place, last = names.get("ni"), names.get("nw")
        if isinstance(place, int) and isinstance(last, int) and place <= last:
            return _read_accumulation(names)
        frame = frame.f_back
    return None


def _read_accumulation(names: Any) -> int | None:
    if isinstance(names.get("acc0"), int):
        return max(int(names["acc0"]), 1)
    trainer = names.get("self")
    samples = names.get("nbs", getattr(getattr(trainer, "args", None), "nbs", None))
    size = names.get("total_batch_size", names.get("batch_size", getattr(trainer, "batch_size", None)))
    if not isinstance(samples, int) or not isinstance(size, int) or size < 1:
        return None
    return max(round(samples / size), 1)
