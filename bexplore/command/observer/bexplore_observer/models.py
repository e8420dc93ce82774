"""What the objects of the training show: its models and their calls, parameters that are written, the compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .batches import find_tensors, read_leading_dimension
from .objects import find_objects

if TYPE_CHECKING:
    from .steps import Observer

FORWARD_CALLS = 4  # calls of the model whose inputs are read where no loader shows the size
VARYING_CALLS = 64  # most of them where they differ. Source: chosen; the error of their median is a sixth of one's
WATCHED_PARAMETERS = 3  # of which the versions are compared where no optimizer's hook is called
NUMBERS = "bif"  # kinds of numpy's types that torch has: booleans, integers, floating-point numbers
# Parts of names of losses that compare the samples of a batch. Source: classes of pytorch-metric-learning,
# sentence-transformers, open_clip and lightly.
LOSSES_OF_BATCH = (
    "infonce",
    "ntxent",
    "supcon",
    "contrastive",
    "cliploss",
    "sigliploss",
    "multiplenegatives",
    "batchhard",
    "batchall",
    "barlowtwins",
    "vicreg",
)


class ModelWatch:
    """Looks at the inputs of models.

    They show the size where no loader returned micro-batches of it, and which batches the passes take in a start that
    serves several sizes.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer, self._torch = observer, observer.torch
        self.reset()

    def reset(self) -> None:
        """Forget all, as after a fork."""
        self._rows_of_models: dict[int, tuple[Any, list[float]]] = {}  # leading dimensions of calls over the size
        self.reset_probe()

    def reset_probe(self) -> None:
        """Forget what was seen of a probe."""
        self.inputs: list[tuple[int, int]] = []  # leading dimension and elements, of a few calls
        self.elements_of_parts: list[int] = []  # of these calls, with those before that may be parts of the same batch
        self.samples: list[tuple[int, int]] = []  # steps and their samples, where no loader shows them
        self.own_from_step: int | None = None  # the first with a batch of the probe's size
        self._rows_per_sample: dict[int, float] = {}  # of models whose calls are to show when own batches arrive
        self._handles: list[Any] = []
        self._watched: list[Any] = []
        self._called: Call | None = None  # the last one
        self._counted: Any = None  # the model whose calls show the samples of each step

    @property
    def awaits_own_batches(self) -> bool:
        """Whether calls are searched for batches of the probe's size."""
        return bool(self._rows_per_sample)

    def stop(self) -> None:
        """Look at no call any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # -- the size, where no loader showed it

    def watch_inputs(self) -> None:
        """Look at the next calls, where no loader returned micro-batches of the size, or not one for each step.

        The modules that no other holds are watched first. A program may call their parts alone; those are watched in
        the next step, unless something was compiled, whose guards a hook inside of it would fail.
        """
        fetches, num_steps = self._observer.loaders.fetches, len(self._observer.steps)
        is_shown = self._observer.size in fetches.count_rows() and fetches.count() >= num_steps
        if self.inputs or is_shown:
            return
        self.stop()
        if not self._watched:
            self._watched = find_outermost_modules(self._torch)
        elif not has_compiled():
            self._watched = [child for module in self._watched for child in module.children()]
        for module in self._watched:
            if not any(p.requires_grad for p in module.parameters()):
                continue
            if getattr(module, "_compiled_call_impl", None) is not None:
                self._handles.append(_CompiledHook(module, self._note_inputs))
            else:
                self._handles.append(module.register_forward_pre_hook(self._note_inputs, with_kwargs=True))

    def _note_inputs(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            if not self._observer.is_training():
                return
            leaves = self._find_inputs(args, kwargs)
            rows = read_leading_dimension(leaves, self._observer.size)
            # Of text, or of objects, there is none: the parts of the model, which are watched next, get tensors.
            if rows is not None:
                self._called = Call(module, rows, leaves, self._called)
        except Exception as error:
            self._observer.note("forward", error)

    def note_pass(self) -> None:
        """Take over the call that a pass follows; those before it may be of the steps of an environment."""
        if self._called is None:
            return
        call, self._called, observer = self._called, None, self._observer
        if self._counted is not None:
            if call.module is self._counted:
                self.samples.append((observer.number_of_step(), call.rows))
                if len(self.inputs) < VARYING_CALLS:
                    self._add_input(call)
            return
        self._add_input(call)
        has_fetched = bool(observer.loaders.fetches.count_rows())
        if not has_fetched:  # else the batches of the loaders are compared
            observer.loaders.note_digest(call.leaves)
        if len(self.inputs) < FORWARD_CALLS:
            return
        if not has_fetched and len({one for one, _ in self.inputs}) > 1:
            self._counted = call.module
        else:
            self.stop()

    def _add_input(self, call: Call) -> None:
        self.inputs.append((call.rows, call.num_elements))
        self.elements_of_parts.append(call.elements_of_parts)

    def _find_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the tensors that a model is called with; where there are none, its arrays of numpy as tensors."""
        found, numpy = find_tensors((args, kwargs), self._torch.Tensor), sys.modules.get("numpy")
        if found or numpy is None:
            return found
        arrays = find_tensors((args, kwargs), numpy.ndarray)
        return [self._torch.from_numpy(one.copy()) for one in arrays if one.dtype.kind in NUMBERS]

    # -- which batches the passes take

    def learn_rows(self) -> None:
        """Learn from a few calls how many rows each model is given for a sample, where all batches have the size.

        Nothing is watched where the training compiles: such a start serves one size, and a hook would break its graphs.
        """
        if has_compiled():
            return
        for module in find_outermost_modules(self._torch):
            if any(parameter.requires_grad for parameter in module.parameters()):
                self._watch_calls(module, self._learn_rows)

    def await_own_batches(self) -> None:
        """Find the first step whose passes take batches of this probe's size: programs read ahead, and transform."""
        for module, seen in self._rows_of_models.values():
            usual = max(seen, key=seen.count)
            if 2 * seen.count(usual) >= len(seen):  # the last batch of an epoch may be smaller
                self._rows_per_sample[id(module)] = usual
                self._watch_calls(module, self._is_of_size)

    def _watch_calls(self, module: Any, look: Callable[[Any, int], bool]) -> None:
        """Let a function look at the rows of a module's calls until it returns that it has seen enough."""

        def called(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            try:
                if not self._observer.is_training():
                    return
                rows = read_leading_dimension(self._find_inputs(args, kwargs), self._observer.size)
                if rows is None or look(module, rows):
                    handle.remove()
            except Exception as error:
                self._observer.note("forward", error)

        handle = module.register_forward_pre_hook(called, with_kwargs=True)
        self._handles.append(handle)

    def _learn_rows(self, module: Any, rows: int) -> bool:
        _, seen = self._rows_of_models.setdefault(id(module), (module, []))
        seen.append(rows / self._observer.size)
        return len(seen) >= FORWARD_CALLS

    def _is_of_size(self, module: Any, rows: int) -> bool:
        if rows != self._rows_per_sample[id(module)] * self._observer.size:
            return False
        if self.own_from_step is None:
            self.own_from_step = self._observer.number_of_step()
        return True


class Call:
    """A call of a model; it may take the last part of a batch, whose other parts the calls before it took.

    Parts have as many rows, the last one as many or fewer: renderers call their model so on the points of many rays.
    """

    def __init__(self, module: Any, rows: int, leaves: list[Any], before: Call | None) -> None:
        self.module, self.rows, self.leaves = module, rows, leaves
        self.num_elements = self.elements_of_parts = sum(leaf.numel() for leaf in leaves)
        self._rows_of_part = rows
        if before is not None and before.module is module and rows <= before.rows == before._rows_of_part:
            self.elements_of_parts += before.elements_of_parts
            self._rows_of_part = before.rows


class _CompiledHook:
    """A hook of a model that was compiled in place: one of torch's would be traced, and the model compiled again."""

    def __init__(self, module: Any, look: Callable[[Any, Sequence[Any], Mapping[str, Any]], None]) -> None:
        inner = module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            look(module, args, kwargs)
            return inner(*args, **kwargs)

        self._module, self._inner = module, inner
        module._compiled_call_impl = call

    def remove(self) -> None:
        """Take the hook out."""
        self._module._compiled_call_impl = self._inner


class UnseenUpdates:
    """Updates that call no hook: of a compiled `optimizer.step`, and of optimizers that do not derive from torch's.

    They write the largest parameters. Those that write `parameter.data`, whose version is its own, are seen by what
    follows them: the gradients of the pass before are cleared.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._parameters: list[Any] | None = None
        self._versions: list[int] = []
        self._is_written = False  # ever, where a version shows it
        self._cleared: Any = None  # a small parameter whose gradient is checked

    def note_pass(self) -> None:
        """Find a parameter that has a gradient after a pass."""
        if self._parameters is None or self._is_written:
            return
        if self._cleared is None or not _has_gradient(self._cleared):
            self._cleared = next((one for one in self._parameters if _has_gradient(one)), None)

    def have_come(self) -> bool:
        """Return whether there was an update since the last call, ahead of a pass."""
        is_first = self._parameters is None
        if self._parameters is None:
            self._parameters = find_trainable_parameters(self._torch)
        versions = [parameter._version for parameter in self._parameters[-WATCHED_PARAMETERS:]]
        is_new, self._versions = versions != self._versions and not is_first, versions
        self._is_written |= is_new
        return is_new or (not self._is_written and self._cleared is not None and not _has_gradient(self._cleared))


def _has_gradient(parameter: Any) -> bool:
    return parameter.grad is not None and bool(parameter.grad.any())


def find_batch_coupled(torch: Any) -> list[str]:
    """Return the classes of modules that compare the samples of a batch, or take statistics of them."""
    normalization = torch.nn.modules.batchnorm._BatchNorm
    found = set()
    for one in find_objects(torch.nn.Module):
        own = type(one)
        if issubclass(own, normalization):
            if one.training:
                found.add(own.__name__)
        elif any(part in own.__name__.lower() for part in LOSSES_OF_BATCH):
            found.add(own.__name__)
    return sorted(found)


def count_parallel_devices(torch: Any) -> int:
    """Return the devices among which `nn.DataParallel` divides each batch; 1 for none."""
    found = find_objects(torch.nn.DataParallel)
    return max((len(getattr(one, "device_ids", ())) for one in found), default=1) or 1


def find_outermost_modules(torch: Any) -> list[Any]:
    """Return the modules that no other module holds."""
    modules = find_objects(torch.nn.Module)
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]


def find_trainable_parameters(torch: Any) -> list[Any]:
    """Return the parameters that are trained, the largest last."""
    found = [one for one in find_objects(torch.nn.Parameter) if one.requires_grad]
    return sorted(found, key=lambda one: one.numel())


def read_compiler_counters() -> dict[str, Any] | None:
    """Return dynamo's counts of graphs and breaks; None where nothing was compiled."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return None
    try:
        counters = sys.modules["torch._dynamo.utils"].counters
        return {
            "num_graphs": int(counters["stats"].get("unique_graphs", 0)),
            "graph_break_reasons": [str(reason).splitlines()[0] for reason in counters["graph_break"]],
            "num_graph_breaks": int(sum(counters["graph_break"].values())),
            "num_recompiles": int(sum(counters.get("recompiles", {}).values())),
        }
    except Exception:  # private counters of another torch: unknown, and the training goes on
        return None


def has_compiled() -> bool:
    """Return whether anything was compiled so far."""
    return any((read_compiler_counters() or {}).values())
