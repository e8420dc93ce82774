"""Dataclasses as JSON values and back, by the annotations of their fields.

A class whose record has a form of its own has the methods `as_record` and `from_record`, which are used wherever one is
a field of another.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
_Reader = Callable[[Any], Any]


def to_record(value: Any, *, nan_as_null: bool = False) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON carries them, for `from_record`.

    Args:
        nan_as_null: Whether NaN becomes None, which `from_record` turns back into NaN where a float is expected.
    """
    names = (field.name for field in dataclasses.fields(value))
    return {name: _plain(getattr(value, name), nan_as_null=nan_as_null) for name in names}


def from_record(cls: type[T], record: Any, *, ignore_unknown: bool = False) -> T:
    """Rebuild a dataclass from `to_record`.

    Args:
        ignore_unknown: Whether keys that are no field are ignored; else they are an error.

    Raises:
        TypeError, ValueError: The record has another form; the message names the field.
    """
    return cls(**read_fields(cls, record, ignore_unknown=ignore_unknown))


def read_fields(cls: type[Any], record: Any, *, ignore_unknown: bool = False) -> dict[str, Any]:
    """Return those fields of a dataclass that a record has, for its constructor; errors as in `from_record`."""
    if not isinstance(record, Mapping):
        raise TypeError(f"expected an object, not {record!r}")
    readers = _field_readers(cls)  # type: ignore[arg-type]  # mypy takes a class of dataclasses for unhashable
    values: dict[str, Any] = {}
    for name, value in record.items():
        if name in readers:
            try:
                values[name] = readers[name](value)
            except (TypeError, ValueError, KeyError) as error:
                raise type(error)(f"{name}: {error}") from error
        elif not ignore_unknown:
            raise TypeError(f"{cls.__name__} has no field {name!r}")
    return values


def _plain(value: Any, *, nan_as_null: bool) -> Any:
    if hasattr(value, "as_record"):
        return value.as_record()
    if dataclasses.is_dataclass(value):
        return to_record(value, nan_as_null=nan_as_null)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, nan_as_null=nan_as_null) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, nan_as_null=nan_as_null) for item in value]
    if nan_as_null and isinstance(value, float) and math.isnan(value):
        return None
    return value


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)


@functools.cache
def _field_readers(cls: type) -> Mapping[str, _Reader]:
    hints = typing.get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(cls) if field.init}


def _reader(hint: Any) -> _Reader:
    """Return the function that reads a value of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _union_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(*arguments)
    if origin in (list, Sequence):
        read = _reader(arguments[0])
        return lambda value: [read(item) for item in _items(value)]
    return _plain_reader(hint)


def _plain_reader(hint: Any) -> _Reader:
    if hasattr(hint, "from_record"):
        own: _Reader = hint.from_record
        return own
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return functools.partial(from_record, hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if hint is float:
        return _float
    if hint in (int, str, bool):
        return functools.partial(_checked, hint)
    return lambda value: value


def _union_reader(arguments: tuple[Any, ...]) -> _Reader:
    """Return the reader of an optional value, or of one of several plain types, which is taken as it is."""
    others = [one for one in arguments if one is not type(None)]
    if len(others) > 1:
        return lambda value: value
    read = _reader(others[0])
    return lambda value: None if value is None else read(value)


def _tuple_reader(arguments: tuple[Any, ...]) -> _Reader:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        read = _reader(arguments[0])
        return lambda value: tuple(map(read, _items(value)))
    readers = tuple(map(_reader, arguments))
    return lambda value: tuple(read(item) for read, item in zip(readers, _items(value), strict=True))


def _mapping_reader(key_type: Any, value_type: Any) -> _Reader:
    read_key = _reader(key_type) if key_type is not int else int
    read = _reader(value_type)

    def read_mapping(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected an object, not {value!r}")
        return {read_key(key): read(item) for key, item in value.items()}

    return read_mapping


def _items(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, not {value!r}")
    return value


def _float(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, not {value!r}")
    return value  # a whole number stays one: as text it decides the identity of a job


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"expected {kind.__name__}, not {value!r}")
    return value
