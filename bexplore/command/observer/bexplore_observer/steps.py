"""The life of a step: passes are counted, an update ends them, and after the last step the rank parks or leaves.

`Observer` is called by the hooks: `before_backward` and `after_backward` around each pass, `before_update` and
`after_update` around each call of an optimizer. An update leaves the step pending, for further optimizers may follow;
the next backward pass ends it. What the loaders, the models and the device show of a step is kept in their own files,
and `reports` writes all of it down at the end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections.abc import Mapping
from functools import partial
from typing import Any

from . import hooks
from .exchange import SIGN_S, Exchange, begin_pulse, clock, parse_json, read_process_start_s, read_settings
from .kernels import KernelLog
from .loaders import LoaderWatch
from .memory import Device, HostMemoryLimit, MemoryStep, is_emulated, read_status_bytes
from .models import ModelWatch, UnseenUpdates, find_batch_coupled
from .reports import ErrorReport, find_place, read_rank, write_hello, write_record
from .saved_files import SavedFiles
from .warmups import find_accumulation_after_warmup

LEVELS_OF_MODEL = 3  # of modules that are watched, a step each, until one is called
# Backward passes beyond the accumulation without any update: no optimizer can be seen. Source: chosen; a batch of 2,048
# samples has as many at size 1.
PASSES_WITHOUT_STEP = 5000
# Updates in a row of the same parameters by another optimizer, after which it counts the steps. Source: chosen; of two
# that take turns each has one.
UPDATES_WITHOUT_CLOCK = 2
MOST_NOTES = 5


def install(folder: str, torch: Any) -> None:
    """Observe this process; called once, when torch has been executed."""
    observer = Observer(folder, torch)
    try:
        write_hello(observer)
        observer.host_limit.apply(observer.settings)
        hooks.attach(observer)
    except Exception as error:
        observer.errors.note(error, "observer")


class Observer:
    """The state of one observed process, in whose folder the settings of the first probe lie."""

    def __init__(self, folder: str, torch: Any) -> None:
        self.torch = torch
        # Dynamo traces nothing of a hook behind it: a compiled step would break where another function is called.
        self._is_compiling = torch.compiler.is_compiling
        self.loaders = LoaderWatch(self)
        settings = read_settings(folder)
        self.exchange = Exchange(settings, self._count_progress)
        self.errors = ErrorReport(self.exchange, partial(read_rank, torch), self._count_for_error)
        self.device = Device(torch)
        self.memory, self.host_limit = MemoryStep(torch, self.device, self.note), HostMemoryLimit(torch)
        self.kernels = KernelLog(torch, self.note) if is_emulated() else None
        self.models = ModelWatch(self)
        self.files = SavedFiles()
        self.use(settings)
        self.started_at_s = read_process_start_s()
        self.resident_at_attach_bytes = read_status_bytes("VmRSS")
        self.attached_at_s = time.time()
        self.reset()

    def use(self, settings: Mapping[str, Any]) -> None:
        """Take over the settings of a probe."""
        self.settings = settings
        self.size: int = settings["micro_batch_size"]
        self._most_passes = PASSES_WITHOUT_STEP + 4 * settings.get("accumulation", 1)
        self.exchange.use(settings)
        self.loaders.lists.begin(self.size, settings.get("capacity"))
        self.loaders.lists.put_longest(settings)

    def reset(self) -> None:
        """Forget what was seen; after a fork it was the parent's."""
        self._pid = os.getpid()
        self.thread: int | None = None  # of the autograd calls that are counted
        self.in_backward = self._updated_in_backward = False
        self._numel_of_optimizers: dict[int, int] = {}
        self._clock_optimizer, self._clock_numel = 0, -1
        self._first_parameters: dict[int, int] = {}  # identity of an optimizer and of its first parameter
        self._num_without_clock = 0  # updates of its parameters by another optimizer, since its own last one
        self.optimizer_names: set[str] = set()
        self._unseen = UnseenUpdates(self.torch)
        self._batch_coupled: list[str] | None = None  # not looked for yet
        self.first_backward_at_s: float | None = None
        self.is_resumed = False
        self.accumulation_after_warmup: int | None = None  # that to which a warmup rises
        self.num_saving = 0  # calls of `torch.save` that are under way
        self._has_pulse = False
        self.num_passes_before = 0  # of this start before the probe
        self.device.reset()
        self.models.reset()
        self.loaders.reset()
        self._reset_probe()

    def _reset_probe(self) -> None:
        """Forget what was seen of a probe."""
        self.steps: list[tuple[float, int, int, float, int]] = []  # values by `reports.STEP` of each optimizer step
        self.marks_of_steps: list[list[tuple[str, Any]]] = []  # the device's of each
        self._passes = self._updates = self.total_passes = 0
        self._passes_since_update = self._fewest_passes = 0
        self.without_gradients: array[float] = array("d")  # when each time without them, or of saving, began and ended
        self.in_update = False
        self._update_s = self._update_began_s = self._last_update_s = self._last_backward_s = 0.0
        self._update_marks: list[tuple[str, Any]] = []
        self.is_pending = False  # an update ended; the next backward pass begins the next step
        self.is_done = self._was_observed = False
        self.notes: list[str] = []
        self.errors.is_written = False
        self.loaders.reset_probe()
        self.exchange.reset()
        self.memory.reset()
        if self.kernels is not None:
            self.kernels.reset()

    # -- what others ask

    def is_training(self) -> bool:
        """Return whether a call of a model just now is a forward pass of the training."""
        return not self.in_backward and not self.is_done and bool(self.torch.is_grad_enabled())

    def polls_in_wait(self) -> bool:
        """Return whether the main thread may use a processor while it waits for other ranks, as in NCCL and MPI."""
        _, world_size, backend = find_place(self.torch)
        return world_size > 1 and backend != "gloo" and self.thread == threading.main_thread().ident

    def number_of_step(self) -> int:
        """Return the step that what comes now is of."""
        return len(self.steps) + self.is_pending

    def find_batch_coupled(self) -> list[str]:
        """Return the classes of modules that let the samples of a batch depend on each other; looked for once."""
        if self._batch_coupled is None:
            try:
                self._batch_coupled = find_batch_coupled(self.torch)
            except Exception as error:
                self._batch_coupled = []
                self.note("modules", error)
        return self._batch_coupled

    def note(self, where: str, error: Exception | str) -> None:
        """Keep what went wrong in the observer itself."""
        if len(self.notes) < MOST_NOTES:
            self.notes.append(f"{where}: {error if isinstance(error, str) else repr(error)}")
        self.exchange.log.write("note", where=where, type=type(error).__name__)

    def note_handled(self) -> None:
        """Write the exception that is being handled, if it is about memory."""
        if not self.is_done:
            self.errors.note_handled()

    def _count_progress(self) -> tuple[int, int, int, int, int]:
        num_read, num_signs = self.loaders.num_read, self.exchange.num_signs
        # A program that keeps what it reads has not come to its first pass yet.
        if not self.total_passes and self.loaders.keeps_batches():
            num_read, num_signs = 0, num_signs + num_read
        return len(self.steps), self.total_passes, num_read, num_signs, self.loaders.num_read

    def _count_for_error(self) -> tuple[int, int]:
        num_steps = len(self.steps)
        return num_steps, max(self.loaders.fetches.count(), self.total_passes, num_steps)

    # -- passes

    def before_backward(self) -> None:
        """Close the step before, if an update ended it; wait for the end after the last one."""
        try:
            if self.is_done:
                self._park()
            self.models.note_pass()
            if self.kernels is not None:
                self.kernels.turn_to(self.kernels.passes)
            if self.is_pending:
                self._end_step()
            elif self._passes and not self._numel_of_optimizers and self._unseen.have_come():
                # When that update ended cannot be seen: its step ends here.
                if self.kernels is not None:
                    self.kernels.at_step(len(self.steps) + 1, self.total_passes)
                self._updates, self._last_update_s = 1, clock()
                self._end_step()
            if self.first_backward_at_s is None:
                self.first_backward_at_s = time.time()
                self.thread = threading.get_ident()
                self.device.begin(self.settings.get("memory_limit_bytes"))
                self.errors.chain_excepthook()  # a framework may have replaced it
                self.exchange.log.write("first_pass", on_device=self.device.is_used)
        except Exception as error:
            self.note("backward", error)

    def after_backward(self) -> None:
        """Count a pass; an optimizer that steps inside of the backward pass ends the step here."""
        self._passes += 1
        self._passes_since_update += 1
        self.total_passes += 1
        self._last_backward_s = clock()
        try:
            if self.kernels is not None:
                self.kernels.turn_to(self.kernels.passes)
            if self._last_backward_s - self.exchange.signed_s > SIGN_S:  # a step may have many passes
                self.exchange.give_sign()
            if self._updated_in_backward:
                self._updated_in_backward = False
                self._note_updates(1)
            elif not self._numel_of_optimizers:
                self._unseen.note_pass()
            if not self.number_of_step() and self.total_passes > self._most_passes:
                self.finish("no_step")
        except Exception as error:
            self.note("backward", error)

    # -- updates

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note when an update begins; one that calls the backward pass itself is known before it does.

        Gradients may come from elsewhere than a backward pass that is seen: `torch.autograd.grad`, a pipeline's own.
        """
        if self._is_compiling() or self.in_backward or self.is_done:
            return
        try:
            if id(optimizer) not in self._numel_of_optimizers:
                self._learn_optimizer(optimizer)
            if self.is_pending and not self._passes and id(optimizer) == self._clock_optimizer:
                self.before_backward()
            self.in_update = True
            if self.kernels is not None:
                self.kernels.turn_to(self.kernels.updates)
                self.kernels.set_updating(True)
            self._update_began_s = clock()
            if self.device.is_used:
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
            if self.kernels is not None:
                self.kernels.set_updating(False)
            if self.device.is_used:
                self._mark_update("ends")
            self._note_passes_of_update()
            self._choose_clock(id(optimizer))
            if id(optimizer) == self._clock_optimizer or self.is_pending:
                self._note_updates(self._updates + 1)
            else:
                self._updates += 1
        except Exception as error:
            self.note("update", error)

    def _note_passes_of_update(self) -> None:
        """Keep the fewest passes of an update: several optimizers may each have passes of the same batch."""
        if self._passes_since_update:
            self._fewest_passes = min(self._fewest_passes or self._passes_since_update, self._passes_since_update)
        self._passes_since_update = 0

    def _mark_update(self, kind: str) -> None:
        mark = self.device.mark()
        if mark is not None:
            self._update_marks.append((kind, mark))

    def _learn_optimizer(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        numel = sum(p.numel() for p in parameters)
        self._numel_of_optimizers[id(optimizer)] = numel
        self._first_parameters[id(optimizer)] = id(parameters[0]) if parameters else 0
        self.accumulation_after_warmup = self.accumulation_after_warmup or find_accumulation_after_warmup(
            sys._getframe()
        )
        self.optimizer_names.add(type(optimizer).__name__)
        self.exchange.log.write("optimizer", type=type(optimizer).__name__, elements=numel)
        if numel > self._clock_numel:
            self._clock_optimizer, self._clock_numel = id(optimizer), numel

    def _choose_clock(self, updated: int) -> None:
        """Let another optimizer of the clock's parameters take its place, as after a search for a learning rate."""
        if updated == self._clock_optimizer:
            self._num_without_clock = 0
            return
        is_of_same = self._first_parameters.get(updated) == self._first_parameters.get(self._clock_optimizer)
        if is_of_same and self._numel_of_optimizers[updated] >= self._clock_numel:
            self._num_without_clock += 1
            if self._num_without_clock >= UPDATES_WITHOUT_CLOCK:
                self._clock_optimizer, self._num_without_clock = updated, 0

    def _note_updates(self, updates: int) -> None:
        if self.kernels is not None and not self.is_pending:
            self.kernels.at_step(len(self.steps) + 1, self.total_passes)
        self._updates, self.is_pending, self._last_update_s = updates, True, clock()
        # The last step ends with as many updates as those before it had. To wait for the next backward pass instead
        # would lock the stages of a pipeline: a stage that waits gives the others no gradient.
        usual = max((step[2] for step in self.steps[-3:]), default=1)
        if len(self.steps) + 1 >= self.exchange.last_step and updates >= usual:
            self._end_step()

    # -- the end of a step

    def _end_step(self) -> None:
        """Record the step that the last update ended."""
        self._record_step()
        count = len(self.steps)
        if self.exchange.is_due():
            self.exchange.exchange(count)
            if not self._has_pulse:
                self._has_pulse = True
                begin_pulse(self)
        if count <= LEVELS_OF_MODEL:
            self.models.watch_inputs()
        if count == 1 and self.settings.get("capacity"):
            self.models.learn_rows()
        if count == self.settings["memory_step"]:
            self.memory.begin(profiles=bool(self.settings.get("profile_memory")))
        elif count == self.settings["memory_step"] + 1:
            self.memory.end()
        if count >= self.exchange.last_step:
            self.finish("observed")
            self._park()

    def _record_step(self) -> None:
        self.is_pending = False
        of_update = self._fewest_passes or self._passes
        self.steps.append((self._last_update_s, self._passes, self._updates, self._update_s, of_update))
        self.exchange.log.write("step", number=len(self.steps), passes=self._passes, updates=self._updates)
        self.loaders.end_step()
        if self.device.is_used:
            self.marks_of_steps.append(self._update_marks)
            self._update_marks = []
        self._passes = self._updates = self._passes_since_update = self._fewest_passes = 0
        self._update_s = 0.0

    # -- the end of a probe

    def finish(self, outcome: str) -> None:
        """Observe nothing further of this probe; write the record of this rank."""
        self.is_done, self._was_observed = True, outcome == "observed"
        self.host_limit.lift(self.settings)
        self.exchange.log.write("finished", outcome=outcome, steps=len(self.steps), passes=self.total_passes)
        self.exchange.report_progress()
        self.memory.end()
        write_record(self, outcome)

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
            if len(self.steps) < self.exchange.last_step:  # another rank was ahead
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
        self.models.stop()
        self.loaders.end_probe()
        self.num_passes_before += self.total_passes
        self.use(settings)
        self.host_limit.apply(settings)
        write_hello(self)
        self._reset_probe()
        self.models.reset_probe()
        self.models.await_own_batches()

    def record_end(self) -> None:
        """Record a training that ended by itself before the last observed step."""
        if os.getpid() != self._pid or self.is_done:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.errors.note(error, "uncaught")
        if self.first_backward_at_s is None:
            if self.loaders.num_empty_epochs and not self.number_of_step():
                self.finish("no_batch")
            return
        self.is_done = True  # no step ends any more in this process
        if self.is_pending:
            self._record_step()
        self.finish("ended" if self.steps else "no_step")
