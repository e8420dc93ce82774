"""One fake training step of a job, its pass and its update, and everything that happens to memory meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import nn

from bexplore.errors import WITHOUT_TRACE, TraceError, UnusableSizeError
from bexplore.job import Job
from bexplore.trace.activation_budget import BudgetChoice
from bexplore.trace.cost_model import NOTHING, Event, Phase, Place, Polynomial
from bexplore.trace.inductor import Observe, plan_only
from bexplore.trace.lifetimes import CompiledGraph, LifetimeMode, LifetimeTracker, replay
from bexplore.trace.operations import Cost
from bexplore.trace.real_values import RealValues, tell_values
from bexplore.trace.repeated_blocks import Repeat, truncate
from bexplore.trace.torch_private import (
    SpecializationError,
    compare_orders,
    convert_to_same,
    inductor_backend,
    is_shared,
    keep_symbolic,
    never_skip_updates,
    report_resizes,
    split_at_buckets,
    storage_bytes,
    storage_key,
    use_foreach_kernels,
    wrap_shape_inference,
)
from bexplore.workloads import Workload
from bexplore.workloads.modules import local
from bexplore.workloads.torch_private import tree_leaves

# Attention masks of transformers, whose choice reads values that fake tensors lack.
_MASKS = "transformers.masking_utils"
_FIND_PACKED = "find_packed_sequence_indices"

# Micro-batch sizes of the fake step: large enough for the compiler to decide as for a real batch, and prime, so that
# no other dimension of the program is a multiple by chance.
PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157)

# Sizes of a second fake step, for small batches: with an activation memory budget between 0 and 1 the compiler keeps
# other activations of a small batch than of a large one. The peak of three models of twelve is 3 to 6 % off at size 16
# without. Source: benchmarks/results/settings_memory.md.
SMALL_PRIMES = (17, 19, 23, 29, 31)
# Sizes of a third one. They are often a divisor of a dimension, so that those of the first trace are avoided.
SMALLEST_PRIMES = (5, 7, 11, 13)

# Optimizers of torch.optim whose update of a number needs no other number.
_NUMBER_BY_NUMBER = frozenset(
    getattr(torch.optim, name)
    for name in ["ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
)

_DIMENSION = re.compile(r"'(\d+)'")  # of an operator's line

# Backends that plan no memory. For the backward pass the first keeps what autograd keeps, the second decides itself.
_PARTITIONED = "aot_eager"
_WITHOUT_PLAN = ("eager", _PARTITIONED)


@dataclass(slots=True)
class SmallSizes:
    """What a trace at a large size tells of smaller ones, for which the compiler may order its operators otherwise."""

    # By size, the bytes by which its own order of the operators would be lower
    order_bytes: dict[int, int] = field(default_factory=lambda: {SMALL_PRIMES[0]: 0, SMALLEST_PRIMES[0]: 0})
    fixed: set[int] = field(default_factory=set)  # dimensions without samples

    def observe(self, size: int, num_bytes: int) -> None:
        """Note a graph; the peak is that of one graph."""
        self.order_bytes[size] = max(self.order_bytes[size], num_bytes)

    def add_dimensions(self, operators: Iterable[str], probe_batch: int) -> None:
        """Note the dimensions of compiled operators."""
        found = {int(size) for line in operators for size in _DIMENSION.findall(line)}
        self.fixed |= {size for size in found if size % probe_batch}


# Bytes that a step of the user's own keeps beside weights, gradients and states, by the attribute that holds them.
Lasting = dict[str, Polynomial]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedUpdate:
    """The second of two updates."""

    state_bytes: int  # of the optimizers
    events: list[Event]  # memory events
    costs: list[Cost]
    lasting: tuple[Lasting, Lasting]  # as of `TracedPass`, after each of the updates


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPass:
    """The second of two accumulation passes."""

    events: dict[Phase, list[Event]]  # memory events of the forward and of the backward phase
    costs: list[Cost]  # costs of every graph node, kernel or operator
    operators: tuple[str, ...]  # operators and their shapes, one line each
    trained: frozenset[int]  # identities of the parameters that got a gradient
    batch_size: Polynomial  # bytes of the batch
    accumulated: Polynomial  # bytes of the gradients of the first pass, as they lie between the passes
    batch: Any  # the batch, so that what a step keeps of it is known
    lasting: tuple[Lasting, Lasting]  # what a step of the user's own keeps after each of the passes
    num_graphs: int  # compiled graphs that ran; a forward and a backward graph unless there are graph breaks
    # What an activation memory budget keeps in a truncated model; None where there is nothing to choose
    choice: BudgetChoice | None = None


def trace_pass(
    workload: Workload,
    fake_mode: Any,
    probe_batch: int,
    *,
    repeats: list[Repeat],
    kept_blocks: int,
    observe: Observe | None = None,
    values: RealValues | None = None,
    small: SmallSizes | None = None,
) -> TracedPass:
    """Run two passes on fake tensors and record the second, in which gradients exist already.

    Each size has its own static program unless the job compiles with `dynamic=True`, and for a symbolic size the
    compiler decides differently on recomputation and reuse. So the pass is traced at one size, a prime, and every
    multiple of the prime counts as a multiple of the micro-batch size. With `dynamic=True` the size is a symbol, unless
    the model fixes it.
    """
    choice = _make_choice(workload.job, repeats, kept_blocks)
    with truncate(repeats, kept_blocks), _choose_masks_as_run(workload.job):
        if is_compiled(workload.job) and workload.job.compile.dynamic:
            try:
                return _trace_pass(workload, fake_mode, probe_batch, observe, values, choice, small, is_symbolic=True)
            except SpecializationError:  # the program is static: it is traced like one
                choice = _make_choice(workload.job, repeats, kept_blocks)
        return _trace_pass(workload, fake_mode, probe_batch, observe, values, choice, small, is_symbolic=False)


def _make_choice(job: Job, repeats: list[Repeat], kept_blocks: int) -> BudgetChoice | None:
    """Return what chooses in place of the compiler; None if a truncated model is treated as the whole one is."""
    is_truncated = any(kept_blocks < repeat.copies for repeat in repeats)
    if not is_truncated or job.activation_memory_budget in (0.0, 1.0):
        return None
    return BudgetChoice(repeats=repeats, kept_blocks=kept_blocks)


def _trace_pass(
    workload: Workload,
    fake_mode: Any,
    probe_batch: int,
    observe: Observe | None,
    values: RealValues | None,
    choice: BudgetChoice | None,
    small: SmallSizes | None,
    *,
    is_symbolic: bool,
) -> TracedPass:
    tracker = LifetimeTracker(probe_batch)
    graphs: list[CompiledGraph] = []

    def run(graph: CompiledGraph, arguments: list[Any]) -> tuple[Any, ...]:
        graphs.append(graph)
        return replay(graph, arguments, tracker, fake_mode)

    with (
        plan_only(probe_batch, workload.job, run, observe, choice),
        _compare_orders(small, probe_batch),
        fake_mode,
        LifetimeMode(tracker, values=values),
        tell_values(values) if values is not None else contextlib.nullcontext(),
        report_resizes(tracker.resize),
        convert_to_same(),
        wrap_shape_inference(tracker.paused),
    ):
        batch = _make_batch(workload, probe_batch)
        batch_size = _adopt_batch(workload, batch, tracker, is_symbolic=is_symbolic)
        parameters = unique(parameter for module in list_modules(workload) for parameter in module.parameters())
        for tensor in (*parameters, *(buffer for module in list_modules(workload) for buffer in module.buffers())):
            tracker.adopt(tensor, Place("weights"))
        for module in workload.compiled_modules:
            _compile(module, workload.job, is_symbolic=is_symbolic)
        before = tracker.alive()
        if values is not None:
            values.start_pass()
        workload.forward_backward(batch, synchronize=not workload.job.parallelism.synchronizes_last)
        gc.collect()  # what the compiler leaves in cycles is no memory of the passes
        accumulated = tracker.alive() - before
        lasting = _find_lasting(workload, tracker, batch)
        graphs.clear()
        if values is not None:
            values.start_pass()
        with tracker.record():
            workload.forward_backward(batch)
        trained = frozenset(id(parameter) for parameter in parameters if parameter.grad is not None)
        lasting_later = _find_lasting(workload, tracker, batch)
        for parameter in parameters:
            parameter.grad = None
    if small is not None:
        small.add_dimensions((line for graph in graphs for line in graph.operators), probe_batch)
    return TracedPass(
        events=_spread_loops({phase: tracker.events[phase] for phase in (Phase.FORWARD, Phase.BACKWARD)}, probe_batch),
        costs=[*_join_costs(graphs), *tracker.costs],
        operators=(*(line for graph in graphs for line in graph.operators), *tracker.operators),
        trained=trained,
        batch_size=batch_size,
        accumulated=accumulated,
        batch=batch,
        lasting=(lasting, lasting_later),
        num_graphs=len(graphs),
        choice=choice,
    )


def _spread_loops(events: dict[Phase, list[Event]], probe_batch: int) -> dict[Phase, list[Event]]:
    """Let what a loop over samples allocates grow with their number: as many times one size at one place, or multiples.

    A small prime may be the number of other rounds.
    """
    if probe_batch < PRIMES[0]:
        return events
    fixed = Counter(
        (event.place, event.size.constant) for own in events.values() for event in own if event.size.constant > 0
    )

    def spread(event: Event) -> Event:
        number = fixed[event.place, abs(event.size.constant)]
        if not number or number % probe_batch:
            return event
        return Event(Polynomial(0, event.size.constant / probe_batch), event.place)

    return {phase: [spread(event) for event in own] for phase, own in events.items()}


def _compare_orders(small: SmallSizes | None, probe_batch: int) -> contextlib.AbstractContextManager[None]:
    if small is None:
        return contextlib.nullcontext()
    return compare_orders(
        small.order_bytes, lambda value, size: round(Polynomial.from_value(value, probe_batch)(size)), small.observe
    )


def _find_lasting(workload: Workload, tracker: LifetimeTracker, batch: Any) -> Lasting:
    parameters = [parameter for module in list_modules(workload) for parameter in module.parameters()]
    buffers = [buffer for module in list_modules(workload) for buffer in module.buffers()]
    known = [*parameters, *(one.grad for one in parameters), *buffers, *_list_states(workload), *tree_leaves(batch)]
    counted = {storage_key(local(one)) for one in known if isinstance(one, torch.Tensor)}
    found: Lasting = {}
    for name, tensor in workload.find_lasting():
        key = storage_key(local(tensor))
        if key not in counted:
            counted.add(key)
            found[name] = found.get(name, NOTHING) + tracker.size_of(local(tensor))
    return found


def _list_states(workload: Workload) -> list[torch.Tensor]:
    leaves = [leaf for optimizer in workload.optimizers for leaf in tree_leaves(dict(optimizer.state))]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def trace_update(
    workload: Workload,
    trained: list[torch.Tensor],
    fake_mode: Any,
    probe_batch: int,
    *,
    batch: Any = (),
    values: RealValues | None = None,
) -> TracedUpdate:
    """Run the update on fake gradients, after one that makes the states.

    Args:
        batch: That of the passes.
        values: What real updates read.
    """
    if values is not None and values.is_unavailable:
        for optimizer in workload.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise TraceError(
                    "torch.optim.LBFGS chooses its evaluations by values, and no real update can show them here.",
                    hint=WITHOUT_TRACE,
                )
    tracker = LifetimeTracker(probe_batch)
    with (
        fake_mode,
        LifetimeMode(tracker, scalar=1, values=values),
        use_foreach_kernels(),
        never_skip_updates(),
        wrap_shape_inference(tracker.paused),
        _use_own_parts(workload, trained) as trained,
    ):
        if values is not None:
            values.start_pass()
        _set_gradients(trained)
        _make_states(workload)
        lasting = _find_lasting(workload, tracker, batch)
        _set_gradients(trained)
        state_bytes = storage_bytes(_list_states(workload))
        with tracker.record(Phase.UPDATE):
            workload.update()
        lasting_later = _find_lasting(workload, tracker, batch)
    return TracedUpdate(
        state_bytes=state_bytes,
        events=tracker.events[Phase.UPDATE],
        costs=tracker.costs,
        lasting=(lasting, lasting_later),
    )


@contextlib.contextmanager
def _use_own_parts(workload: Workload, trained: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Give the optimizers a rank's own parts of parameters that ranks share, where that changes no memory.

    An update that is computed number by number is that of the parts, and torch finds out the whole shape of each result
    in a time that grows with the square of the parameters: 12 of 33 s for 32 blocks.
    """
    if not all(type(optimizer) in _NUMBER_BY_NUMBER for optimizer in workload.optimizers):
        yield trained
        return
    parts = {id(one): nn.Parameter(local(one), one.requires_grad) if is_shared(type(one)) else one for one in trained}
    groups = [group for optimizer in workload.optimizers for group in optimizer.param_groups]
    whole = [group["params"] for group in groups]
    for group in groups:
        group["params"] = [parts.get(id(parameter), parameter) for parameter in group["params"]]
    try:
        yield [parts[id(one)] for one in trained]
    finally:
        for group, parameters in zip(groups, whole, strict=True):
            group["params"] = parameters


def _make_states(workload: Workload) -> None:
    """Step each optimizer once; a step of the user's own may do more, and is run whole."""
    if workload.loss_module is None:
        workload.update()
    for optimizer in workload.optimizers if workload.loss_module is not None else ():
        optimizer.step()


def is_compiled(job: Job) -> bool:
    """Return whether a compiler plans the job's memory; the graphs of some backends run operator by operator."""
    return job.compile.enabled and job.compile.backend not in _WITHOUT_PLAN


def _compile(module: nn.Module, job: Job, *, is_symbolic: bool) -> None:
    if is_compiled(job):
        # blocks of one class and other widths are programs of their own, as the size is: none of it becomes a symbol
        dynamic = None if is_symbolic else False
        backend: Any = inductor_backend(_select_planning_options(job), dynamic=dynamic)
    elif job.compile.enabled and job.compile.backend == _PARTITIONED:
        backend, dynamic = _PARTITIONED, False
    else:
        return
    if job.parallelism.is_replicated_only:
        backend = split_at_buckets(backend, job.parallelism.bucket_cap_bytes)
    module.compile(backend=backend, dynamic=dynamic)


def _select_planning_options(job: Job) -> dict[str, Any] | None:
    """Return the user's own options without those that measure kernels or record them: nothing runs."""
    options = {
        name: value
        for name, value in (job.compile.options or {}).items()
        if not any(word in name for word in ("autotune", "cudagraph"))
    }
    return options or None


def choose_probe_batch(
    workload: Workload, fake_mode: Any, primes: Sequence[int] = PRIMES, avoided: Iterable[int] = ()
) -> int:
    """Return a micro-batch size of a list that divides no dimension of a weight or of a sample, nor one `avoided`."""
    tensors = [tensor for module in list_modules(workload) for tensor in list_tensors(module)]
    sizes = {size for tensor in tensors for shape in (tensor.shape, local(tensor).shape) for size in shape}
    if workload.job.parallelism.is_sharded:
        sizes |= _list_gathered_sizes(workload)
    with fake_mode:
        sizes |= {size for leaf in tree_leaves(_make_batch(workload, 1)) for size in getattr(leaf, "shape", ())}
    sizes |= set(avoided)
    sizes.discard(0)  # nothing has no bytes at any size
    for probe_batch in primes:
        if all(size % probe_batch for size in sizes):
            return probe_batch
    raise TraceError("No micro-batch size can be distinguished from the dimensions of the model.")


def _list_gathered_sizes(workload: Workload) -> set[int]:
    """Return the sizes of what ranks gather and reduce: each parameter padded, and the parameters of a group in one.

    A block is a group, and so is all that is in no block. Of a padded dimension the first rank has its equal share.
    Several types are gathered as bytes; gradients are those of the trained parameters. Source: `foreach_all_gather` and
    `foreach_reduce` in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    blocks = [list(block.parameters()) for block in workload.compiled_modules]
    in_blocks = {id(parameter) for block in blocks for parameter in block}
    assert workload.loss_module is not None  # only a model of a loss module is sharded here
    rest = [one for one in workload.loss_module.parameters() if id(one) not in in_blocks]
    own = {size for group in (*blocks, rest) for parameter in group for size in local(parameter).shape[:1]}
    for group in (*blocks, rest):
        for gathered in (group, [parameter for parameter in group if parameter.requires_grad]):
            shares = [local(parameter) for parameter in gathered]
            own |= {sum(share.numel() for share in shares), sum(share.numel() * share.itemsize for share in shares)}
    return own | {workload.job.parallelism.data_parallel_shard_degree * size for size in own}


def list_modules(workload: Workload) -> list[nn.Module]:
    """Return the modules that hold the weights."""
    return unique([*workload.compiled_modules, *([workload.loss_module] if workload.loss_module else [])])


def list_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers, those that are not saved included."""
    return [*module.parameters(), *module.buffers()]


def unique(items: Any) -> list[Any]:
    """Return the items without repetition, by identity."""
    return list({id(item): item for item in items}.values())


def _make_batch(workload: Workload, micro_batch_size: int) -> Any:
    try:
        return workload.make_batch(micro_batch_size)
    except UnusableSizeError as error:
        raise TraceError(
            f"The trace needs a batch of {micro_batch_size} samples: {error}.",
            hint=WITHOUT_TRACE,
        ) from error


def _adopt_batch(workload: Workload, batch: Any, tracker: LifetimeTracker, *, is_symbolic: bool) -> Polynomial:
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    dimensions = workload.batch_dimensions or [0] * len(leaves)
    if all(dimension is None for dimension in dimensions):
        raise TraceError(
            f"No tensor of a batch of {tracker.probe_batch} samples has a dimension that grows with the samples.",
            hint="Make dimension 0 of every tensor of a batch the sample.",
        )
    for leaf, dimension in zip(leaves, dimensions, strict=True):
        if dimension is None:
            continue
        if leaf.dim() <= dimension or leaf.shape[dimension] % tracker.probe_batch:
            raise TraceError(
                f"A batch of {tracker.probe_batch} samples has a tensor of shape {tuple(leaf.shape)}, whose dimension "
                f"{dimension} does not grow with the samples.",
                hint="Make dimension 0 of every tensor of a batch the sample.",
            )
        if is_symbolic:
            keep_symbolic(leaf, dimension)
    by_storage = {storage_key(leaf): tracker.size_of(leaf) for leaf in leaves}
    return sum(by_storage.values(), start=NOTHING)


def _set_gradients(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)


def _join_costs(graphs: list[CompiledGraph]) -> list[Cost]:
    """Return the costs of all graphs; a backward node with the name of a forward one is a recomputation."""
    forward_names = {cost.name for graph in graphs if not graph.is_backward for cost in graph.costs if cost.name}
    costs = []
    for graph in graphs:
        for cost in graph.costs:
            is_recomputed = graph.is_backward and cost.name in forward_names
            costs.append(dataclasses.replace(cost, model_flops=NOTHING) if is_recomputed else cost)
    return costs


@contextlib.contextmanager
def _choose_masks_as_run(job: Job) -> Iterator[None]:
    """Let a model of the library that is not compiled choose its mask, within this context, as it does when it runs.

    It looks in the positions for several sequences in one sample, and makes no mask where there is one. While it is
    compiled, and with fake tensors, it cannot look, and makes a mask in any case: then keys and values of grouped heads
    are repeated, too, which took 6 % of the memory of a small LLaMA. Source: `find_packed_sequence_indices` in
    transformers/masking_utils.py.
    """
    masks = sys.modules.get(_MASKS)
    if job.compile.enabled or not hasattr(masks, _FIND_PACKED):
        yield
        return
    with mock.patch.object(masks, _FIND_PACKED, _one_sequence_a_sample):
        yield


def _one_sequence_a_sample(position_ids: Any) -> None:
    """Tell that no sample is made of several sequences, which synthetic ones are not."""
