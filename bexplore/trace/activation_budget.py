"""The activations that the compiler keeps under a memory budget, in a truncated model as in the whole one.

Below a budget of 1 the compiler solves a knapsack over all activations of a graph: a tensor of one block may be kept,
and the same of the next block not. A truncated model has other proportions, and so another solution. Here the knapsack
is that of the whole model, and each block that is left out is like the one of those that are there that it is nearest
to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.fx import Graph, Node

from bexplore.trace.inductor import find_modules
from bexplore.trace.repeated_blocks import Repeat
from bexplore.trace.torch_private import cut, list_knapsack_items, size_of_node, solve_knapsack, usual_choice

# How many blocks that are left out are like one of those that are there, by its run and its number there.
Missing = dict[Repeat, dict[int, float]]
Kind = frozenset[int]  # positions, among the items of a block, of those that it keeps


class _Slot(NamedTuple):
    """One block of a truncated run."""

    repeat: Repeat
    block: int


@dataclass(slots=True)
class BudgetChoice:
    """Chooses what a graph keeps, in place of torch's `choose_saved_values_set`."""

    repeats: Sequence[Repeat]  # runs of blocks that are truncated
    kept_blocks: int  # blocks of each run that are there
    # How many blocks that are left out are like each; empty where the compiler treats all blocks alike
    missing: Missing = field(default_factory=dict)
    is_steady: bool = True  # whether the blocks that are there can stand for the others

    def __call__(self, joint_graph: Graph, node_info: Any, memory_budget: float = 1.0) -> list[Node]:
        """Return the nodes that the forward pass keeps.

        The order of decisions is torch's. Source: `choose_saved_values_set` in torch/_functorch/partitioners.py.
        """
        slots = self._find_slots(joint_graph)
        if not slots:
            return usual_choice(joint_graph, node_info, memory_budget)
        if self.missing:  # the blocks lie in several graphs
            self.is_steady = False
        size = _Sizes(slots, self.kept_blocks)
        saved, banned = cut(joint_graph, node_info)
        least, most = size.total(node_info.inputs), size.total(saved)
        self.is_steady &= size.is_steady(saved)
        if most <= least:
            return saved
        for freedom in (1, 2):
            saved, banned = cut(joint_graph, node_info, freedom=freedom)
            if (size.total(saved) - least) / (most - least) < memory_budget:
                return saved
        items, must_save = list_knapsack_items(node_info, banned)
        if not items:
            return [*node_info.inputs, *must_save]
        whole = _WholeModel(items, slots, self.kept_blocks)
        self.is_steady &= whole.is_steady
        if not self.is_steady:
            return saved
        kept = set(solve_knapsack(joint_graph, node_info, whole.items, most - least, memory_budget))
        recomputed, self.missing = whole.shorten(kept)
        return cut(joint_graph, node_info, freedom=2, recomputed=recomputed)[0]

    def _find_slots(self, joint_graph: Graph) -> dict[Node, _Slot]:
        slots: dict[Node, _Slot] = {}
        found: dict[str, _Slot | None] = {}
        for node in joint_graph.nodes:
            module = find_modules(node) if node.op == "call_function" else ""
            if module not in found:
                found[module] = next(self._find_owners(module), None)
            if (slot := found[module]) is not None:
                slots[node] = slot
        for node in joint_graph.nodes:
            readers = {slots.get(user) for user in node.users} if node.op == "placeholder" else set()
            if len(readers) == 1 and (slot := readers.pop()) is not None:
                slots[node] = slot
        return slots

    def _find_owners(self, module: str) -> Iterator[_Slot]:
        for repeat in self.repeats:
            if module and repeat.copies > self.kept_blocks:
                blocks = (block for block in range(self.kept_blocks) if repeat.owns(module, block))
                yield from (_Slot(repeat, block) for block in blocks)


class _Sizes:
    """Bytes of nodes, those of two inner blocks as often as blocks are like them."""

    def __init__(self, slots: Mapping[Node, _Slot], kept_blocks: int) -> None:
        self._slots = slots
        self._inner = (kept_blocks - 3, kept_blocks - 2)
        self._kept_blocks = kept_blocks

    def total(self, nodes: Sequence[Node]) -> float:
        """Return the bytes of nodes in the whole model."""
        return sum(size_of_node(node) * self._times(node) for node in nodes)

    def is_steady(self, saved: Sequence[Node]) -> bool:
        """Return whether inner blocks keep the same."""
        repeats = {id(slot.repeat): slot.repeat for slot in self._slots.values()}
        return all(self._sum_kept(repeat, saved, 0) == self._sum_kept(repeat, saved, 1) for repeat in repeats.values())

    def _times(self, node: Node) -> float:
        slot = self._slots.get(node)
        if slot is None or slot.block not in self._inner:
            return 1.0
        return 1.0 + (slot.repeat.copies - self._kept_blocks) / len(self._inner)

    def _sum_kept(self, repeat: Repeat, saved: Sequence[Node], place: int) -> int:
        own = _Slot(repeat, self._inner[place])
        return sum(size_of_node(node) for node in saved if self._slots.get(node) == own)


class _WholeModel:
    """The items of a knapsack of the whole model, and what its solution means for the truncated one.

    Attributes:
        items: Nodes, those of an inner block once for each block that is like it, in the order in which the whole graph
            has them.
    """

    def __init__(self, items: Sequence[Node], slots: Mapping[Node, _Slot], kept_blocks: int) -> None:
        self._last = kept_blocks - 1
        self._of_block: dict[Repeat, dict[int, list[Node]]] = {}
        for node in items:
            if (slot := slots.get(node)) is not None:
                self._of_block.setdefault(slot.repeat, {}).setdefault(slot.block, []).append(node)
        self._first = {repeat: self._find_first_inner(blocks) for repeat, blocks in self._of_block.items()}
        self._places: list[tuple[Repeat, int, int] | None] = []  # of each item: run, block of the whole, place in it
        self.items: list[Node] = []
        for slot in dict.fromkeys(slots.get(node) for node in items):
            if slot is None:
                alone = [node for node in items if node not in slots]
                self.items += alone
                self._places += [None] * len(alone)
            else:
                self._append(slot)

    @property
    def is_steady(self) -> bool:
        """Whether inner blocks have the same items."""
        return all(first < self._last - 1 for first in self._first.values())

    def shorten(self, kept: set[int]) -> tuple[list[Node], Missing]:
        """Return the nodes of the truncated graph that are recomputed, and how many blocks are like each of its own."""
        pairs = zip(self.items, self._places, strict=True)
        recomputed = [node for index, (node, place) in enumerate(pairs) if index not in kept and self._is_alone(place)]
        missing = {}
        for repeat, first in self._first.items():
            nodes = self._of_block[repeat]
            weights = [size_of_node(node) for node in nodes[first]]
            runs = shorten(self._list_kinds(repeat, kept), weights, self._last - first)
            for block, (kind, _) in enumerate(runs, start=first):
                recomputed += [node for place, node in enumerate(nodes[block]) if place not in kind]
            missing[repeat] = {block: times - 1.0 for block, (_, times) in enumerate(runs, start=first)}
        return recomputed, missing

    def _find_first_inner(self, blocks: Mapping[int, Sequence[Node]]) -> int:
        first = self._last
        model = _signature(blocks.get(self._last - 1, ()))
        while first > 1 and _signature(blocks.get(first - 1, ())) == model:
            first -= 1
        return first

    def _append(self, slot: _Slot) -> None:
        """Append the items of a block, and of all that are like it if it is the one that stands for them."""
        last = slot.repeat.copies - 1
        nodes = self._of_block[slot.repeat][slot.block]
        blocks = range(slot.block, last) if slot.block == self._last - 1 else [slot.block]
        for block in [last] if slot.block == self._last else blocks:
            self.items += nodes
            self._places += [(slot.repeat, block, place) for place in range(len(nodes))]

    def _is_alone(self, place: tuple[Repeat, int, int] | None) -> bool:
        if place is None:
            return True
        repeat, block, _ = place
        return block < self._first[repeat] or block == repeat.copies - 1

    def _list_kinds(self, repeat: Repeat, kept: set[int]) -> list[Kind]:
        kinds: dict[int, set[int]] = {block: set() for block in range(self._first[repeat], repeat.copies - 1)}
        for index in kept:
            place = self._places[index]
            if place is not None and place[0] == repeat and place[1] in kinds:
                kinds[place[1]].add(place[2])
        return [frozenset(kind) for kind in kinds.values()]


def _signature(nodes: Sequence[Node]) -> list[tuple[str, int]]:
    return [(str(node.target), size_of_node(node)) for node in nodes]


def shorten(kinds: Sequence[Kind], weights: Sequence[int], length: int) -> list[tuple[Kind, float]]:
    """Return a sequence of kinds as so many runs, each with the number of blocks that are like it.

    A run that is left out for want of room is shared by its neighbours, so that the bytes that are kept stay.

    Args:
        kinds: Of each block, in order; at least `length`.
        weights: Bytes of each item of a block.
        length: Runs to return.
    """
    runs = _merge_runs([(kind, 1.0) for kind in kinds])
    while len(runs) > length:
        runs = _merge_runs(_drop_shortest(runs, weights))
    while len(runs) < length:
        longest = max(range(len(runs)), key=lambda index: runs[index][1])
        kind, times = runs[longest]
        runs[longest : longest + 1] = [(kind, times - 1.0), (kind, 1.0)]
    return runs


Run = tuple[Kind, float]  # a kind, and the number of blocks in a row that are of it


def _merge_runs(runs: Sequence[Run]) -> list[Run]:
    groups = itertools.groupby(runs, key=lambda run: run[0])
    return [(kind, sum(times for _, times in group)) for kind, group in groups]


def _drop_shortest(runs: Sequence[Run], weights: Sequence[int]) -> list[Run]:
    """Return runs without the shortest, whose blocks go to its neighbours in the shares that keep their bytes."""
    index = min(range(len(runs)), key=lambda index: runs[index][1])
    kind, times = runs[index]
    before, after = list(runs[:index]), list(runs[index + 1 :])
    share = _share(kind, before[-1][0] if before else None, after[0][0] if after else None, weights)
    if before:
        before[-1] = (before[-1][0], before[-1][1] + share * times)
    if after:
        after[0] = (after[0][0], after[0][1] + (1.0 - share) * times)
    return before + after


def _share(kind: Kind, before: Kind | None, after: Kind | None, weights: Sequence[int]) -> float:
    """Return the share of the kind before, 0 to 1, in a mean of two whose bytes are nearest to those of a kind."""
    if before is None or after is None:
        return 0.0 if before is None else 1.0
    own, first, second = (sum(weights[place] for place in one) for one in (kind, before, after))
    return 0.5 if first == second else min(1.0, max(0.0, (own - second) / (first - second)))
