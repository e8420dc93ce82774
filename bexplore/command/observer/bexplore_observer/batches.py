"""The micro-batches that loaders return: their samples, by data set, and the evaluations among them."""

from __future__ import annotations

import bisect
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Tuple

from .exchange import clock

UNKNOWN = -1  # leading dimension, or tokens, of a batch that shows none
FIELDS = 4  # of a micro-batch in `ReadSet`
# Ends of names of tensors that are 0 where a batch is padded. Source: tokenizers and image processors of transformers.
MASKS = ("attention_mask", "pixel_mask")
# Dimensions of a batch of pictures, and its channels, which are no lengths. Source: chosen; red, green, blue and alpha.
PICTURE_DIMS, MOST_CHANNELS = 4, 4
DIGEST_ELEMENTS = 1024  # elements of each tensor that are compared between ranks
OBJECTS_OF_BATCH = 500  # most objects of a batch of a kind of its own that are searched for tensors
DEPTH_OF_BATCH = 6  # of containers in containers that are searched
# Usual steps that gradients are off for in an evaluation: what a step itself does without them takes less than one.
EVALUATION_STEPS = 2
# Steps in which a data set is read, over those in which the most read one is, from which on it is one of the training's
# and not an evaluation's. Source: halfway between each step and every other one, as where an epoch has two.
READ_IN_TRAINING = 0.75
# Batches for each pass from which on several are read for one. Source: halfway between one and two.
SEVERAL_A_PASS = 1.5
# Of a data set: its identity, whether gradients were on, and which of the loaders that read it at the same time.
Key = Optional[Tuple[int, bool, int]]
Span = Tuple[float, float]  # seconds of begin and end


class ReadSet:
    """What was read of a data set."""

    def __init__(self) -> None:
        # Step, leading dimension, elements and tokens of each, one after the other: no object is kept for a fetch.
        self.micro_batches: array[int] = array("q")
        self.num_samples: int | None = None  # of an epoch of a loader that returned batches of the probe's size
        self.drops_last = False  # whether that loader leaves out a last batch with fewer samples
        self.lists: dict[int, int] = {}  # length -> lists of samples that batches were loaded for

    def count_rows(self) -> dict[int, int]:
        """Return leading dimension -> micro-batches that had it."""
        return Counter(self.micro_batches[1::FIELDS])

    def has_size(self, size: int) -> bool:
        """Return whether most of its micro-batches have so many samples."""
        rows = self.micro_batches[1::FIELDS]
        return 2 * rows.count(size) > len(rows)


class Turn:
    """The time from which on a data set is read, the passes before, and whether gradients were switched off since."""

    __slots__ = ("at_s", "is_off", "key", "num_passes")

    def __init__(self, key: Key, at_s: float, num_passes: int) -> None:
        self.key, self.at_s, self.num_passes, self.is_off = key, at_s, num_passes, False


class Fetches:
    """The micro-batches that loaders returned, by data set: an evaluation's are told apart from the training's."""

    def __init__(self, find_size: Callable[[], int] = lambda: UNKNOWN) -> None:
        self._find_size = find_size  # samples of a micro-batch that are asked for
        self.sets: dict[Key, ReadSet] = {}
        self.reading: Key = None
        self.turn = Turn(None, 0.0, 0)
        self._turns: list[Turn] = []
        self.is_off = False  # whether gradients were switched off since the last batch was returned
        self.evaluated: list[Span] = []  # from the reading of a batch of the training's set on, to what came after it

    def turn_to(self, key: Key, num_passes: int) -> None:
        """Note that another data set is read from now on."""
        self.reading, self.turn = key, Turn(key, clock(), num_passes)
        self._turns.append(self.turn)

    def find_evaluations(self) -> list[Span]:
        """Return when each began and ended: what is read between two passes and is not trained with."""
        training = self._find_training()
        found = list(self.evaluated)
        began: tuple[float, int] | None = None
        for turn in self._turns:
            if turn.key not in training:
                if began is None or began[1] != turn.num_passes:
                    began = turn.at_s, turn.num_passes
            elif began is not None:
                if began[1] == turn.num_passes:
                    found.append((began[0], turn.at_s))
                began = None
        return found

    def count(self) -> int:
        """Return how many micro-batches of the training were read, those of steps to come included."""
        return sum(len(read.micro_batches) // FIELDS for read in self._find_counted())

    def drop_last(self, key: Key, span: Span) -> None:
        """Forget the last batch of a data set, which an evaluation has read: of the training's own, too."""
        read = self.sets.get(key)
        if read is not None:
            del read.micro_batches[-FIELDS:]
            self.evaluated.append(span)

    def begin(self, key: Key) -> ReadSet:
        """Return an account of a further data set."""
        self.sets[key] = read = ReadSet()
        return read

    def count_rows(self) -> dict[int, int]:
        """Return leading dimension -> micro-batches of the training that had it."""
        return sum((Counter(read.count_rows()) for read in self._find_counted()), Counter())

    def drops_last(self) -> bool:
        """Return whether the loader of the probe's batches leaves out a last batch with fewer samples."""
        return any(one.drops_last for one in self._find_counted())

    def count_list_lengths(self) -> dict[int, int]:
        """Return length -> lists of samples that batches of the training were loaded for, as far as they were read."""
        found: dict[int, int] = {}
        for read in self._find_counted():
            for length, count in read.lists.items():
                found[length] = found.get(length, 0) + count
        return found

    def find_num_samples(self) -> int | None:
        """Return the samples of an epoch of the data set of the probe's batches; None if unknown."""
        return next((one.num_samples for one in self._find_counted() if one.num_samples is not None), None)

    def add_to(self, steps: Sequence[dict[str, Any]]) -> None:
        """Add the micro-batches of the training to the records of steps."""
        for step in steps:
            step.update(num_fetches=0, num_samples=0, num_elements=0, evaluation_s=0.0)
        for read in self._find_counted():
            values = iter(read.micro_batches)
            for index, rows, num_elements, _ in zip(values, values, values, values):
                if index < len(steps):
                    steps[index]["num_fetches"] += 1
                    steps[index]["num_samples"] += max(rows, 0)
                    steps[index]["num_elements"] += num_elements

    def list_tokens(self) -> list[tuple[int, int, int]]:
        """Return samples, tokens and elements of the micro-batches of the training, in the order of reading.

        None where one has not shown its tokens, or several data sets are read.
        """
        read = self._find_counted()
        if len(read) != 1:
            return []
        rows, num_elements, num_tokens = (read[0].micro_batches[field::FIELDS] for field in (1, 2, 3))
        return [] if UNKNOWN in rows or UNKNOWN in num_tokens else list(zip(rows, num_tokens, num_elements))

    def _find_training(self) -> dict[Key, ReadSet]:
        """Return the data sets of the training, by key.

        They are those that passes follow. Of several that are read for one pass, all but the last have none; they are
        read in nearly every step, and gradients stay on.
        """
        turns = self._follow_turns()
        sets = dict(self.sets)  # threads of the program may read meanwhile
        read = {key: one for key, one in sets.items() if key is not None and key[1]} or sets
        num_steps = {key: len(set(one.micro_batches[::FIELDS])) for key, one in read.items()}
        least = READ_IN_TRAINING * max(num_steps.values(), default=0)
        found: dict[Key, ReadSet] = {}
        for key, one in read.items():
            known = turns.get(key, [])
            is_evaluated = bool(known) and all(is_off for passed, is_off, _ in known if not passed)
            if _is_passed(known) or (num_steps[key] >= least and not is_evaluated):
                found[key] = one
        return found

    def _follow_turns(self) -> dict[Key, list[tuple[bool, bool, Key]]]:
        """Return of each time that a set was read: whether a pass followed, gradients were off, and what came next."""
        turns: dict[Key, list[tuple[bool, bool, Key]]] = {}
        for turn, following in zip(self._turns, self._turns[1:]):
            seen = following.num_passes > turn.num_passes, turn.is_off, following.key
            turns.setdefault(turn.key, []).append(seen)
        return turns

    def count_together(self) -> dict[int, int]:
        """Return leading dimension -> micro-batches of all data sets that are read for one pass; empty for one."""
        together = self._find_together(self._find_training())
        return _join(list(together.values())).count_rows() if together else {}

    def _find_counted(self) -> list[ReadSet]:
        """Return the data sets of the training; those that are read for one pass together count as one."""
        training = self._find_training()
        together = self._find_together(training)
        alone = [one for key, one in training.items() if key not in together]
        return [*alone, self._choose(list(together.values()))] if together else alone

    def _find_together(self, training: dict[Key, ReadSet]) -> dict[Key, ReadSet]:
        """Return those of the training's data sets that are read for one pass together, by key; empty for none."""
        turns = self._follow_turns()
        joined = set()
        for key in training:
            if not _is_passed(turns.get(key, [])):
                following = [after for passed, _, after in turns.get(key, []) if not passed and after in training]
                joined |= {key, *following}
        together = {key: one for key, one in training.items() if key in joined}
        num_passes = self._turns[-1].num_passes - self._turns[0].num_passes if self._turns else 0
        # Where there are as many passes, each has a batch of its own.
        num_read = sum(len(one.micro_batches) // FIELDS for one in together.values())
        return together if num_read >= SEVERAL_A_PASS * num_passes and len(together) > 1 else {}

    def _choose(self, together: Sequence[ReadSet]) -> ReadSet:
        """Return the data set that the size is of, where several are read for one pass; else all of them as one.

        What is mixed into its samples, as noise, or trained with beside them has batches of any size. Or parts of a
        batch come from several sets, and add up to the size.
        """
        size = self._find_size()
        return next((one for one in together if one.has_size(size)), None) or _join(together)


def _is_passed(turns: Sequence[tuple[bool, bool, Key]]) -> bool:
    return 2 * sum(passed for passed, _, _ in turns) >= max(len(turns), 1)


def _join(together: Sequence[ReadSet]) -> ReadSet:
    """Return data sets as one, whose micro-batches are what was read of each at the same place of a step."""
    parts: dict[tuple[int, int], list[int]] = {}
    for one in together:
        places: Counter[int] = Counter()
        values = iter(one.micro_batches)
        for step, rows, num_elements, _ in zip(values, values, values, values):
            found = parts.setdefault((step, places[step]), [0, 0])
            found[0], found[1] = found[0] + max(rows, 0), found[1] + num_elements
            places[step] += 1
    joint = ReadSet()
    for (step, _), (rows, num_elements) in sorted(parts.items()):
        joint.micro_batches.extend((step, rows or UNKNOWN, num_elements, UNKNOWN))
    joint.drops_last = any(one.drops_last for one in together)
    return joint


def count_evaluation_seconds(
    ended_s: Sequence[float], fetched_s: Sequence[float], off: Sequence[Span], evaluations: Sequence[Span]
) -> list[float]:
    """Return the seconds of evaluations in each step.

    One that reads no loader shows as gradients that are off, or as checkpoints that are written, for longer than steps
    take, updates left out: at once, or in many short times where a step usually has few. Before a step reads its batch,
    steps are meant without such times: each may have an evaluation.

    Args:
        ended_s: When each step ended.
        fetched_s: When the step after each read its first batch; 0 where it read none between two passes.
        off: When gradients were off, or a checkpoint was written: seconds of begin and end.
        evaluations: When an evaluation was read, likewise.
    """
    of_steps: list[list[tuple[float, float, bool]]] = [
        [] for _ in ended_s
    ]  # the times of each step, and whether it had not read yet
    for began_s, over_s in _merge(off):
        index = bisect.bisect_left(ended_s, began_s)
        if index < len(ended_s):
            of_steps[index].append((began_s, over_s, index > 0 and over_s <= fetched_s[index - 1]))
    off_s = [sum(over_s - began_s for began_s, over_s, _ in times) for times in of_steps]
    before_s = [sum(over_s - began_s for began_s, over_s, is_before in times if is_before) for times in of_steps]
    times_s = [b - a for a, b in zip(ended_s, ended_s[1:])]
    least_s = EVALUATION_STEPS * _median(times_s)
    least_before_s = EVALUATION_STEPS * _median([all_s - s for all_s, s in zip(times_s, before_s[1:])])
    usual_s, found = _median(off_s), list(evaluations)
    for times, all_s, all_before_s in zip(of_steps, off_s, before_s):
        for began_s, over_s, is_before in times:
            is_long = over_s - began_s > least_s or all_s - usual_s > least_s
            if is_long or (is_before and all_before_s > least_before_s):
                found.append((began_s, over_s))
    seconds = [0.0] * len(ended_s)
    for began_s, over_s in _merge(found):
        index = bisect.bisect_left(ended_s, began_s)
        if index < len(ended_s):
            seconds[index] += over_s - began_s
    return seconds


def _merge(times_s: Sequence[Span]) -> list[Span]:
    """Return spans of time in order, those that overlap as one."""
    found: list[Span] = []
    for began_s, over_s in sorted(times_s):
        if found and began_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], over_s)
        else:
            found.append((began_s, over_s))
    return found


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def read_leading_dimension(leaves: Sequence[Any], size: int) -> int | None:
    """Return the leading dimension that most tensors share; of a tie, the size that is probed, else of the largest.

    A batch may have questions, as many as its size, and several answers to each.
    """
    if len(leaves) == 1:
        return int(leaves[0].shape[0]) if leaves[0].dim() else None
    found: dict[int, tuple[int, bool, int]] = {}
    for leaf in leaves:
        if leaf.dim():
            rows = leaf.shape[0]
            count, _, numel = found.get(rows, (0, False, 0))
            found[rows] = (count + 1, rows == size, max(numel, leaf.numel()))
    return max(found, key=lambda rows: found[rows]) if found else None


def count_tokens(batch: Any, leaves: Sequence[Any]) -> int:
    """Return the elements of a batch that are no padding: by its masks, else by its lengths; UNKNOWN without either.

    Lengths are integers, one for each sample, of which the longest is a dimension of another tensor, in which nothing
    but padding follows the shortest: so they are no labels. Nothing is read from a device.
    """
    leaves = [leaf for leaf in leaves if leaf.device.type == "cpu"]
    named = batch if isinstance(batch, dict) else getattr(batch, "data", None)
    if isinstance(named, dict):
        found = [value for name, value in named.items() if str(name).endswith(MASKS)]
        masks = [leaf for leaf in leaves if any(leaf is one for one in found)]
        if masks:
            return sum([int(mask.count_nonzero()) for mask in masks])
    return next((int(leaf.sum()) for leaf in leaves if _are_lengths(leaf, leaves)), UNKNOWN)


def _are_lengths(lengths: Any, leaves: Sequence[Any]) -> bool:
    if lengths.dim() != 1 or not lengths.numel() or lengths.is_floating_point() or lengths.is_complex():
        return False
    if int(lengths.min()) < 1 or int(lengths.max()) <= 1:
        return False
    return any(leaf is not lengths and leaf.dim() > 1 and _is_padded(leaf, lengths) for leaf in leaves)


def _is_padded(leaf: Any, lengths: Any) -> bool:
    """Return whether a tensor holds samples of these lengths, one behind the other or side by side."""
    longest, shape = int(lengths.max()), tuple(leaf.shape[:2])
    if leaf.is_sparse or (leaf.dim() >= PICTURE_DIMS and longest <= MOST_CHANNELS):
        return False
    shortest = int(lengths.argmin())
    of_shortest = []
    if shape == (len(lengths), longest):
        of_shortest.append(leaf[shortest])
    if shape == (longest, len(lengths)):
        of_shortest.append(leaf[:, shortest])
    padding = [sample[int(lengths[shortest]) :] for sample in of_shortest]
    return any(not len(rest) or bool((rest == rest[:1]).all()) for rest in padding)


def find_tensors(tree: Any, kind: type) -> list[Any]:
    """Return the tensors of a batch in their order: of dictionaries, sequences, data classes, else of any objects."""
    if isinstance(tree, kind):
        return [tree]
    found: list[Any] = []
    _collect(tree, kind, found, 0)
    return found or _find_tensors_of_objects(tree, kind)


def _collect(tree: Any, kind: type, found: list[Any], depth: int) -> None:
    if isinstance(tree, kind):
        found.append(tree)
        return
    if depth > DEPTH_OF_BATCH:
        return
    values: Iterable[Any]
    if isinstance(tree, (list, tuple)):
        values = tree
    elif isinstance(tree, dict):
        values = tree.values()
    elif isinstance(getattr(tree, "data", None), dict):
        values = tree.data.values()
    else:
        values = [getattr(tree, name, None) for name in getattr(tree, "__dataclass_fields__", ())]
    for value in values:
        _collect(value, kind, found, depth + 1)


def _find_tensors_of_objects(tree: Any, kind: type) -> list[Any]:
    """Return the tensors that the attributes of objects lead to, as those of a batch of graphs; the nearest first."""
    found: list[Any] = []
    waiting: deque[Any] = deque([tree])
    seen: set[int] = set()
    while waiting and len(seen) < OBJECTS_OF_BATCH:
        one = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, kind):
            found.append(one)
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        else:
            waiting.extend(getattr(one, "__dict__", {}).values())
    return found


def digest(leaves: Sequence[Any], strided: Any) -> str:
    """Return a digest of tensors: ranks with equal batches share one replica's work, as in tensor parallelism."""
    import hashlib

    found = hashlib.blake2b(digest_size=8)
    for leaf in leaves:
        if leaf.layout is strided and leaf.numel():
            flat = leaf.detach().reshape(-1)
            some = flat[:: max(1, flat.numel() // DIGEST_ELEMENTS)][:DIGEST_ELEMENTS]
            found.update(repr(some.tolist()).encode())
    return found.hexdigest()
