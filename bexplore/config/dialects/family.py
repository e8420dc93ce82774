"""A family of training configurations: the keys of its numbers, its own rules, its usual command and its launchers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Any, TypeAlias

from bexplore.config.document.reader import SIZE_NAME, KeyPath
from bexplore.config.document.values import Values, paths_below

# The factors of the global batch, with their names for people.
_FACTORS = {"micro_batch_size": "micro-batch", "accumulation": "accumulation", "num_replicas": "replicas"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers of a file; None for one that it leaves open."""

    micro_batch_size: int | None = None  # samples of one replica in one pass
    accumulation: int | None = None  # micro-batches of one replica in one optimizer step
    num_replicas: int | None = None  # data-parallel replicas
    global_batch_size: int | None = None  # samples of one optimizer step over all replicas
    sequence_length: int | None = None  # tokens of a sample

    def solved(self) -> Numbers:
        """Return the numbers with the one that follows from the others: global = micro x accumulation x replicas.

        A division that leaves a remainder is not made: `conflict` describes it.
        """
        known, total = self._factors(), self.global_batch_size
        product, missing = math.prod(known.values()), _FACTORS.keys() - known.keys()
        if total is None and not missing and product:
            return dataclasses.replace(self, global_batch_size=product)
        if total and len(missing) == 1 and product and total % product == 0:
            return dataclasses.replace(self, **{missing.pop(): total // product})
        return self

    def conflict(self) -> str:
        """Return why the numbers exclude each other; empty where they do not."""
        known, total = self._factors(), self.global_batch_size
        if total is None or not known:
            return ""
        product, is_whole = math.prod(known.values()), len(known) == len(_FACTORS)
        if product == total if is_whole else total % product == 0:
            return ""
        shown = " x ".join(f"{_FACTORS[name]} {number}" for name, number in known.items())
        return f"the global batch {total} is {'not' if is_whole else 'no multiple of'} {shown}"

    def _factors(self) -> dict[str, int]:
        return {name: number for name in _FACTORS if (number := getattr(self, name)) is not None}


_NEAR_TOP = 2  # keys of such a path: deeper ones are arguments of parts, such as a loader for evaluation
# A dotted path, or alternatives of which the first that is present counts.
Keys: TypeAlias = tuple[str, ...]


CERTAIN = 3  # score from which a file is a family's; below it is a file of the user's own that resembles the family
_FOREIGN = 3  # what a key of another program takes from the score: no usual key makes up for it
_HYDRA = "defaults"  # the list of a Hydra tree, which no family's own file is
_PACKAGE = "@package"  # in the comment above a part of such a tree
_TARGET = "_target_"  # the class that Hydra makes of a mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Keys without which a file is not of a family."""

    all_of: Keys = ()  # dotted keys that must be present
    any_of: Keys = ()  # dotted keys of which one must be present; none for no such rule
    none_of: Keys = ()  # dotted keys that must be absent
    suffixes: tuple[str, ...] = ()  # endings of the file's name; empty for any
    score: int = CERTAIN  # how much these keys show by themselves: `CERTAIN` where no other program has them

    def evidence(self, values: Values, suffix: str) -> tuple[str, ...]:
        """Return the keys that show the family; empty where the file is of another."""
        found = [key for key in self.any_of if values.has(key)]
        fits = all(map(values.has, self.all_of)) and not any(map(values.has, self.none_of))
        if not fits or (self.any_of and not found) or (self.suffixes and suffix not in self.suffixes):
            return ()
        return (*self.all_of, *found[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How much a file looks like one of a family."""

    family: Family  # the family
    evidence: tuple[str, ...] = ()  # keys that show it; empty where the user named it
    against: tuple[str, ...] = ()  # keys that speak for another program
    score: int = CERTAIN  # keys for it less those against it

    @property
    def is_certain(self) -> bool:
        """Whether the file counts as the family's."""
        return self.score >= CERTAIN


class Remainder(StrEnum):
    """The treatment of samples of the global batch that fill no whole micro-batch."""

    REFUSED = "refused"
    DROPPED = "dropped"  # without a message: the training runs with a smaller global batch
    SMALLER = "smaller"  # the last micro-batch is smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The usual command of a family; `launched` is empty where the family starts its own processes."""

    words: tuple[str, ...] = ()  # without a launcher, or with the launcher of the family
    launched: tuple[str, ...] = ()  # behind the options of a launcher: `-m axolotl.cli.train {config}`
    # Whether nothing else of the family may read such a file: else it is a line to type, never run.
    is_certain: bool = True

    @property
    def line(self) -> tuple[str, ...]:
        """Return the words of a line to type."""
        return self.words or add_launcher("torchrun", 1, self.launched)

    def named_by(self, header: str) -> Program:
        """Return a line to type with the script that the comments above a file start, where it is another one."""
        started = [*_find_started(header)]
        own = {PurePath(word).name for word in (*self.words, *self.launched)}
        if not started or any(PurePath(one).name in own for one in started):
            return self
        words, launched = (
            tuple(started[-1] if word.endswith(".py") else word for word in part)
            for part in (self.words, self.launched)
        )
        return Program(words=words, launched=launched, is_certain=False)


def _find_started(header: str) -> Iterator[str]:
    """Yield the scripts and modules that command lines of comments start."""
    for line in header.replace("\\\n", " ").splitlines():
        words = line.replace('"', " ").replace("`", " ").split()
        first = next((index for index, word in enumerate(words) if word in _STARTERS), len(words))
        for word, after in itertools.pairwise((*words[first + 1 :], "")):
            if word == "-m" or word.endswith(".py"):
                yield after if word == "-m" else word
                break


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of training configurations."""

    name: str  # name on the command line
    title: str  # name for people
    signatures: tuple[Signature, ...]  # signatures, of which one must fit
    micro_batch_size: Keys  # keys of the samples of one replica in one pass
    source: str  # public document or code that the keys and rules come from
    marks: Keys = ()  # further keys that its files usually have: each counts for it
    foreign: Keys = (_HYDRA,)  # keys of other programs whose files look alike: each counts against it
    # Returns the path of the micro-batch size where its key is the user's own; None for the keys alone.
    find_size: Callable[[Values], KeyPath | None] = lambda values: None
    global_batch_size: Keys = ()  # keys of the samples of one optimizer step over all replicas
    unread: Keys = ()  # keys of sizes that its files often have, and that it does not read
    accumulation: Keys = ()  # keys of the micro-batches of one replica in one step
    # Factors of the number of replicas, each with its alternatives; an absent factor is 1.
    replicas: tuple[Keys, ...] = ()
    # Keys of `replicas` that mean "all that remain of the devices" where they are absent or -1.
    all_that_remain: Keys = ()
    # Factors by which the product of `replicas` is divided: devices of one replica.
    model_parallel: tuple[Keys, ...] = ()
    parallel_degrees: tuple[Keys, ...] = ()  # factors by which `replicas` is multiplied for the number of processes
    sequence_length: Keys = ()  # keys of the tokens of a sample
    output_dir: Keys = ()  # keys of folders that the training writes to; each start gets a folder of its own
    memory: Keys = ()  # further keys that decide the memory or the speed of a pass: a change of one is named
    counts_tokens: bool = False  # whether micro-batch and global batch stand in tokens
    # Value that a key has in each start, where the file has it: what would change the size by itself.
    probing: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[Any, ...] = (None, "auto", -1)  # values of a number that mean "derived", such as -1 or "auto"
    # What the family does where the global batch is no multiple of micro-batch and replicas.
    remainder: Remainder = Remainder.REFUSED
    # Yields the family's own objections to the numbers.
    rules: Callable[[Numbers, Values], Iterable[str]] = lambda numbers, values: ()
    # Returns the usual command of a file for a number of processes; None where only the user has it.
    program: Callable[[Values, int], Program] | None = None
    reads_absent_size: bool = True  # whether its program reads the micro-batch size also where a file had none
    note: str = ""  # what a reader of the table of families should have in mind; a line to type begins with `-- `

    def size_path(self, values: Values) -> KeyPath | None:
        """Return the path at which the micro-batch size is written; None where the file has none."""
        path = values.first(self.micro_batch_size) or self.find_size(values)
        return None if path is None else values.follow(path)

    def compare(self, values: Values, suffix: str) -> Likeness | None:
        """Return how much a file looks like one of this family; None where no signature fits."""
        fitting = [(one.score, found) for one in self.signatures if (found := one.evidence(values, suffix))]
        if not fitting:
            return None
        score, evidence = max(fitting, key=lambda pair: pair[0])
        is_shown = score >= CERTAIN
        marks = [key for key in self.marks if values.has(key)]
        tree = self._find_marks_of_tree(values)
        found = (*tree, *filter(values.has, self.foreign), *self._find_other_sizes(values))
        against = tuple(dict.fromkeys(found))
        score += len(marks) - _FOREIGN * len(against)
        return Likeness(
            family=self,
            evidence=evidence if is_shown else tuple(dict.fromkeys((*evidence, *marks)))[:4],
            against=against,
            score=min(score, CERTAIN - 1) if tree else score,
        )

    def find_program(self, values: Values, num_processes: int) -> Program | None:
        """Return the usual command of a file; None where only the user has it."""
        return None if self.program is None else self.program(values, num_processes).named_by(values.header)

    def _find_marks_of_tree(self, values: Values) -> list[str]:
        """Return what shows a tree of Hydra, which makes objects of other programs: no key makes up for it."""
        if _HYDRA not in self.foreign:
            return []
        near = (path for path in paths_below(values.values, ()) if len(path) <= _NEAR_TOP and path[-1] == _TARGET)
        package = self.source.partition(".")[0]
        targets = [".".join(map(str, path)) for path in near if not str(values.at(path)).startswith(package)]
        return [*[_HYDRA] * values.has(_HYDRA), *[_PACKAGE] * (_PACKAGE in values.header), *targets]

    def _find_other_sizes(self, values: Values) -> list[str]:
        """Return the keys that are named as a batch size beside this family's own, and that it does not read."""
        keys = (*self.micro_batch_size, *self.global_batch_size, *self.unread)
        own = {path for key in keys if (path := values.path(key))} | {self.find_size(values) or ()}
        sections = {(), *(tuple(key.split(".")[:-1]) for key in keys)}
        found = (path for path in find_sizes(values.values) if path not in own and path[:-1] in sections)
        return [".".join(map(str, path)) for path in found]


def find_sizes(values: Mapping[str, Any], *, depth: int = _NEAR_TOP) -> list[KeyPath]:
    """Return the paths near the top of a file that are named as a batch size of the training.

    Those of a micro-batch come first, then the shortest.
    """
    near = (path for path in paths_below(values, ()) if len(path) <= depth and path[0] != "explore")
    found = (path for path in near if SIZE_NAME.fullmatch(str(path[-1])))
    return sorted(found, key=lambda path: ("micro" not in str(path[-1]).lower(), len(path)))


LAUNCHERS = ("python", "torchrun", "accelerate", "deepspeed", "srun")
_STARTERS = {*LAUNCHERS, "python3", "composer"}  # programs that start a script


def add_launcher(launcher: str, num_processes: int, program: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words that start a program on one host.

    Source: the command lines of torch.distributed.run, accelerate launch, deepspeed and Slurm's srun.
    """
    count = str(num_processes)
    is_module = program[0] == "-m"
    if launcher == "torchrun":
        return ("torchrun", "--standalone", "--nproc-per-node", count, *program)
    if launcher == "accelerate":
        return ("accelerate", "launch", "--num_processes", count, *program)
    if launcher == "deepspeed":
        return ("deepspeed", "--num_gpus", count, *(("--module", *program[1:]) if is_module else program))
    if launcher == "srun":
        return ("srun", "--ntasks", count, "python", *program)
    return ("python", *program)
