"""Dataclasses to JSON values and back."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from bexplore.host.records import from_record, to_record


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A class whose record has a form of its own."""

    left: int
    right: int

    def as_record(self) -> list[int]:
        return [self.left, self.right]

    @classmethod
    def from_record(cls, record: list[int]) -> "Pair":
        return cls(*record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    name: str
    colour: Colour | None = None
    points: tuple[Point, ...] = ()
    ends: tuple[int, str] = (0, "")
    by_size: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    pair: Pair | None = None
    anything: dict[str, Any] = field(default_factory=dict)
    mixed: int | str | None = None


WHOLE = Whole(
    name="one",
    colour=Colour.RED,
    points=(Point(1.0), Point(2.0, 3.0)),
    ends=(4, "end"),
    by_size={8: (0.5, 0.25)},
    pair=Pair(1, 2),
    anything={"a": [1, None]},
    mixed="text",
)


def test_a_dataclass_is_read_back_from_json_as_it_was():
    record = to_record(WHOLE)
    assert json.loads(json.dumps(record)) == record
    assert from_record(Whole, record) == WHOLE
    assert from_record(Whole, {"name": "two"}) == Whole(name="two")


def test_a_class_with_a_form_of_its_own_keeps_it():
    assert to_record(WHOLE)["pair"] == [1, 2]


def test_nan_is_null_where_it_is_asked_for_and_null_is_nan_for_a_number():
    assert math.isnan(to_record(Point(math.nan))["x"])
    record = to_record(Point(math.nan), nan_as_null=True)
    assert record == {"x": None, "y": 0.0}
    assert math.isnan(from_record(Point, record).x)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"points": [{"x": "far"}]}, "points: x: expected a number, not 'far'"),
        ({"points": 3}, "points: expected a list, not 3"),
        ({"name": 3}, "name: expected str, not 3"),
        ({"colour": "blue"}, "colour: 'blue' is not a valid Colour"),
        ({"ends": [1]}, "ends: "),
        ({"by_size": []}, r"by_size: expected an object, not \[\]"),
        ({"size": 1}, "Whole has no field 'size'"),
    ],
)
def test_an_error_names_the_field(changes, place):
    with pytest.raises((TypeError, ValueError), match=place):
        from_record(Whole, to_record(WHOLE) | changes)


def test_unknown_keys_are_ignored_where_that_is_asked_for():
    assert from_record(Whole, {"name": "two", "event": "result"}, ignore_unknown=True) == Whole(name="two")


def test_what_is_no_object_is_an_error():
    with pytest.raises(TypeError, match="expected an object"):
        from_record(Whole, [1])
