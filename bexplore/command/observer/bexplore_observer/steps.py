"""The observer of one process: it counts passes, updates and steps, and records them at the end."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from . import hooks
from .batches import Fetches, ReadSet, count_evaluation_seconds, digest, find_tensors, read_leading_dimension
from .errors import ErrorReport
from .exchange import (
    SIGN_S,
    Exchange,
    begin_pulse,
    clock,
    parse_json,
    read_host,
    read_process_start_s,
    read_settings,
)
from .lists import IndexLists, read_num_samples
from .memory import Device, MemoryStep, limit_host_memory, read_status_bytes
from .models import ModelWatch, UnseenUpdates, find_batch_coupled, read_compiler_counters

UNKNOWN = -1  # leading dimension of a batch that shows none
SHOWN = 3  # batches in a row of which a dimension shows the size, after which no list of a loader is read
LEVELS_OF_MODEL = 3  # of modules that are watched, a step each, until one is called
DIGESTS = 3  # batches that are compared between ranks
PASSES_WITHOUT_STEP = 200  # backward passes beyond the accumulation without any update: no optimizer can be seen
# Epochs without a batch, and seconds since the first, after which no batch is expected any more. Source: chosen;
# an empty epoch takes a millisecond, and with workers a tenth of a second.
EMPTY_EPOCHS, EMPTY_S = 3, 2.0
MOST_NOTES = 5
# What is kept of a step.
STEP = ("ended_s", "num_passes", "num_updates", "update_s")
# The rank by launchers that set no RANK: Slurm, Open MPI, MPICH.
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def install(folder: str, torch: Any) -> None:
    """Observe this process; called once, when torch has been executed."""
    observer = Observer(folder, torch)
    try:
        observer.write_hello()
        limit_host_memory(torch, observer.settings)
        hooks.attach(observer)
    except Exception as error:
        observer.errors.note(error, "observer")


class Observer:
    """The state of one observed process.

    Args:
        folder: Holds the settings of the first probe.
        torch: The module.
    """

    def __init__(self, folder: str, torch: Any) -> None:
        self.torch = torch
        # Dynamo traces nothing of a hook behind it: a compiled step would break where another function is called.
        self._is_compiling = torch.compiler.is_compiling
        self.lists, self._reads_lists = IndexLists(), True
        settings = read_settings(folder)
        self.exchange = Exchange(settings, self._count_progress)
        self.errors = ErrorReport(self.exchange, self.read_rank, self._count_for_error)
        self._device = Device(torch)
        self._memory = MemoryStep(torch, self._device, self.note)
        self._models = ModelWatch(self)
        self._use(settings)
        self._started_at_s = read_process_start_s()
        self._resident_at_attach_bytes = read_status_bytes("VmRSS")
        self._attached_at_s = time.time()
        self.reset()

    def _use(self, settings: Mapping[str, Any]) -> None:
        """Take over the settings of a probe."""
        self.settings = settings
        self.size: int = settings["micro_batch_size"]
        self._most_passes = PASSES_WITHOUT_STEP + 4 * settings.get("accumulation", 1)
        self.exchange.use(settings)
        self.lists.begin(self.size, settings.get("capacity"))

    def reset(self) -> None:
        """Forget what was seen; after a fork it was the parent's."""
        self._pid = os.getpid()
        self.thread: int | None = None  # of the autograd calls that are counted
        self.in_backward = self._updated_in_backward = False
        self._numel_of_optimizers: dict[int, int] = {}
        self._clock_optimizer, self._clock_numel = 0, -1
        self._optimizer_names: set[str] = set()
        self._unseen = UnseenUpdates(self.torch)
        self._batch_coupled: list[str] | None = None  # not looked for yet
        self.first_backward_at_s: float | None = None
        self.is_resumed = False
        self.num_saving = 0  # calls of `torch.save` that are under way
        self._has_pulse = False
        self._read_before = self._passed_before = 0  # batches and passes of this start before the probe
        self._read_waiting = 0  # batches that another thread read while this one was parked
        self._device.reset()
        self._models.reset()
        self._reset_probe()

    def _reset_probe(self) -> None:
        """Forget what was seen of a probe."""
        self._steps: list[tuple[float, int, int, float]] = []  # values by STEP of each optimizer step
        self._marks_of_steps: list[list[tuple[str, Any]]] = []  # the device's of each
        self._passes = self._updates = self.total_passes = 0
        self.fetches = Fetches()
        self._num_read = 0  # batches that were read for passes
        self._first_read: Any = None  # a weak reference to a tensor of the first of these batches
        self._fetched_s = 0.0  # when the first batch after the last update was read; 0 for not yet
        self._fetched_s_of_steps: array[float] = array("d")  # of the step after each
        self._empty_epochs, self._empty_since_s = 0, 0.0
        self._num_samples: int | None = None
        self._num_shown = 0  # batches in a row of which a dimension shows the size
        self.without_gradients: array[float] = array("d")  # when each time without them, or of saving, began and ended
        self.in_update = False
        self._update_s = self._update_began_s = self._last_update_s = self._last_backward_s = 0.0
        self._update_marks: list[tuple[str, Any]] = []
        self._is_pending = False  # an update ended; the next backward pass begins the next step
        self._digests: list[str] = []
        self.is_done = self._was_observed = False
        self._notes: list[str] = []
        self.errors.is_written = False
        self.exchange.reset()
        self._memory.reset()

    def stop_reading_lists(self) -> None:
        """Read no list of a loader any more; the hooks replace this."""

    # -- what others ask

    def is_training(self) -> bool:
        """Return whether a call of a model just now is a forward pass of the training."""
        return not self.in_backward and not self.is_done and bool(self.torch.is_grad_enabled())

    def number_of_step(self) -> int:
        """Return the step that what comes now is of."""
        return len(self._steps) + self._is_pending

    def note(self, where: str, error: Exception | str) -> None:
        """Keep what went wrong in the observer itself."""
        if len(self._notes) < MOST_NOTES:
            self._notes.append(f"{where}: {error if isinstance(error, str) else repr(error)}")
        self.exchange.log.write("note", where=where, type=type(error).__name__)

    def note_digest(self, leaves: Sequence[Any]) -> None:
        """Keep a digest of one of the first batches."""
        if leaves and len(self._digests) < DIGESTS:
            self._digests.append(digest(leaves, self.torch.strided))

    def note_handled(self) -> None:
        """Write the exception that is being handled, if it is about memory."""
        if not self.is_done:
            self.errors.note_handled()

    def _count_progress(self) -> tuple[int, int, int, int]:
        num_read, num_signs = self._num_read, self.exchange.num_signs
        # A program that keeps what it reads has not come to its first pass yet.
        if not self.total_passes and self._first_read is not None and self._first_read() is not None:
            num_read, num_signs = 0, num_signs + num_read
        return len(self._steps), self.total_passes, num_read, num_signs

    def _count_for_error(self) -> tuple[int, int]:
        num_steps = len(self._steps)
        return num_steps, max(self.fetches.count(), self.total_passes, num_steps)

    # -- batches

    def is_stale(self, iterator: Any) -> bool:
        """Return whether the batch that an iterator has returned was loaded for another size."""
        try:
            return self.lists.is_stale(iterator)
        except Exception as error:
            self.note("batch", error)
            return False

    def note_batch(self, batch: Any, key: tuple[int, bool]) -> None:
        """Count a micro-batch that a loader returned, of a data set and with gradients on or off."""
        if self.is_done:
            self._read_waiting += key[1]
            return
        try:
            leaves = find_tensors(batch, self.torch.Tensor)
            rows = read_leading_dimension(leaves)
            read = self.fetches.sets.get(key) or self.fetches.begin(key)
            if self._reads_lists:
                rows = self._find_listed_rows(rows, read)
            num_elements = leaves[0].numel() if len(leaves) == 1 else sum([leaf.numel() for leaf in leaves])
            # What is fetched between an update and the next pass is of the next step.
            read.micro_batches.extend((self.number_of_step(), UNKNOWN if rows is None else rows, num_elements))
            if key[1]:
                self.note_digest(leaves)
            if self.fetches.turn.is_off or not key[1]:  # of an evaluation
                self.exchange.num_signs += 1
                self.exchange.give_sign()
            else:
                self._note_read(leaves)
        except Exception as error:
            self.note("batch", error)

    def _note_read(self, leaves: Sequence[Any]) -> None:
        """Count a batch for a pass; tell the explorer where no pass follows: the program may train elsewhere."""
        self._num_read += 1
        if self._is_pending and not self._fetched_s:
            self._fetched_s = clock()
        if self.total_passes:
            return
        if self._first_read is None and leaves:
            self._first_read = weakref.ref(leaves[0])
            self.exchange.log.write("first_batch", shape=tuple(leaves[0].shape))
        self.exchange.give_sign()

    def note_end_of_epoch(self, iterator: Any) -> None:
        """Note an epoch without a batch, ahead of any pass: a program may begin it again and again."""
        try:
            if self.is_done or self._steps or self._is_pending or getattr(iterator, "_num_yielded", True):
                return
            now_s = clock()
            self._empty_epochs += 1
            self._empty_since_s = self._empty_since_s or now_s
            self._num_samples = read_num_samples(iterator)
            if self._empty_epochs >= EMPTY_EPOCHS and now_s - self._empty_since_s > EMPTY_S:
                self._finish("no_batch")
        except Exception as error:
            self.note("batch", error)

    def _find_listed_rows(self, rows: int | None, read: ReadSet) -> int | None:
        """Return the samples of a batch by the list that it was loaded for, where its tensors do not show them.

        Graphs, images of several sizes and the like have no dimension of samples. Where tensors have one, the lists are
        read no longer: that costs more than all else at a fetch.
        """
        listed = self.lists.length
        if listed is not None:
            read.lists[listed] = read.lists.get(listed, 0) + 1
        self._num_shown = self._num_shown + 1 if rows == self.size else 0
        if listed is not None and (rows is None or listed == self.size):
            rows = listed
        if rows == self.size:
            read.num_samples, read.drops_last = self.lists.num_samples, self.lists.drops_last
        if self._num_shown >= SHOWN and self.lists.size is None:
            self._reads_lists = False
            self.stop_reading_lists()
        return rows

    # -- passes and updates

    def before_backward(self) -> None:
        """Close the step before, if an update ended it; wait for the end after the last one."""
        try:
            if self.is_done:
                self._park()
            if self._is_pending:
                self._end_step()
            elif self._passes and not self._numel_of_optimizers and self._unseen.have_come():
                # When that update ended cannot be seen: its step ends here.
                self._updates, self._last_update_s = 1, clock()
                self._end_step()
            if self.first_backward_at_s is None:
                self.first_backward_at_s = time.time()
                self.thread = threading.get_ident()
                self._device.begin(self.settings.get("memory_limit_bytes"))
                self.errors.chain_excepthook()  # a framework may have replaced it
                self.exchange.log.write("first_pass", on_device=self._device.is_used)
        except Exception as error:
            self.note("backward", error)

    def after_backward(self) -> None:
        """Count a pass; an optimizer that steps inside of the backward pass ends the step here."""
        self._passes += 1
        self.total_passes += 1
        self._last_backward_s = clock()
        try:
            if self._last_backward_s - self.exchange.signed_s > SIGN_S:  # a step may have many passes
                self.exchange.give_sign()
            if self._updated_in_backward:
                self._updated_in_backward = False
                self._note_updates(1)
            elif not self._numel_of_optimizers:
                self._unseen.note_pass()
            if not self._steps and not self._is_pending and self.total_passes > self._most_passes:
                self._finish("no_step")
        except Exception as error:
            self.note("backward", error)

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note when an update begins; one that calls the backward pass itself is known before it does.

        Gradients may come from elsewhere than a backward pass that is seen: `torch.autograd.grad`, a pipeline's own.
        """
        if self._is_compiling() or self.in_backward or self.is_done:
            return
        try:
            if id(optimizer) not in self._numel_of_optimizers:
                self._learn_optimizer(optimizer)
            if self._is_pending and not self._passes and id(optimizer) == self._clock_optimizer:
                self.before_backward()
            self.in_update = True
            self._update_began_s = clock()
            if self._device.is_used:
                self._mark_update("begins")
        except Exception as error:
            self.note("update", error)

    def after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Count an update; the optimizer with most parameters is the clock of the steps."""
        if self._is_compiling():
            return
        self.in_update = False
        if self.is_done:
            return
        try:
            if id(optimizer) not in self._numel_of_optimizers:
                self._learn_optimizer(optimizer)
            if self.in_backward:  # a hook of each parameter steps: one update a pass
                self._updated_in_backward = True
                return
            self._update_s += clock() - max(self._update_began_s, self._last_backward_s)
            if self._device.is_used:
                self._mark_update("ends")
            if id(optimizer) == self._clock_optimizer or self._is_pending:
                self._note_updates(self._updates + 1)
            else:
                self._updates += 1
        except Exception as error:
            self.note("update", error)

    def _mark_update(self, kind: str) -> None:
        mark = self._device.mark()
        if mark is not None:
            self._update_marks.append((kind, mark))

    def _learn_optimizer(self, optimizer: Any) -> None:
        numel = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self._numel_of_optimizers[id(optimizer)] = numel
        self._optimizer_names.add(type(optimizer).__name__)
        self.exchange.log.write("optimizer", type=type(optimizer).__name__, elements=numel)
        if numel > self._clock_numel:
            self._clock_optimizer, self._clock_numel = id(optimizer), numel

    def _note_updates(self, updates: int) -> None:
        self._updates, self._is_pending, self._last_update_s = updates, True, clock()
        # The last step ends with as many updates as those before it had. To wait for the next backward pass instead
        # would lock the stages of a pipeline: a stage that waits gives the others no gradient.
        if len(self._steps) + 1 >= self.exchange.last_step and updates >= self._find_usual_updates():
            self._end_step()

    def _find_usual_updates(self) -> int:
        return max((num_updates for _, _, num_updates, _ in self._steps[-3:]), default=1)

    # -- steps

    def _end_step(self) -> None:
        """Record the step that the last update ended."""
        self._is_pending = False
        self._record_step()
        count = len(self._steps)
        if self.exchange.is_due():
            self.exchange.exchange(count)
            if not self._has_pulse:
                self._has_pulse = True
                begin_pulse(self)
        if count <= LEVELS_OF_MODEL:
            self._models.watch_inputs()
        if count == 1 and self.settings.get("capacity"):
            self._models.learn_rows()
        if count == self.settings["memory_step"]:
            self._memory.begin(profiles=bool(self.settings.get("profile_memory")))
        elif count == self.settings["memory_step"] + 1:
            self._memory.end()
        if count >= self.exchange.last_step:
            self._finish("observed")
            self._park()

    def _record_step(self) -> None:
        self._steps.append((self._last_update_s, self._passes, self._updates, self._update_s))
        self.exchange.log.write("step", number=len(self._steps), passes=self._passes, updates=self._updates)
        self._fetched_s_of_steps.append(self._fetched_s)
        self._fetched_s = 0.0
        if self._device.is_used:
            self._marks_of_steps.append(self._update_marks)
            self._update_marks = []
        self._passes = self._updates = 0
        self._update_s = 0.0

    def is_idle_in_wait(self) -> bool:
        """Return whether a process that waits for others uses no processor: NCCL's and MPI's poll for them."""
        _, world_size, backend = self._find_place()
        return world_size == 1 or backend == "gloo"

    # -- the records

    def write_hello(self) -> None:
        """Tell the explorer that this process is observed."""
        self.exchange.log.write("attached", size=self.size, torch=self.torch.__version__, rank=self.read_rank())
        self.exchange.write(f"hello-{read_host()}-{self._pid}.json", self._describe_process())

    def _describe_process(self) -> dict[str, Any]:
        return {
            "pid": self._pid,
            "host": read_host(),
            "python": sys.version.split()[0],
            "torch": str(self.torch.__version__),
            "rank": self.read_rank(),
            "started_at_s": self._started_at_s,
            "attached_at_s": self._attached_at_s,
        }

    def read_rank(self) -> str | None:
        """Return the rank as text, as the launcher's environment or the process group has it; None for none."""
        found = next((os.environ[name] for name in RANK_NAMES if name in os.environ), None)
        try:
            distributed = self.torch.distributed
            if distributed.is_available() and distributed.is_initialized():
                return str(distributed.get_rank())
        except Exception:  # a process group that is being ended
            pass
        return found

    def _find_place(self) -> tuple[int, int, str | None]:
        """Return rank, world size and backend: those of torch.distributed, else of the launcher's environment."""
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), None

    def _finish(self, outcome: str) -> None:
        """Write the record of this rank."""
        self.is_done, self._was_observed = True, outcome == "observed"
        self.exchange.log.write("finished", outcome=outcome, steps=len(self._steps), passes=self.total_passes)
        self.exchange.report_progress()
        self._memory.end()
        memory = self._memory.measured
        memory["resident_peak_bytes"] = read_status_bytes("VmHWM")
        memory["resident_at_attach_bytes"] = self._resident_at_attach_bytes
        steps = self._describe_steps()
        device, device_name = self._read_device(steps)
        rank, world_size, backend = self._find_place()
        record = self._describe_process()
        record.update(self._describe_batches())
        record.update(
            outcome=outcome,
            rank=rank,
            world_size=world_size,
            backend=backend,
            device=device,
            device_name=device_name,
            is_emulated=bool(getattr(ctypes.CDLL(None), "bexplore_is_emulated", int)()),
            steps=steps,
            num_passes=self.total_passes,
            batch_coupled=self._find_batch_coupled(),
            is_resumed=self.is_resumed,
            optimizers=sorted(self._optimizer_names),
            memory=memory,
            compiler=read_compiler_counters(),
            num_threads=self.torch.get_num_threads(),
            first_backward_at_s=self.first_backward_at_s,
            finished_at_s=time.time(),
            notes=self._notes,
        )
        self.exchange.write(f"rank-{rank}-{self._pid}.json", record)

    def _describe_batches(self) -> dict[str, Any]:
        return {
            "rows": {str(rows): count for rows, count in self.fetches.count_rows().items() if rows != UNKNOWN},
            "forward_rows": self._models.inputs,
            "num_samples": self.fetches.find_num_samples() or self._num_samples,
            "before": {"num_fetches": self._read_before, "num_passes": self._passed_before},
            "own_from_step": self._models.own_from_step,
            "awaits_own_batches": self._models.awaits_own_batches,
            "digests": self._digests,
            "drops_last": self.fetches.drops_last(),
            "list_lengths": self.fetches.count_list_lengths(),
            "num_cut_lists": self.lists.num_cut,
            "longest_cut_list": self.lists.longest_cut,
        }

    def _describe_steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = [dict(zip(STEP, step)) for step in self._steps]
        self.fetches.turn_to(None, self.total_passes)
        self.fetches.add_to(steps)
        for index, rows in self._models.samples:
            if index < len(steps):
                steps[index]["num_samples"] += rows
        values = iter(self.without_gradients)
        seconds = count_evaluation_seconds(
            [step["ended_s"] for step in steps],
            self._fetched_s_of_steps,
            list(zip(values, values)),
            self.fetches.find_evaluations(),
        )
        for step, evaluation_s in zip(steps, seconds):
            step["evaluation_s"] = evaluation_s
        return steps

    def _read_device(self, steps: list[dict[str, Any]]) -> tuple[str, str]:
        """Return the device and its name; take over its times and its memory."""
        cuda = self.torch.cuda
        if not cuda.is_initialized():
            return "cpu", ""
        device = f"cuda:{self._device.find_index()}"
        try:
            self._device.read_times(steps, self._marks_of_steps)
        except Exception as error:
            self.note("device", error)
        try:
            self._memory.measured.update(self._device.read_memory())
        except Exception as error:
            self.note("device", error)
        return device, cuda.get_device_name(device)

    def _find_batch_coupled(self) -> list[str]:
        """Return the classes of modules that let the samples of a batch depend on each other; looked for once."""
        if self._batch_coupled is None:
            try:
                self._batch_coupled = find_batch_coupled(self.torch)
            except Exception as error:
                self._batch_coupled = []
                self.note("modules", error)
        return self._batch_coupled

    # -- the end

    def _park(self) -> None:
        """Wait until every rank has its record, then end: no `finally`, no checkpoint, no destructor of the user's."""
        if self.thread is not None and self.thread != threading.get_ident():
            return
        limit_s, is_released = clock() + self.settings.get("park_s", 60.0), False
        while not is_released and clock() < limit_s:
            time.sleep(0.01)
            is_released = bool(self.exchange.read_line("release"))
            if is_released or not self._was_observed:
                continue
            self.exchange.read_last_step()
            if len(self._steps) < self.exchange.last_step:  # another rank was ahead
                self.is_done = False
                return
            following = self.exchange.read_line("next")
            if following:
                self._begin_next(parse_json(following))
                return
        self.exchange.log.write("leaves", released=is_released)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if is_released else 1)  # a script goes on after an end that is good

    def _begin_next(self, settings: Mapping[str, Any]) -> None:
        """Go on with the training under the settings of a further probe."""
        self._models.stop()
        self._read_before += self.fetches.count() + self._read_waiting
        self._passed_before += self.total_passes
        self._read_waiting = 0
        self._use(settings)
        self.write_hello()
        self._reset_probe()
        self._models.reset_probe()
        self._models.await_own_batches()

    def record_end(self) -> None:
        """Record a training that ended by itself before the last observed step."""
        if os.getpid() != self._pid or self.is_done:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.errors.note(error, "uncaught")
        if self.first_backward_at_s is None:
            if self._empty_epochs and not self._steps and not self._is_pending:
                self._finish("no_batch")
            return
        self.is_done = True  # no step ends any more in this process
        if self._is_pending:
            self._record_step()
        self._finish("ended" if self._steps else "no_step")
