"""Observe a training from inside its process: optimizer steps, micro-batches, memory, errors.

This file runs in the environment of the user's training: the standard library alone, Python 3.8 and newer. Nothing here
raises into the training, changes a number, or is traced by the compiler. After the last observed step every rank waits
for the others and ends without running any further code of the user.

The explorer reads these files of the probe's `reports` folder, each written whole (JSON):

    hello-HOST-PID.json   torch was imported in this process
    steps-HOST-PID        optimizer steps, passes, batches read for passes, and other signs of life so far, as text
    rank-RANK-PID.json    the record of a process that stepped an optimizer
    error-HOST-PID.json   the first exception that left the process or a backward pass, or was caught for lack of memory

The explorer makes three empty files there, and fills them with a line each: `last_step`, the number of the step after
which all ranks stop; `release` once every rank has its record; `next`, the settings of a further probe, whose `reports`
folder is another one. A rank that waits goes on where the last step is raised, because another rank had passed it
already, and with another size where there is a further probe. The explorer writes `explorer` every few seconds: where
that stays as it is, the ranks stop at a common step and leave. The first settings come from `probe.json` beside this
file.

A rank looks and reports at most every `EXCHANGE_S`, for that costs more than all else at a step, and at the ends of
steps alone; between them it gives signs of life. It opens a file anew each time and closes it, with which the file
systems of several hosts promise what is there now.
"""

import bisect
import ctypes
import os
import sys
import threading
import time
import weakref
from array import array
from collections import deque

_clock = time.perf_counter
FORWARD_CALLS = 4  # calls of the model whose inputs are looked at, where no loader shows the size
UNKNOWN = -1  # leading dimension of a batch that shows none
SHOWN = 3  # batches in a row of which a dimension shows the size, after which no list of a loader is read
LEVELS_OF_MODEL = 3  # of modules that are watched, a step each, until one is called
DIGESTS, DIGEST_ELEMENTS = 3, 1024  # batches, and elements of each tensor, that are compared between ranks
PASSES_WITHOUT_STEP = 200  # backward passes beyond the accumulation without any update: no optimizer can be seen
WRAPPED_SAMPLERS = 3  # one in the other, that are looked into
OBJECTS_OF_BATCH = 500  # that are looked through for tensors, where a batch is an object of its own kind
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
WATCHED_PARAMETERS = 3  # of which the versions are compared where no optimizer's hook is called
LOGGED_CHARACTERS = 8000
LINKS_OF_ERROR = 16  # exceptions that led to one, of which the explorer is told
EXCHANGE_S = 0.25  # the explorer names the last step further ahead: `bexplore.command.watch`
# Usual steps that gradients are off for in an evaluation: what a step itself does without them takes less than one.
EVALUATION_STEPS = 2
SIGN_S = 1.0  # between two signs of life while no step ends
# Share of one processor that a process uses where it works. Source: a judgement; one that waits in a collective of gloo
# or sleeps uses below a hundredth, and a training on a busy machine still gets a tenth.
WORKING_SHARE = 0.1
# Epochs without a batch, and seconds since the first, after which no batch is expected any more. Source: a judgement;
# an empty epoch takes a millisecond, and with workers a tenth of a second.
EMPTY_EPOCHS, EMPTY_S = 3, 2.0
LOOKS = 12  # for a sign of the explorer, within the time after which it counts as gone
# Steps ahead of a rank that no other has passed, and how often as many as any exchange had: some were of slow steps.
STEPS_TO_COMMON, EXCHANGES_TO_COMMON = 20, 4
# What is kept of a step.
STEP = ("ended_s", "num_passes", "num_updates", "update_s")
# Steps in which a data set is read, over those in which the most read one is, from which on it is one of the training's
# and not an evaluation's. Source: halfway between each step and every other one, as where an epoch has two.
READ_IN_TRAINING = 0.75
# The rank by launchers that set no RANK: Slurm, Open MPI, MPICH.
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def install(folder, torch):
    """Observe this process; called once, when torch has been executed."""
    observer = Observer(folder, torch)
    try:
        observer.attach()
    except Exception as error:
        observer.note_error(error, "observer")


class Observer:
    """The state of one observed process."""

    def __init__(self, folder, torch):
        self.torch = torch
        # Dynamo traces nothing of a hook behind it: a compiled step would break where another function is called.
        self.is_compiling = torch.compiler.is_compiling
        self.lists, self.reads_lists = IndexLists(), True
        self._use(_read(os.path.join(folder, "probe.json")))
        self.started_at_s = _process_start()
        self.resident_at_attach_bytes = _status_bytes("VmRSS")
        self.attached_at_s = time.time()
        self.reset()

    def _use(self, probe):
        """Take over the settings of a probe."""
        self.probe, self.reports = probe, probe["reports"]
        self.last_step = probe["max_steps"]
        self.life_limit_s = probe.get("life_limit_s", 60.0)
        self.most_passes = PASSES_WITHOUT_STEP + 4 * probe.get("accumulation", 1)
        self.lists.begin(probe["micro_batch_size"], probe.get("capacity"))

    def reset(self):
        """Forget what was seen; after a fork it was the parent's."""
        self.pid = os.getpid()
        self.thread = None  # of the autograd calls that are counted
        self.in_backward = False
        self.updated_in_backward = False
        self.numel_of_optimizers = {}
        self.clock_optimizer, self.clock_numel = None, -1
        self.optimizer_names = {}
        self.unseen = UnseenUpdates(self.torch)
        self.batch_coupled = None  # not looked for yet
        self.first_backward_at_s = None
        self.is_resumed = False
        self.has_device = False  # an accelerator that the first pass ran on
        self.device_index = None  # of that accelerator
        self.num_saving = 0  # calls of `torch.save` that are under way
        self.has_pulse = False  # a thread that gives signs of life
        self.read_before = self.passed_before = 0  # batches and passes of this start before the probe
        self.read_waiting = 0  # batches that another thread read while this one was parked
        self.rows_of_modules = {}  # id -> module, and leading dimensions of its calls over the size
        self._reset_counts()

    def _reset_counts(self):
        """Forget what was seen of a probe."""
        self.steps = []  # values by STEP of each optimizer step
        self.events_of_steps = []  # the device's marks of each
        self.passes = self.updates = self.total_passes = 0
        self.fetches = Fetches()
        self.num_read = self.num_signs = 0  # batches that were read for passes; other signs of life
        self.first_read = None  # a weak reference to a tensor of the first of these batches
        self.fetched_s = 0.0  # when the first batch after the last update was read; 0 for not yet
        self.fetched_s_of_steps = array("d")  # of the step after each
        self.empty_epochs, self.empty_since_s, self.num_samples = 0, 0.0, None
        self.rows_per_sample = {}  # id of a module whose calls are to show when batches of this size arrive -> rows
        self.own_from_step = None  # the first step in which one was given such a batch
        self.num_shown = 0  # batches in a row of which a dimension shows the size
        self.without_gradients = array("d")  # when each time without them, or of saving, began and ended
        self.samples = []  # steps and the samples that arrived in them, where no loader shows them
        self.update_s = 0.0
        self.in_update = False
        self.update_began_s = self.last_update_s = self.last_backward_s = 0.0
        self.update_events = []
        self.is_pending = False  # an update ended; the next backward pass begins the next step
        self.digests = []
        self.forward_rows = []
        self.forward_handles = []
        self.watched = []  # modules
        self.counted = None  # the module whose calls show the samples of each step
        self.memory = {}
        self.profiler = None
        self.is_done = self.was_observed = False
        self.has_error = False
        self.notes = []
        self.exchanged_s, self.exchanged_steps, self.most_of_exchange = 0.0, 0, 0
        self.signed_s = 0.0
        self.steps_path = os.path.join(self.reports, "steps-%s-%d" % (_host(), self.pid))
        self.life, self.looked_s, self.lived_s = None, _clock(), _clock()

    # -- hooks ------------------------------------------------------------------------------------------------------

    def attach(self):
        """Write the hello file and put the hooks in place."""
        self.write("hello-%s-%d.json" % (_host(), self.pid), self._hello())
        self._limit_memory()
        _hide_from_dynamo(self.torch)
        os.register_at_fork(after_in_child=self.reset)
        self._patch_backward()
        self._patch_loader()
        self._watch_gradients(self.torch.no_grad)
        self._watch_gradients(self.torch.inference_mode)
        self._watch_saving()
        self._watch_handlers()
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self.before_update)
        optimizer.register_optimizer_step_post_hook(self.after_update)
        self._watch_resuming(optimizer.Optimizer)
        self._chain_excepthooks()
        import atexit

        atexit.register(self._at_exit)

    def _hello(self):
        return {
            "pid": self.pid,
            "host": _host(),
            "python": sys.version.split()[0],
            "torch": str(self.torch.__version__),
            "rank": self._rank(),
            "started_at_s": self.started_at_s,
            "attached_at_s": self.attached_at_s,
        }

    def _rank(self):
        """Return the rank as text, as the launcher's environment or the process group has it; None for none."""
        found = next((os.environ[name] for name in RANK_NAMES if name in os.environ), None)
        try:
            distributed = self.torch.distributed
            if distributed.is_available() and distributed.is_initialized():
                return str(distributed.get_rank())
        except Exception:  # a process group that is being ended
            pass
        return found

    def _limit_memory(self):
        limit = self.probe.get("memory_limit_bytes")
        if limit and not _has_accelerator(self.torch):
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))

    def _limit_device_memory(self):
        """Limit the device of this rank, which is known at the first pass; until then it has all of the device."""
        limit, cuda = self.probe.get("memory_limit_bytes"), self.torch.cuda
        if limit and cuda.is_initialized():
            device = self._own_device()
            total = cuda.get_device_properties(device).total_memory
            cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)

    def _own_device(self):
        """Return the index of the device with the most tensors: a script need not make its device the current one."""
        cuda = self.torch.cuda
        if self.device_index is None:
            held = [cuda.memory_allocated(index) for index in range(cuda.device_count())]
            if not any(held):
                return cuda.current_device()
            self.device_index = held.index(max(held))
        return self.device_index

    def _watch_resuming(self, kind):
        """Note that an optimizer takes over states before the first step: the training resumes."""
        import functools

        observer, inner = self, kind.load_state_dict

        @functools.wraps(inner)
        def load_state_dict(optimizer, state_dict, *args, **kwargs):
            if observer.first_backward_at_s is None:
                observer.is_resumed |= bool(isinstance(state_dict, dict) and state_dict.get("state"))
            return inner(optimizer, state_dict, *args, **kwargs)

        kind.load_state_dict = load_state_dict

    def _patch_backward(self):
        import functools

        inner, observer = self.torch.autograd.backward, self

        @functools.wraps(inner)
        def backward(*args, **kwargs):
            # Nested calls are reentrant checkpointing; those of other threads belong to a pass that is counted.
            if observer.in_backward or observer.is_done and observer.thread != threading.get_ident():
                return inner(*args, **kwargs)
            observer.before_backward()
            observer.in_backward = True
            try:
                result = inner(*args, **kwargs)
            except BaseException as error:
                observer.in_backward = False
                observer.note_error(error, "backward")
                raise
            observer.in_backward = False
            observer.after_backward()
            return result

        self.torch.autograd.backward = _skip(self.torch, backward)

    def _patch_loader(self):
        """Count what the iterators of loaders return; batches of another size than the probe's are dropped."""
        import functools

        from torch.utils.data import dataloader

        base, observer, has_gradients = dataloader._BaseDataLoaderIter, self, self.torch.is_grad_enabled
        inner, next_index = base.__next__, base._next_index

        @functools.wraps(inner)
        def __next__(iterator):
            key = id(getattr(iterator, "_dataset", None)), has_gradients()
            if key != observer.fetches.reading:
                observer.fetches.turn_to(key, observer.total_passes)
            try:
                batch = inner(iterator)
            except StopIteration:
                if not observer.total_passes:
                    observer.epoch_ended(iterator)
                raise
            observer.fetched(iterator, batch, key)
            return batch

        @functools.wraps(inner)
        def next_of_lists(iterator):
            batch = of_torch(iterator)
            while observer.is_stale(iterator):
                batch = of_torch(iterator)
            return batch

        @functools.wraps(next_index)
        def _next_index(iterator):
            return observer.lists.next_of(iterator, next_index)

        def stop_reading_lists():
            nonlocal inner
            base._next_index, inner = next_index, of_torch

        of_torch, self.stop_reading_lists = inner, stop_reading_lists
        base.__next__, base._next_index = (_skip(self.torch, one) for one in (__next__, _next_index))
        inner = _skip(self.torch, next_of_lists)

    def _watch_gradients(self, kind):
        """Note where gradients are switched off, as for the forward passes of an evaluation."""
        import functools

        observer, enter, leave, began_s = self, kind.__enter__, kind.__exit__, []

        @functools.wraps(enter)
        def __enter__(context):
            observer.fetches.turn[-1] = True
            began_s.append(_clock())
            return enter(context)

        @functools.wraps(leave)
        def __exit__(context, *error):
            if began_s:
                times_s = began_s.pop(), _clock()
                if not observer.in_update:
                    observer.without_gradients.extend(times_s)
            return leave(context, *error)

        kind.__enter__, kind.__exit__ = (_skip(self.torch, one) for one in (__enter__, __exit__))

    def _watch_saving(self):
        """Note when the training writes a checkpoint: no step ends meanwhile, and processors may be idle."""
        import functools

        observer, inner = self, self.torch.save

        @functools.wraps(inner)
        def save(*args, **kwargs):
            began_s = _clock()
            observer.num_saving += 1
            try:
                return inner(*args, **kwargs)
            finally:
                observer.num_saving -= 1
                observer.without_gradients.extend((began_s, _clock()))
                observer.num_signs += 1

        self.torch.save = self.torch.serialization.save = _skip(self.torch, save)

    def _chain_excepthooks(self):
        inner = sys.excepthook
        if getattr(inner, "is_of_bexplore", False):
            return

        def hook(kind, error, trace):
            self.note_error(error, "uncaught")
            inner(kind, error, trace)

        hook.is_of_bexplore = True
        sys.excepthook = hook

    def _watch_handlers(self):
        """Note a refusal of memory that the program catches: it collects garbage, empties the cache or exits."""
        import functools
        import gc

        observer, inner = self, self.torch.cuda.empty_cache

        @functools.wraps(inner)
        def empty_cache():
            observer.note_handled()
            return inner()

        leave = sys.exit

        @functools.wraps(leave)
        def exit_noted(*args):
            observer.note_handled()
            leave(*args)

        sys.exit = exit_noted
        self.torch.cuda.empty_cache = self.torch.cuda.memory.empty_cache = empty_cache
        gc.callbacks.append(lambda phase, info: self.note_handled() if phase == "start" else None)

    # -- what the hooks see -----------------------------------------------------------------------------------------

    def is_stale(self, iterator):
        """Return whether the batch that an iterator has returned was loaded for another size."""
        try:
            return self.lists.is_stale(iterator)
        except Exception as error:
            self._note("batch", error)
            return False

    def fetched(self, iterator, batch, key):
        """Count a micro-batch that a DataLoader returned, of a data set and with gradients on or off."""
        if self.is_done:
            self.read_waiting += key[1]
            return
        try:
            leaves = tensors(batch, self.torch.Tensor)
            rows = leading_dimension(leaves)
            read = self.fetches.sets.get(key) or self.fetches.begin(key)
            if self.reads_lists:
                rows = self._listed(rows, read)
            num_elements = leaves[0].numel() if len(leaves) == 1 else sum([leaf.numel() for leaf in leaves])
            # What is fetched between an update and the next pass is of the next step.
            read.micro_batches.extend(
                (len(self.steps) + self.is_pending, UNKNOWN if rows is None else rows, num_elements)
            )
            if key[1] and len(self.digests) < DIGESTS:
                self._digest(leaves)
            if self.fetches.turn[-1] or not key[1]:  # of an evaluation
                self.num_signs += 1
                self._give_sign()
            else:
                self.num_read += 1
                if self.is_pending and not self.fetched_s:
                    self.fetched_s = _clock()
                if not self.total_passes:
                    self._read_before_first_pass(leaves)
        except Exception as error:
            self._note("batch", error)

    def _read_before_first_pass(self, leaves):
        """Tell the explorer of batches that no pass follows: the program may train elsewhere than in torch."""
        if self.first_read is None and leaves:
            self.first_read = weakref.ref(leaves[0])
        self._give_sign()

    def epoch_ended(self, iterator):
        """Note an epoch without a batch, ahead of any pass: a program may begin it again and again."""
        try:
            if self.is_done or self.steps or self.is_pending or getattr(iterator, "_num_yielded", 1):
                return
            now = _clock()
            self.empty_epochs += 1
            self.empty_since_s = self.empty_since_s or now
            self.num_samples = num_samples_of(iterator)
            if self.empty_epochs >= EMPTY_EPOCHS and now - self.empty_since_s > EMPTY_S:
                self._finish("no_batch")
        except Exception as error:
            self._note("batch", error)

    def _listed(self, rows, read):
        """Return the samples of a batch by the list that it was loaded for, where its tensors do not show them.

        Graphs, images of several sizes and the like have no dimension of samples. Where tensors have one, the lists are
        read no longer: that costs more than all else at a fetch.
        """
        size, listed = self.probe["micro_batch_size"], self.lists.length
        if listed is not None:
            read.lists[listed] = read.lists.get(listed, 0) + 1
        self.num_shown = self.num_shown + 1 if rows == size else 0
        if listed is not None and (rows is None or listed == size):
            rows = listed
        if rows == size:
            read.num_samples, read.drops_last = self.lists.num_samples, self.lists.drops_last
        if self.num_shown >= SHOWN and self.lists.size is None:
            self.reads_lists = False
            self.stop_reading_lists()
        return rows

    def before_backward(self):
        """Close the step before, if an update ended it; wait for the end after the last one."""
        try:
            if self.is_done:
                self._park()
            if self.is_pending:
                self._end_step()
            elif self.passes and not self.numel_of_optimizers and self.unseen.found():
                self._updated_unseen()
            if self.first_backward_at_s is None:
                self.first_backward_at_s = time.time()
                self.thread = threading.get_ident()
                self.has_device = self.torch.cuda.is_initialized()
                self._limit_device_memory()
                self._chain_excepthooks()  # a framework may have replaced it
        except Exception as error:
            self._note("backward", error)

    def after_backward(self):
        """Count a pass; an optimizer that steps inside of the backward pass ends the step here."""
        self.passes += 1
        self.total_passes += 1
        self.last_backward_s = _clock()
        try:
            if self.last_backward_s - self.signed_s > SIGN_S:  # a step may have many passes
                self._give_sign()
            if self.updated_in_backward:
                self.updated_in_backward = False
                self._updated(1)
            elif not self.numel_of_optimizers:
                self.unseen.note_pass()
            if not self.steps and not self.is_pending and self.total_passes > self.most_passes:
                self._finish("no_step")
        except Exception as error:
            self._note("backward", error)

    def before_update(self, optimizer, args, kwargs):
        """Note when an update begins; one that calls the backward pass itself is known before it does.

        Gradients may come from elsewhere than a backward pass that is seen: `torch.autograd.grad`, a pipeline's own.
        """
        if self.is_compiling() or self.in_backward or self.is_done:
            return
        try:
            if id(optimizer) not in self.numel_of_optimizers:
                self._know(optimizer)
            if self.is_pending and not self.passes and id(optimizer) == self.clock_optimizer:
                self.before_backward()
            self.in_update = True
            self.update_began_s = _clock()
            if self.has_device:
                self._mark_device("begins")
        except Exception as error:
            self._note("update", error)

    def after_update(self, optimizer, args, kwargs):
        """Count an update; the optimizer with most parameters is the clock of the steps."""
        if self.is_compiling():
            return
        self.in_update = False
        if self.is_done:
            return
        try:
            if id(optimizer) not in self.numel_of_optimizers:
                self._know(optimizer)
            if self.in_backward:  # a hook of each parameter steps: one update a pass
                self.updated_in_backward = True
                return
            now = _clock()
            self.update_s += now - max(self.update_began_s, self.last_backward_s)
            if self.has_device:
                self._mark_device("ends")
            if id(optimizer) == self.clock_optimizer or self.is_pending:
                self._updated(self.updates + 1)
            else:
                self.updates += 1
        except Exception as error:
            self._note("update", error)

    def _updated_unseen(self):
        """End the step at the next backward pass: when its update ended cannot be seen."""
        self.updates, self.last_update_s = 1, _clock()
        self._end_step()

    def _know(self, optimizer):
        numel = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self.numel_of_optimizers[id(optimizer)] = numel
        self.optimizer_names[type(optimizer).__name__] = True
        if numel > self.clock_numel:
            self.clock_optimizer, self.clock_numel = id(optimizer), numel

    def _updated(self, updates):
        self.updates, self.is_pending, self.last_update_s = updates, True, _clock()
        # The last step ends with as many updates as those before it had. To wait for the next backward pass instead
        # would lock the stages of a pipeline: a stage that waits gives the others no gradient.
        if len(self.steps) + 1 >= self.last_step and self.updates >= self._usual_updates():
            self._end_step()

    def _usual_updates(self):
        updates = STEP.index("num_updates")
        return max((step[updates] for step in self.steps[-3:]), default=1)

    def _end_step(self):
        """Record the step that the last update ended."""
        self.is_pending = False
        self._record_step()
        if _clock() - self.exchanged_s > EXCHANGE_S:
            self._exchange()
        count = len(self.steps)
        if count <= LEVELS_OF_MODEL:
            self._watch_forward()
        if count == 1 and self.lists.longest is not None:
            self._watch_rows()
        if count == self.probe["memory_step"]:
            self._begin_memory()
        elif count == self.probe["memory_step"] + 1:
            self._end_memory()
        if count >= self.last_step:
            self._finish("observed")
            self._park()

    def _record_step(self):
        self.steps.append((self.last_update_s, self.passes, self.updates, self.update_s))
        self.fetched_s_of_steps.append(self.fetched_s)
        self.fetched_s = 0.0
        if self.has_device:
            self.events_of_steps.append(self.update_events)
            self.update_events = []
        self.passes = self.updates = 0
        self.update_s = 0.0

    def _exchange(self):
        """Tell the explorer how far this process is, and learn from it how far to go."""
        self.exchanged_s = self.signed_s = _clock()
        self._report_progress()
        self._read_last_step()
        self._begin_pulse()
        if not self.exchanged_steps:  # what comes before the first step may take as long as it likes
            self.looked_s = self.lived_s = self.exchanged_s
        else:
            self.most_of_exchange = max(self.most_of_exchange, len(self.steps) - self.exchanged_steps)
        self.exchanged_steps = len(self.steps)
        if self.exchanged_s - self.looked_s > self.life_limit_s / LOOKS:
            self._look_for_explorer()

    def _give_sign(self):
        """Tell the explorer that the training goes on, where no step ends; it learns nothing from the explorer."""
        now = _clock()
        if now - self.signed_s > SIGN_S:
            self.signed_s = now
            self._report_progress()

    def _begin_pulse(self):
        """Let a thread give signs of life from the first step on: sampling, generation and the like call no hook."""
        if self.has_pulse:
            return
        self.has_pulse = True
        import _thread  # unlike `threading`, it shows the training no further thread

        _thread.start_new_thread(self._pulse, ())

    def _pulse(self):
        try:
            before, used_s, at_s = None, time.process_time(), time.monotonic()
            while True:
                time.sleep(SIGN_S)
                now_used_s, now_s, place = time.process_time(), time.monotonic(), self._place_of_training()
                is_busy = now_used_s - used_s > WORKING_SHARE * (now_s - at_s)
                is_working = is_busy and (place != before or self._is_idle_in_wait())
                if not self.is_done and (is_working or self.num_saving):
                    self.num_signs += 1
                    self._give_sign()
                before, used_s, at_s = place, now_used_s, now_s
        except Exception as error:
            self._note("pulse", error)

    def _is_idle_in_wait(self):
        """Return whether a process that waits for others uses no processor: NCCL's and MPI's poll for them."""
        _, world_size, backend = _place(self.torch)
        return world_size == 1 or backend == "gloo"

    def _place_of_training(self):
        """Return where the code of the thread that trains is: a call that waits for others stays where it is."""
        frame, found = sys._current_frames().get(self.thread), []
        while frame is not None:
            found.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return found

    def _report_progress(self):
        # A program that keeps what it reads has not come to its first pass yet.
        is_kept = not self.total_passes and self.first_read is not None and self.first_read() is not None
        num_read, num_signs = (0, self.num_signs + self.num_read) if is_kept else (self.num_read, self.num_signs)
        try:
            file = os.open(self.steps_path, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError:  # the explorer has gone, and its folder with it
            return
        try:
            os.write(file, b"%9d %9d %9d %9d\n" % (len(self.steps), self.total_passes, num_read, num_signs))
        finally:
            os.close(file)

    def _read_last_step(self):
        told = self._told("last_step")
        self.last_step = int(told) if told else self.probe["max_steps"]

    def _told(self, name):
        """Return the line that the explorer has written in a file; None for nothing yet."""
        try:
            file = os.open(os.path.join(self.reports, name), os.O_RDONLY)
        except OSError:  # the explorer has gone, and its folder with it
            return None
        try:
            text = os.read(file, 1 << 16)
        finally:
            os.close(file)
        return text.decode() if text.endswith(b"\n") else None

    def _look_for_explorer(self):
        """Name a common last step where the explorer is gone: all ranks leave after it, and nothing is saved."""
        self.looked_s = _clock()
        life = _changed_ns(os.path.join(self.reports, "explorer"))
        if life != self.life:
            self.life, self.lived_s = life, self.looked_s
        elif self.looked_s - self.lived_s > self.life_limit_s and not self._told("last_step"):
            with open(os.path.join(self.reports, "last_step"), "w") as stream:
                ahead = max(STEPS_TO_COMMON, EXCHANGES_TO_COMMON * self.most_of_exchange)
                stream.write("%d\n" % (len(self.steps) + ahead))

    def _mark_device(self, kind):
        cuda = self.torch.cuda
        if not cuda.is_current_stream_capturing():
            event = cuda.Event(enable_timing=True)
            event.record(cuda.current_stream(self._own_device()))
            self.update_events.append((kind, event))

    def _digest(self, leaves):
        """Ranks with equal batches share one replica's work: tensor, context or pipeline parallelism."""
        import hashlib

        digest = hashlib.blake2b(digest_size=8)
        for leaf in leaves:
            if leaf.layout is self.torch.strided and leaf.numel():
                flat = leaf.detach().reshape(-1)
                some = flat[:: max(1, flat.numel() // DIGEST_ELEMENTS)][:DIGEST_ELEMENTS]
                digest.update(repr(some.tolist()).encode())
        if leaves:
            self.digests.append(digest.hexdigest())

    # -- the size, where no loader showed it ------------------------------------------------------------------------

    def _watch_forward(self):
        """Look at the inputs of the model's next calls, where no loader returned micro-batches of the size.

        The modules that no other holds are watched first. A program may call their parts alone; those are watched in
        the next step, unless something was compiled, whose guards a hook inside of it would fail.
        """
        if self.forward_rows or self.probe["micro_batch_size"] in self.fetches.rows():
            return
        self._watch_no_forward()
        if not self.watched:
            self.watched = _outermost_modules(self.torch)
        elif not any((_compiler_counters() or {}).values()):
            self.watched = [child for module in self.watched for child in module.children()]
        for module in self.watched:
            if not any(p.requires_grad for p in module.parameters()):
                continue
            if getattr(module, "_compiled_call_impl", None) is not None:
                self._watch_compiled(module)  # a hook would be traced, and the module compiled again
            else:
                self.forward_handles.append(module.register_forward_pre_hook(self._forward_called, with_kwargs=True))

    def _watch_no_forward(self):
        for handle in self.forward_handles:
            handle.remove()
        self.forward_handles = []

    def _watch_compiled(self, module):
        inner = module._compiled_call_impl

        def call(*args, **kwargs):
            self._forward_called(module, args, kwargs)
            return inner(*args, **kwargs)

        class Handle:
            def remove(self):
                module._compiled_call_impl = inner

        module._compiled_call_impl = call
        self.forward_handles.append(Handle())

    def _forward_called(self, module, args, kwargs):
        try:
            if self.in_backward or self.is_done or not self.torch.is_grad_enabled():
                return
            leaves = tensors((args, kwargs), self.torch.Tensor)
            rows = leading_dimension(leaves)
            if self.counted is not None:
                if module is self.counted:
                    self.samples.append((len(self.steps) + self.is_pending, rows or 0))
                return
            self.forward_rows.append([rows, sum(leaf.numel() for leaf in leaves)])
            if not self.fetches.rows() and len(self.digests) < DIGESTS:  # of the loaders, where there are any
                self._digest(leaves)
            if len(self.forward_rows) < FORWARD_CALLS:
                return
            if not self.fetches.rows() and len({one for one, _ in self.forward_rows}) > 1:
                self.counted = module
            else:
                self._watch_no_forward()
        except Exception as error:
            self._note("forward", error)

    # -- which batches the passes take, in a start that serves several sizes ------------------------------------------

    def _watch_rows(self):
        """Learn from a few calls of each model how many rows it is given for a sample, where all batches have the size.

        Nothing is watched where the training compiles: such a start serves one size, and a hook would break its graphs.
        """
        if any((_compiler_counters() or {}).values()):
            return
        for module in _outermost_modules(self.torch):
            if any(parameter.requires_grad for parameter in module.parameters()):
                self._watch_calls(module, self._learn_rows)

    def _watch_calls(self, module, look):
        """Let a function look at the rows of a module's calls until it returns that it has seen enough."""

        def called(module, args, kwargs):
            try:
                if self.in_backward or self.is_done or not self.torch.is_grad_enabled():
                    return
                rows = leading_dimension(tensors((args, kwargs), self.torch.Tensor))
                if rows is None or look(module, rows):
                    handle.remove()
            except Exception as error:
                self._note("forward", error)

        handle = module.register_forward_pre_hook(called, with_kwargs=True)
        self.forward_handles.append(handle)

    def _learn_rows(self, module, rows):
        _, seen = self.rows_of_modules.setdefault(id(module), (module, []))
        seen.append(rows / self.probe["micro_batch_size"])
        return len(seen) >= FORWARD_CALLS

    def _watch_own_batches(self):
        """Find the first step whose passes take batches of this probe's size: programs read ahead, and transform."""
        for module, seen in self.rows_of_modules.values():
            usual = max(seen, key=seen.count)
            if 2 * seen.count(usual) >= len(seen):  # the last batch of an epoch may be smaller
                self.rows_per_sample[id(module)] = usual
                self._watch_calls(module, self._is_of_size)

    def _is_of_size(self, module, rows):
        if rows != self.rows_per_sample[id(module)] * self.probe["micro_batch_size"]:
            return False
        if self.own_from_step is None:
            self.own_from_step = len(self.steps) + self.is_pending
        return True

    # -- memory -----------------------------------------------------------------------------------------------------

    def _begin_memory(self):
        """Begin the step whose memory is measured; it is not timed."""
        self.memory["resident_before_bytes"] = _status_bytes("VmRSS")
        try:
            with open("/proc/self/clear_refs", "w") as stream:
                stream.write("5")  # VmHWM starts anew
        except OSError:
            self._note("memory", "the resident peak is that of the whole process")
        if self.torch.cuda.is_initialized():
            device = self._own_device()
            self.torch.cuda.reset_peak_memory_stats(device)
            self.memory["num_ooms_before"] = self.torch.cuda.memory_stats(device).get("num_ooms", 0)
        elif self.probe.get("profile_memory") and not self.torch.autograd._profiler_enabled():
            self.memory["live_bytes"] = _live_bytes(self.torch)
            try:
                profiler = self.torch.profiler
                self.profiler = profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True)
                self.profiler.__enter__()
            except Exception as error:
                self.profiler = None
                self._note("profile", error)

    def _end_memory(self):
        profiler, self.profiler = self.profiler, None
        if profiler is None:
            return
        try:
            profiler.__exit__(None, None, None)
            events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
            bytes_now = peak = 0
            for event in sorted(events, key=lambda one: one.start_ns()):
                bytes_now += event.nbytes()
                peak = max(peak, bytes_now)
            self.memory["peak_bytes"] = self.memory["live_bytes"] + peak
        except Exception as error:
            self._note("profile", error)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, outcome):
        """Write the record of this rank."""
        self.is_done, self.was_observed = True, outcome == "observed"
        self._report_progress()
        self._end_memory()
        self.memory["resident_peak_bytes"] = _status_bytes("VmHWM")
        self.memory["resident_at_attach_bytes"] = self.resident_at_attach_bytes
        steps = [dict(zip(STEP, step)) for step in self.steps]
        self.fetches.turn_to(None, self.total_passes)
        self.fetches.add_to(steps)
        for index, rows in self.samples:
            if index < len(steps):
                steps[index]["num_samples"] += rows
        values = iter(self.without_gradients)
        seconds = evaluation_seconds(
            [step["ended_s"] for step in steps],
            self.fetched_s_of_steps,
            list(zip(values, values)),
            self.fetches.evaluations(),
        )
        for step, evaluation_s in zip(steps, seconds):
            step["evaluation_s"] = evaluation_s
        device = "cpu"
        cuda = self.torch.cuda
        if cuda.is_initialized():
            device = "cuda:%d" % self._own_device()
            for read in (lambda: self._read_cuda_events(steps), self._read_cuda_memory):
                try:
                    read()
                except Exception as error:
                    self._note("device", error)
        rank, world_size, backend = _place(self.torch)
        record = self._hello()
        record.update(
            outcome=outcome,
            rank=rank,
            world_size=world_size,
            backend=backend,
            device=device,
            device_name=cuda.get_device_name(device) if device != "cpu" else "",
            is_emulated=bool(getattr(ctypes.CDLL(None), "bexplore_is_emulated", int)()),
            steps=steps,
            num_passes=self.total_passes,
            rows={str(rows): count for rows, count in self.fetches.rows().items() if rows != UNKNOWN},
            forward_rows=self.forward_rows,
            num_samples=self.fetches.num_samples() or self.num_samples,
            before={"num_fetches": self.read_before, "num_passes": self.passed_before},
            own_from_step=self.own_from_step,
            awaits_own_batches=bool(self.rows_per_sample),
            digests=self.digests,
            batch_coupled=self._batch_coupled(),
            drops_last=self.fetches.drops_last(),
            list_lengths=self.fetches.list_lengths(),
            num_cut_lists=self.lists.num_cut,
            longest_cut_list=self.lists.longest_cut,
            is_resumed=self.is_resumed,
            optimizers=sorted(self.optimizer_names),
            memory=self.memory,
            compiler=_compiler_counters(),
            num_threads=self.torch.get_num_threads(),
            first_backward_at_s=self.first_backward_at_s,
            finished_at_s=time.time(),
            notes=self.notes,
        )
        self.write("rank-%d-%d.json" % (rank, self.pid), record)

    def _batch_coupled(self):
        """Return the classes of modules that let the samples of a batch depend on each other; looked for once."""
        if self.batch_coupled is None:
            try:
                self.batch_coupled = _batch_coupled_modules(self.torch)
            except Exception as error:
                self.batch_coupled = []
                self._note("modules", error)
        return self.batch_coupled

    def _read_cuda_events(self, steps):
        """Replace host times by device times: the host queues steps before the device has run them."""
        self.torch.cuda.synchronize(self._own_device())
        events = [event for marks in self.events_of_steps for _, event in marks]
        for step, marks in zip(steps, self.events_of_steps):
            begins = [event for kind, event in marks if kind == "begins"]
            ends = [event for kind, event in marks if kind == "ends"]
            if not ends:  # updated inside of the backward pass
                continue
            step["ended_s"] = events[0].elapsed_time(ends[-1]) / 1e3
            step["update_s"] = sum(a.elapsed_time(b) for a, b in zip(begins, ends)) / 1e3

    def _read_cuda_memory(self):
        cuda, device = self.torch.cuda, self._own_device()
        statistics = cuda.memory_stats(device)
        self.memory.update(
            peak_bytes=cuda.max_memory_allocated(device),
            reserved_peak_bytes=cuda.max_memory_reserved(device),
            num_ooms=statistics.get("num_ooms", 0),
            num_alloc_retries=statistics.get("num_alloc_retries", 0),
        )

    def _park(self):
        """Wait until every rank has its record, then end: no `finally`, no checkpoint, no destructor of the user's."""
        if self.thread is not None and self.thread != threading.get_ident():
            return
        limit_s, is_released = _clock() + self.probe.get("park_s", 60.0), False
        while not is_released and _clock() < limit_s:
            time.sleep(0.01)
            is_released = bool(self._told("release"))
            if is_released or not self.was_observed:
                continue
            self._read_last_step()
            if len(self.steps) < self.last_step:  # another rank was ahead
                self.is_done = False
                return
            following = self._told("next")
            if following:
                self._begin_next(_parsed(following))
                return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if is_released else 1)  # a script goes on after an end that is good

    def _begin_next(self, probe):
        """Go on with the training under the settings of a further probe."""
        self._watch_no_forward()
        self.read_before += self.fetches.number() + self.read_waiting
        self.passed_before += self.total_passes
        self.read_waiting = 0
        self._use(probe)
        self.write("hello-%s-%d.json" % (_host(), self.pid), self._hello())
        self._reset_counts()
        self._watch_own_batches()

    def _at_exit(self):
        """Record a training that ended by itself before the last observed step."""
        if os.getpid() != self.pid or self.is_done:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.note_error(error, "uncaught")
        if self.first_backward_at_s is None:
            if self.empty_epochs and not self.steps and not self.is_pending:
                self._finish("no_batch")
            return
        self.is_done = True  # no step ends any more in this process
        if self.is_pending:
            self._record_step()
        self._finish("ended" if self.steps else "no_step")

    def note_handled(self):
        """Write the exception that is being handled, if it is about memory."""
        error = sys.exc_info()[1]
        if error is None or self.has_error or self.is_done:
            return
        if any(_is_about_memory(one) for one in _led_to(error)):
            self.note_error(error, "handled")

    def note_error(self, error, where):
        """Write the first error of this process."""
        if self.has_error or isinstance(error, (SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit)):
            return
        self.has_error = True
        try:
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            causes = _causes(error)
            record = {
                "pid": os.getpid(),
                "host": _host(),
                "rank": self._rank(),
                "where": where,
                "chain": [_link(one) for one in causes],
                "contexts": [_link(one) for one in _led_to(error) if not any(one is cause for cause in causes)],
                "traceback": text[-LOGGED_CHARACTERS:],
                "at_s": time.time(),
                "num_steps": len(self.steps),
                "num_batches": max(self.fetches.number(), self.total_passes, len(self.steps)),
            }
            self.write("error-%s-%d.json" % (_host(), os.getpid()), record)
        except Exception:  # a full disk: the training's own end shows the error
            pass

    def _note(self, where, error):
        if len(self.notes) < 5:
            self.notes.append("%s: %s" % (where, error if isinstance(error, str) else repr(error)))

    def write(self, name, record):
        """Write a JSON file whole."""
        import json

        path = os.path.join(self.reports, name)
        with open(path + ".part", "w", encoding="utf-8") as stream:
            json.dump(record, stream)
        os.replace(path + ".part", path)


class IndexLists:
    """The lists of samples that loaders take their batches from, cut to the size of a probe before anything is loaded.

    A list is cut into as many lists as it has: an epoch keeps its samples. Batches that a loader had loaded ahead at
    another size are dropped, as many on every rank.
    """

    def __init__(self):
        # Of the batches that are wanted, and of the command's; None cuts nothing, and is so for all of a start.
        self.size = self.longest = None
        self.num_cut = 0
        self.longest_cut = 0  # of all of a start: a probe may live on what the one before left of a list
        # Of the list that the last batch was taken from, and of the epoch of its loader; None where there is none.
        self.length = self.num_samples = None
        self.drops_last = False

    def begin(self, size, longest):
        """Cut to a size from now on; lists that are longer than the command's batches are not of what is explored."""
        self.size, self.longest = (size, longest) if longest else (None, None)
        self.num_cut = 0

    def next_of(self, iterator, next_index):
        """Return the next list of an iterator."""
        state, size = self._state(iterator), self.size
        has_rest = size is not None and len(state["rest"]) >= size
        index = state["rest"] if has_rest else next_index(iterator)
        state["rest"] = ()
        if size is not None and isinstance(index, list) and len(index) <= self.longest:
            self.num_cut, self.longest_cut = self.num_cut + 1, max(self.longest_cut, len(index))
            index, state["rest"] = index[:size], index[size:]
        state["taken"].append((size, len(index) if isinstance(index, (list, tuple)) else None))
        return index

    def is_stale(self, iterator):
        """Return whether the batch that an iterator has returned was loaded for another size; note its lengths."""
        state = self._state(iterator)
        self.num_samples, self.drops_last, taken = state["num_samples"], state["drops_last"], state["taken"]
        size, self.length = taken.popleft() if taken else (self.size, None)
        return size != self.size

    def _state(self, iterator):
        sampler = getattr(iterator, "_sampler_iter", None)
        state = iterator.__dict__.get("_bexplore")
        if state is None or state["sampler"] is not sampler:  # persistent workers begin an epoch with another one
            state = {"sampler": sampler, "rest": (), "taken": deque(), "num_samples": num_samples_of(iterator)}
            state["drops_last"] = bool(getattr(getattr(iterator, "_index_sampler", None), "drop_last", False))
            iterator._bexplore = state
        return state


class Fetches:
    """The micro-batches that loaders returned, by data set: an evaluation's are told apart from the training's."""

    def __init__(self):
        self.sets = {}  # (data set, whether gradients were on) -> ReadSet
        self.reading = None  # its key
        # To another one: its key, when, after how many passes, and whether gradients were switched off since.
        self.turns, self.turn = [], [None, 0.0, 0, False]

    def turn_to(self, key, num_passes):
        """Note that another data set is read from now on."""
        self.reading, self.turn = key, [key, _clock(), num_passes, False]
        self.turns.append(self.turn)

    def evaluations(self):
        """Return when each began and ended: what is read between two passes and is not of the training."""
        training = self._training()
        found, began = [], None
        for key, at_s, num_passes, _ in self.turns:
            if key not in training:
                began = began if began is not None and began[1] == num_passes else (at_s, num_passes)
            elif began is not None:
                if began[1] == num_passes:
                    found.append((began[0], at_s))
                began = None
        return found

    def number(self):
        """Return how many micro-batches of the training were read, those of steps to come included."""
        return sum(len(read.micro_batches) // 3 for read in self._training().values())

    def begin(self, key):
        """Return an account of a further data set."""
        self.sets[key] = read = ReadSet()
        return read

    def rows(self):
        """Return leading dimension -> micro-batches of the training that had it."""
        found = {}
        for read in self._training().values():
            for rows in read.micro_batches[1::3]:
                found[rows] = found.get(rows, 0) + 1
        return found

    def drops_last(self):
        """Return whether the loader of the probe's batches leaves out a last batch with fewer samples."""
        return any(one.drops_last for one in self._training().values())

    def list_lengths(self):
        """Return length -> lists of samples that batches of the training were loaded for, as far as they were read."""
        found = {}
        for read in self._training().values():
            for length, count in read.lists.items():
                found[length] = found.get(length, 0) + count
        return found

    def num_samples(self):
        """Return the samples of an epoch of the data set of the probe's batches; None if unknown."""
        return next((one.num_samples for one in self._training().values() if one.num_samples is not None), None)

    def add_to(self, steps):
        """Add the micro-batches of the training to the records of steps."""
        for step in steps:
            step.update(num_fetches=0, num_samples=0, num_elements=0, evaluation_s=0.0)
        for read in self._training().values():
            values = iter(read.micro_batches)
            for index, rows, num_elements in zip(values, values, values):
                if index < len(steps):
                    steps[index]["num_fetches"] += 1
                    steps[index]["num_samples"] += max(rows, 0)
                    steps[index]["num_elements"] += num_elements

    def _training(self):
        """Return the data sets of the training, by key.

        They are those that passes follow. Of several that are read for one pass, all but the last have none; they are
        read in nearly every step, and gradients stay on.
        """
        turns = {}  # key -> whether a pass followed, and whether gradients were switched off, each time
        for one, following in zip(self.turns, self.turns[1:]):
            turns.setdefault(one[0], []).append((following[2] > one[2], one[3]))
        sets = dict(self.sets)  # threads of the program may read meanwhile
        read = {key: one for key, one in sets.items() if key[1]} or sets
        num_steps = {key: len(set(one.micro_batches[::3])) for key, one in read.items()}
        least = READ_IN_TRAINING * max(num_steps.values(), default=0)
        found = {}
        for key, one in read.items():
            known = turns.get(key, [])
            num_passed = sum(passed for passed, _ in known)
            is_evaluated = bool(known) and all(is_off for passed, is_off in known if not passed)
            if 2 * num_passed >= max(len(known), 1) or (num_steps[key] >= least and not is_evaluated):
                found[key] = one
        return found


class ReadSet:
    """What was read of a data set."""

    def __init__(self):
        # Step, leading dimension and elements of each, one after the other: no object is kept for a fetch.
        self.micro_batches = array("q")
        self.num_samples = None  # of an epoch of a loader that returned batches of the probe's size
        self.drops_last = False  # whether that loader leaves out a last batch with fewer samples
        self.lists = {}  # length -> lists of samples that batches were loaded for


class UnseenUpdates:
    """Updates that call no hook: of a compiled `optimizer.step`, and of optimizers that do not derive from torch's.

    They write the largest parameters. Those that write `parameter.data`, whose version is its own, are seen by what
    follows them: the gradients of the pass before are cleared.
    """

    def __init__(self, torch):
        self.torch = torch
        self.parameters, self.versions = None, []
        self.is_written = False  # ever, where a version shows it
        self.cleared = None  # a small parameter whose gradient is checked

    def note_pass(self):
        """Find a parameter that has a gradient after a pass."""
        if self.parameters is None or self.is_written:
            return
        if self.cleared is None or not self._has_gradient(self.cleared):
            self.cleared = next((one for one in self.parameters if self._has_gradient(one)), None)

    def found(self):
        """Return whether there was an update since the last call, ahead of a pass."""
        is_first = self.parameters is None
        if is_first:
            self.parameters = _trainable_parameters(self.torch)
        versions = [parameter._version for parameter in self.parameters[-WATCHED_PARAMETERS:]]
        is_new, self.versions = versions != self.versions and not is_first, versions
        self.is_written |= is_new
        return is_new or (not self.is_written and self.cleared is not None and not self._has_gradient(self.cleared))

    def _has_gradient(self, parameter):
        return parameter.grad is not None and bool(parameter.grad.any())


def num_samples_of(iterator):
    """Return the samples of an epoch of a loader's iterator; None where its sampler does not tell.

    A sampler of batches may be wrapped, as by loaders that never end: the innermost sampler is that of samples.
    """
    try:
        sampler = iterator._index_sampler.sampler
        for _ in range(WRAPPED_SAMPLERS):
            sampler = getattr(sampler, "sampler", sampler)
        return len(sampler)
    except Exception:  # samples without an end, batches of a sampler of the user's own
        return None


def evaluation_seconds(ended_s, fetched_s, off, evaluations):
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
    of_steps = [[] for _ in ended_s]  # the times of each step, and whether it had not read yet
    for began_s, over_s in _merged(off):
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
    for began_s, over_s in _merged(found):
        index = bisect.bisect_left(ended_s, began_s)
        if index < len(ended_s):
            seconds[index] += over_s - began_s
    return seconds


def _merged(times_s):
    """Return spans of time in order, those that overlap as one."""
    found = []
    for began_s, over_s in sorted(times_s):
        if found and began_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], over_s)
        else:
            found.append((began_s, over_s))
    return found


def _median(values):
    return sorted(values)[len(values) // 2] if values else 0.0


def leading_dimension(leaves):
    """Return the leading dimension that most tensors share; of a tie, that of the largest tensor."""
    if len(leaves) == 1:
        return leaves[0].shape[0] if leaves[0].dim() else None
    found = {}
    for leaf in leaves:
        if leaf.dim():
            count, numel = found.get(leaf.shape[0], (0, 0))
            found[leaf.shape[0]] = (count + 1, max(numel, leaf.numel()))
    return max(found, key=lambda rows: found[rows]) if found else None


def tensors(tree, kind):
    """Return the tensors of a batch in their order: of dictionaries, sequences, data classes, else of any objects."""
    if isinstance(tree, kind):
        return [tree]
    found = []
    _collect(tree, kind, found, 0)
    return found or _tensors_of_objects(tree, kind)


def _collect(tree, kind, found, depth):
    if isinstance(tree, kind):
        found.append(tree)
        return
    if depth > 6:
        return
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


def _tensors_of_objects(tree, kind):
    """Return the tensors that the attributes of objects lead to, as those of a batch of graphs; the nearest first."""
    found, waiting, seen = [], deque([tree]), set()
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


def _hide_from_dynamo(torch):
    """Let dynamo compile no frame of this file; unlike its decorator, that costs nothing at each call.

    What such a frame calls is compiled as it would be without it.
    """
    owners = globals(), vars(Observer), vars(IndexLists), vars(Fetches), vars(ReadSet), vars(UnseenUpdates)
    for function in (one for owner in owners for one in owner.values() if hasattr(one, "__code__")):
        _skip(torch, function)


def _skip(torch, function):
    """Let dynamo compile no frame of a function; return the function."""
    try:
        frames = torch._C._dynamo.eval_frame
        if hasattr(frames, "skip_code"):  # torch 2.6 and older
            frames.skip_code(function.__code__)
        else:
            action = frames._FrameAction
            frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    except (AttributeError, TypeError):  # a torch without dynamo, or one that names it otherwise
        pass
    return function


def _is_about_memory(error):
    """Return whether an exception may be a refusal of memory; the explorer reads its message more closely."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named or (isinstance(error, RuntimeError) and ("memory" in str(error) or "ALLOC_FAILED" in str(error)))


def _causes(error):
    """Return an exception and its explicit causes."""
    links = []
    while error is not None and len(links) < LINKS_OF_ERROR:
        links.append(error)
        error = error.__cause__ or getattr(error, "inner_exception", None)
    return links


def _led_to(error):
    """Return all that led to an exception: causes, what was being handled, members of a group; itself first."""
    found, waiting = [], deque([error])
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


def _link(error):
    """Return what the explorer reads of an exception."""
    kind = type(error)
    bases = [base.__name__ for base in kind.__mro__[1:-1]]
    return {"type": kind.__name__, "module": kind.__module__, "bases": bases, "message": str(error)[:2000]}


def _live_bytes(torch):
    """Return the bytes of all storages that Python can see: weights, gradients, optimizer states, batches."""
    import gc
    import warnings

    storages = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in gc.get_objects():
            try:
                if not issubclass(type(one), torch.Tensor):
                    continue
                for tensor in (one,) if one.grad is None else (one, one.grad):
                    storage = tensor.untyped_storage()
                    if storage.device.type == "cpu":
                        storages[storage.data_ptr()] = storage.nbytes()
            except Exception:  # a tensor without storage, or one that is being freed: it is left out
                continue
    return sum(storages.values())


def _batch_coupled_modules(torch):
    """Return the classes of modules that compare the samples of a batch, or take statistics of them."""
    import gc

    kind, normalization = torch.nn.Module, torch.nn.modules.batchnorm._BatchNorm
    found = set()
    for one in gc.get_objects():
        own = type(one)
        if not issubclass(own, kind):
            continue
        if issubclass(own, normalization):
            if one.training:
                found.add(own.__name__)
        elif any(part in own.__name__.lower() for part in LOSSES_OF_BATCH):
            found.add(own.__name__)
    return sorted(found)


def _outermost_modules(torch):
    """Return the modules that no other module holds."""
    import gc

    # By type: a weakref proxy answers isinstance with its referent's class, or with an exception.
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]


def _trainable_parameters(torch):
    """Return the parameters that are trained, the largest last."""
    import gc

    kind = torch.nn.Parameter
    found = [one for one in gc.get_objects() if issubclass(type(one), kind) and one.requires_grad]
    return sorted(found, key=lambda one: one.numel())


def _has_accelerator(torch):
    """Return whether torch can use a device of this host: NVIDIA's, also under WSL, or AMD's."""
    paths = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    return torch.backends.cuda.is_built() and any(os.path.exists(path) for path in paths)


def _place(torch):
    """Return rank, world size and backend: those of torch.distributed, else of the launcher's environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), None


def _changed_ns(path):
    """Return when a file was changed; None where it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _compiler_counters():
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


def _read(path):
    import json

    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def _parsed(text):
    import json

    return json.loads(text)


def _host():
    return os.uname().nodename


def _status_bytes(key):
    try:
        with open("/proc/self/status") as stream:
            for line in stream:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _process_start():
    """Return the Unix time at which the kernel started this process, before Python's own start."""
    try:
        with open("/proc/self/stat") as stream:
            ticks = int(stream.read().rsplit(")", 1)[1].split()[19])
        with open("/proc/stat") as stream:
            boot_s = next(int(line.split()[1]) for line in stream if line.startswith("btime"))
        return boot_s + ticks / os.sysconf("SC_CLK_TCK")
    except Exception:  # no /proc, or one of another form: now is near enough
        return time.time()
