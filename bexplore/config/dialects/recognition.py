"""The family of a file, recognised from its keys, and the file's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.config.dialects.families import FAMILIES
from bexplore.config.dialects.family import Family, Keys, Likeness, Numbers, Remainder
from bexplore.config.document import Document, Problems, as_number, dotted_path, is_integer, is_number
from bexplore.config.document.reader import KeyPath, quote
from bexplore.config.document.values import Values
from bexplore.errors import UserInputError, close_match
from bexplore.job.batching import MAX_SAMPLES

_QUANTITIES = ("micro_batch_size", "accumulation", "global_batch_size", "sequence_length")
_WORDS = ("explore", "auto")
NO_FAMILY = "none"  # the dialect of a file of the user's own


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFile:
    """A file of a family."""

    family: Family
    evidence: tuple[str, ...]  # keys by which it was recognised; empty where the user named it
    values: Values
    places: Mapping[str, KeyPath]  # path of each quantity that the file has a key for
    numbers: Numbers  # its numbers in samples, as they are written; the micro-batch size is None where it is the word

    @property
    def tokens_of_a_sample(self) -> int:
        """The factor between samples and what the file counts."""
        return (self.numbers.sequence_length or 1) if self.family.counts_tokens else 1

    @property
    def size_path(self) -> KeyPath:
        """The path of the micro-batch size, present or not."""
        return self.places.get("micro_batch_size") or tuple(self.family.micro_batch_size[0].split("."))

    @property
    def why(self) -> str:
        """The family and the keys that show it, for people."""
        return f"{self.family.title}, {'by ' + ', '.join(self.evidence) if self.evidence else 'named by the user'}"

    def memory(self) -> dict[str, Any]:
        """Return what else of the file decides the memory or the speed of a pass, by dotted key."""
        keys = (*self.family.sequence_length, *self.family.memory)
        return {key: self.values.get(key) for key in keys if self.values.has(key)}


def recognise(document: Document, *, dialect: str | None = None) -> Likeness | None:
    """Return the family that a file resembles most, or the one that the user names; None where it is like none.

    A word at a key that the family does not read is evidence against it: who types it knows the key.
    """
    if dialect == NO_FAMILY:
        return None
    if dialect is not None:
        return Likeness(family=find_family(dialect))
    values, suffix = Values(document.values, document.header), document.path.suffix.lower()
    found = [one for family in FAMILIES.values() if (one := family.compare(values, suffix)) is not None]
    # Families stand behind those of which their keys are a part.
    certain = next((one for one in found if one.is_certain), None)
    return certain or max(found, key=lambda one: one.score, default=None)


def find_family(name: Any) -> Family:
    """Return the family of a name."""
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        near = close_match(str(name), FAMILIES)
        hint = f"did you mean {near}?" if near else f"one of {', '.join(FAMILIES)}"
        raise UserInputError(f"explore.dialect: there is no family {quote(name)}", hint=hint)
    return family


def read_family(problems: Problems, likeness: Likeness) -> FamilyFile:
    """Read the numbers of a file; what is wrong in itself, with each other or for the family is noted."""
    family, values = likeness.family, Values(problems.document.values, problems.document.header)
    found = {name: values.first(getattr(family, name)) for name in _QUANTITIES}
    found["micro_batch_size"] = family.size_path(values)
    places = {name: values.follow(path) for name, path in found.items() if path is not None}
    read = {name: _number(problems, family, values, places.get(name)) for name in _QUANTITIES}
    if family.counts_tokens:
        _divide_by_tokens(problems, places, read)
    numbers = Numbers(**read, num_replicas=_replicas(values, family))
    file = FamilyFile(family=family, evidence=likeness.evidence, values=values, places=places, numbers=numbers)
    _note_objections(problems, file)
    return file


def _number(problems: Problems, family: Family, values: Values, path: KeyPath | None) -> int | None:
    """Return a positive number; None where it is absent, derived, a word or a reference that leads nowhere."""
    if path is None:
        return None
    value = values.at(path)
    if isinstance(value, Mapping) or any(value is unset or value == unset for unset in family.unset):
        return None
    value = as_number(value)
    if isinstance(value, str):
        if value not in _WORDS and "${" not in value:
            problems.error(path, f"{dotted_path(path)} must be a positive integer, not {quote(value)}")
        return None
    if is_number(value) and value == int(value) and 1 <= value <= MAX_SAMPLES:
        return int(value)
    problems.error(path, f"{dotted_path(path)} must be a positive integer, not {quote(value)}")
    return None


def _divide_by_tokens(problems: Problems, places: Mapping[str, KeyPath], read: dict[str, int | None]) -> None:
    """Turn tokens into samples.

    Sequences are never cut: a number of tokens that is no multiple of a sequence is an error.
    """
    tokens = read["sequence_length"]
    for name in ("micro_batch_size", "global_batch_size"):
        number = read[name]
        if number is None:
            continue
        if tokens is None:
            read[name] = None
        elif number % tokens:
            problems.error(
                places[name],
                f"{dotted_path(places[name])} {number} is no multiple of the {tokens} tokens of a sequence",
            )
            read[name] = None
        else:
            read[name] = number // tokens


def count_processes(file: FamilyFile) -> int | None:
    """Return the processes that a training starts, one a device: replicas x the degrees that share one model."""
    values, family = file.values, file.family
    replicas, degrees = _replicas(values, family), _product(values, family.parallel_degrees)
    return None if replicas is None or degrees is None else replicas * degrees


def _replicas(values: Values, family: Family) -> int | None:
    """Return the product of the factors over the devices of one replica; None where one is open."""
    if not any(values.has(key) for alternatives in family.replicas for key in alternatives):
        return None
    if any(values.get(key, -1) == -1 for key in family.all_that_remain):
        return None
    devices = _product(values, family.replicas)
    of_one = _product(values, family.model_parallel)
    return None if devices is None or of_one is None or devices % of_one else devices // of_one


def _product(values: Values, factors: Iterable[Keys]) -> int | None:
    product = 1
    for alternatives in factors:
        path = values.first(alternatives)
        value = None if path is None else values.at(path)
        if value is None and path is None:
            continue
        if isinstance(value, list) and value:  # a list of devices
            value = len(value)
        if not is_integer(value) or not 1 <= value <= MAX_SAMPLES:
            return None
        product *= value
    return product


def _note_objections(problems: Problems, file: FamilyFile) -> None:
    solved = file.numbers.solved()
    place = file.places.get("global_batch_size") or file.size_path
    objections = list(file.family.rules(solved, file.values))
    conflict, remainder = file.numbers.conflict(), file.family.remainder
    if conflict and remainder is Remainder.DROPPED:
        problems.warn(place, f"{conflict}: {file.family.title} drops the rest without a message")
    elif conflict and remainder is Remainder.REFUSED and not objections:
        objections.append(f"{conflict}: {file.family.title} refuses that")
    for objection in objections:
        problems.error(place, objection)
