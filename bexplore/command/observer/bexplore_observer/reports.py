"""What a process reports of itself: a hello when it imports torch, its first error, the record of its rank."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .batches import UNKNOWN, count_evaluation_seconds
from .exchange import Exchange, read_host
from .memory import is_emulated
from .models import count_parallel_devices, read_compiler_counters

if TYPE_CHECKING:
    from .steps import Observer

LOGGED_CHARACTERS = 8000
KEPT_CHARACTERS = 2000  # of both ends of a message
LINKS_OF_ERROR = 16  # exceptions of one chain that a report keeps
_NO_ERRORS = (SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit)
# What is kept of a step.
STEP = ("ended_s", "num_passes", "num_updates", "update_s", "num_passes_of_update")
# The rank by launchers that set no RANK: Slurm, Open MPI, MPICH.
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def write_hello(observer: Observer) -> None:
    """Tell the explorer that this process is observed."""
    torch, exchange = observer.torch, observer.exchange
    exchange.log.write("attached", size=observer.size, torch=torch.__version__, rank=read_rank(torch))
    exchange.write(f"hello-{read_host()}-{os.getpid()}.json", _describe_process(observer))


def write_record(observer: Observer, outcome: str) -> None:
    """Write the record of this rank, where the observation has ended with an outcome."""
    torch, memory = observer.torch, observer.memory.measured
    memory["resident_peak_bytes"] = observer.memory.read_resident_peak()
    memory["resident_at_attach_bytes"] = observer.resident_at_attach_bytes
    steps = _describe_steps(observer)
    device, device_name = _read_device(observer, steps)
    rank, world_size, backend = find_place(torch)
    record = _describe_process(observer)
    record.update(_describe_batches(observer))
    record.update(
        outcome=outcome,
        rank=rank,
        world_size=world_size,
        backend=backend,
        device=device,
        device_name=device_name,
        kernels=_describe_kernels(observer, steps),
        steps=steps,
        num_passes=observer.total_passes,
        batch_coupled=observer.find_batch_coupled(),
        parallel_devices=count_parallel_devices(torch),
        is_resumed=observer.is_resumed,
        kept_files=observer.files.kept,
        left_files=observer.files.left,
        accumulation_after_warmup=observer.accumulation_after_warmup,
        optimizers=sorted(observer.optimizer_names),
        memory=memory,
        compiler=read_compiler_counters(),
        num_threads=torch.get_num_threads(),
        first_backward_at_s=observer.first_backward_at_s,
        finished_at_s=time.time(),
        notes=observer.notes,
    )
    observer.exchange.write(f"rank-{rank}-{os.getpid()}.json", record)


def _describe_process(observer: Observer) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": read_host(),
        "python": sys.version.split()[0],
        "torch": str(observer.torch.__version__),
        "rank": read_rank(observer.torch),
        "is_emulated": is_emulated(),
        "started_at_s": observer.started_at_s,
        "attached_at_s": observer.attached_at_s,
    }


def _describe_kernels(observer: Observer, steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    if observer.kernels is None:
        return None
    called = {rows for rows, _ in observer.models.inputs} | {rows for _, rows in observer.models.samples}
    rows = {*observer.loaders.fetches.count_rows()} or called
    with_evaluation = [index for index, step in enumerate(steps) if step["evaluation_s"]]
    return observer.kernels.describe(are_batches_equal=len(rows) <= 1, with_evaluation=with_evaluation)


def _describe_batches(observer: Observer) -> dict[str, Any]:
    loaders, models = observer.loaders, observer.models
    fetches, lists = loaders.fetches, loaders.lists
    return {
        "rows": {str(rows): count for rows, count in fetches.count_rows().items() if rows != UNKNOWN},
        "rows_together": {str(rows): count for rows, count in fetches.count_together().items()},
        "forward_rows": models.inputs,
        "elements_of_parts": models.elements_of_parts,
        "num_samples": loaders.find_num_samples(),
        "before": {"num_fetches": loaders.num_read_before, "num_passes": observer.num_passes_before},
        "own_from_step": models.own_from_step,
        "awaits_own_batches": models.awaits_own_batches,
        "digests": loaders.digests,
        "read_ahead": loaders.ahead.describe(),
        "drops_last": fetches.drops_last(),
        "list_lengths": fetches.count_list_lengths(),
        "tokens": fetches.list_tokens(),
        "num_cut_lists": lists.num_cut,
        "num_lists_of_longest": lists.num_of_longest,
        "longest_cut_list": lists.longest_cut,
    }


def _describe_steps(observer: Observer) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [dict(zip(STEP, step)) for step in observer.steps]
    fetches = observer.loaders.fetches
    fetches.turn_to(None, observer.total_passes)
    fetches.add_to(steps)
    for index, rows in observer.models.samples:
        if index < len(steps):
            steps[index]["num_samples"] += rows
    values = iter(observer.without_gradients)
    seconds = count_evaluation_seconds(
        [step["ended_s"] for step in steps],
        observer.loaders.fetched_s_of_steps,
        list(zip(values, values)),
        fetches.find_evaluations(),
    )
    for step, evaluation_s in zip(steps, seconds):
        step["evaluation_s"] = evaluation_s
    for step, read_s in zip(steps, observer.loaders.ahead.read_s_of_steps):
        step["read_s"] = read_s
    return steps


def _read_device(observer: Observer, steps: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the device and its name; take over its times and its memory."""
    cuda, own = observer.torch.cuda, observer.device
    if not cuda.is_initialized():
        return "cpu", ""
    device = f"cuda:{own.find_index()}"
    try:
        own.read_times(steps, observer.marks_of_steps)
    except Exception as error:
        observer.note("device", error)
    try:
        observer.memory.measured.update(own.read_memory())
    except Exception as error:
        observer.note("device", error)
    return device, cuda.get_device_name(device)


def read_rank(torch: Any) -> str | None:
    """Return the rank as text, as the launcher's environment or the process group has it; None for none."""
    found = next((os.environ[name] for name in RANK_NAMES if name in os.environ), None)
    try:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return str(distributed.get_rank())
    except Exception:  # a process group that is being ended
        pass
    return found


def find_place(torch: Any) -> tuple[int, int, str | None]:
    """Return rank, world size and backend: those of torch.distributed, else of the launcher's environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), None


class ErrorReport:
    """Reports the first error of a process, with its rank and its steps and batches so far."""

    def __init__(
        self,
        exchange: Exchange,
        read_rank: Callable[[], str | None],
        read_counts: Callable[[], tuple[int, int]],
    ) -> None:
        self._exchange, self._read_rank, self._read_counts = exchange, read_rank, read_counts
        self.is_written = False

    def note(self, error: BaseException, where: str) -> None:
        """Write an error, if it is the first one."""
        if self.is_written or isinstance(error, _NO_ERRORS):
            return
        self.is_written = True
        try:
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            causes = find_causes(error)
            others = (one for one in find_links(error) if not any(one is cause for cause in causes))
            num_steps, num_batches = self._read_counts()
            self._exchange.log.write("error", where=where, type=type(error).__name__)
            record = {
                "pid": os.getpid(),
                "host": read_host(),
                "rank": self._read_rank(),
                "where": where,
                "chain": [describe(one) for one in causes],
                "contexts": [describe(one) for one in others],
                "traceback": text[-LOGGED_CHARACTERS:],
                "at_s": time.time(),
                "num_steps": num_steps,
                "num_batches": num_batches,
            }
            self._exchange.write(f"error-{read_host()}-{os.getpid()}.json", record)
        except Exception:  # a full disk: the training's own end shows the error
            pass

    def note_handled(self) -> None:
        """Write the exception that is being handled, if it is about memory."""
        error = sys.exc_info()[1]
        if error is None or self.is_written:
            return
        if any(is_about_memory(one) for one in find_links(error)):
            self.note(error, "handled")

    def chain_excepthook(self) -> None:
        """Note what leaves the process; a framework may have replaced the hook meanwhile."""
        inner = sys.excepthook
        if getattr(inner, "is_of_bexplore", False):
            return

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.note(error, "uncaught")
            inner(kind, error, trace)

        hook.is_of_bexplore = True  # type: ignore[attr-defined]
        sys.excepthook = hook


def is_about_memory(error: BaseException) -> bool:
    """Return whether an exception may be a refusal of memory; the explorer reads its message more closely."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named or (isinstance(error, RuntimeError) and ("memory" in str(error) or "ALLOC_FAILED" in str(error)))


def find_causes(error: BaseException) -> list[BaseException]:
    """Return an exception and its explicit causes."""
    links: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and len(links) < LINKS_OF_ERROR:
        links.append(following)
        following = following.__cause__ or getattr(following, "inner_exception", None)
    return links


def find_links(error: BaseException) -> list[BaseException]:
    """Return all that led to an exception: causes, what was being handled, members of a group; itself first."""
    found: list[BaseException] = []
    waiting = deque([error])
    while waiting and len(found) < LINKS_OF_ERROR:
        link = waiting.popleft()
        if any(link is one for one in found):
            continue
        found.append(link)
        others = link.__cause__, getattr(link, "inner_exception", None), link.__context__
        members = getattr(link, "exceptions", ())
        members = members if isinstance(members, (list, tuple)) else ()
        waiting.extend(one for one in (*others, *members) if isinstance(one, BaseException))
    return found


def describe(error: BaseException) -> dict[str, Any]:
    """Return what the explorer reads of an exception."""
    kind = type(error)
    bases = [base.__name__ for base in kind.__mro__[1:-1]]
    return {"type": kind.__name__, "module": kind.__module__, "bases": bases, "message": cut_message(str(error))}


def cut_message(message: str) -> str:
    """Return the beginning and the end of a long message: one that holds the traceback of another ends with its cause.

    The traceback's heading, by which it is known as such, stays, too.
    """
    if len(message) <= 2 * KEPT_CHARACTERS:
        return message
    end = message[-KEPT_CHARACTERS:]
    return f"{message[:KEPT_CHARACTERS]}\n  ...\n{end.partition(chr(10))[2] or end}"
