"""The files by which a process and the explorer tell each other how far the training is, and how far to go.

The explorer reads these files of the probe's `reports` folder, each written whole (JSON):

    hello-HOST-PID.json   torch was imported in this process
    steps-HOST-PID        optimizer steps, passes, batches read for passes, and other signs of life so far, as text
    rank-RANK-PID.json    the record of a process that stepped an optimizer
    error-HOST-PID.json   the first exception that left the process or a backward pass, or was caught for lack of memory

The explorer makes three empty files there, and fills them with a line each: `last_step`, the number of the step after
which all ranks stop; `release` once every rank has its record; `next`, the settings of a further probe, whose `reports`
folder is another one. A rank that waits goes on where the last step is raised, because another rank had passed it
already, and with another size where there is a further probe. The explorer writes `explorer` every few seconds: where
that stays as it is, the ranks stop at a common step and leave. The first settings come from `probe.json`.

A rank looks and reports at most every `EXCHANGE_S`, for that costs more than all else at a step, and at the ends of
steps alone; between them it gives signs of life. It opens a file anew each time and closes it, with which the file
systems of several hosts promise what is there now.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .steps import Observer

clock = time.perf_counter
EXCHANGE_S = 0.25  # the explorer names the last step further ahead: `bexplore.command.watch`
SIGN_S = 1.0  # between two signs of life while no step ends
# Share of one processor that a process uses where it works. Source: chosen; one that waits in a collective of gloo
# or sleeps uses below a hundredth, and a training on a busy machine still gets a tenth.
WORKING_SHARE = 0.1
LOOKS = 12  # for a sign of the explorer, within the time after which it counts as gone
# Steps ahead of a rank that no other has passed, and how often as many as any exchange had: some were of slow steps.
STEPS_TO_COMMON, EXCHANGES_TO_COMMON = 20, 4


class EventLog:
    """What the observer did, for people: a line for each event in a file that all processes share; None for no log."""

    def __init__(self, path: str | None) -> None:
        self.path = path

    def write(self, event: str, **values: object) -> None:
        """Add a line: the Unix time, host and process, the event and its values."""
        if self.path is None:
            return
        told = "".join(f" {name}={value}" for name, value in values.items())
        line = f"{time.time():.3f} {read_host()}-{os.getpid()} {event}{told}\n"
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, line.encode(errors="replace"))
            finally:
                os.close(file)
        except OSError:  # a full disk, or a folder that is gone: the training goes on
            pass


class Exchange:
    """One process's side of the exchange.

    Args:
        settings: Of the first probe.
        read_counts: Returns steps, passes, batches read for passes, other signs of life, and as the third those that
            the program keeps, too.
    """

    def __init__(self, settings: Mapping[str, Any], read_counts: Callable[[], tuple[int, int, int, int, int]]) -> None:
        self.log = EventLog(settings.get("log"))
        self._read_counts = read_counts
        self.use(settings)
        self.reset()

    def use(self, settings: Mapping[str, Any]) -> None:
        """Take over the settings of a probe."""
        self.reports: str = settings["reports"]
        self.last_step = self._max_steps = int(settings["max_steps"])
        self._life_limit_s: float = settings.get("life_limit_s", 60.0)

    def reset(self) -> None:
        """Forget what was exchanged of a probe, or by the parent of a fork."""
        self.num_signs = 0
        self.signed_s = self._exchanged_s = 0.0
        self._exchanged_steps = self._most_steps = 0  # at the last exchange, and between two of them
        self._progress_path = os.path.join(self.reports, f"steps-{read_host()}-{os.getpid()}")
        self._life: int | None = None
        self._looked_s = self._lived_s = clock()

    def is_due(self) -> bool:
        """Return whether the last exchange is long enough ago."""
        return clock() - self._exchanged_s > EXCHANGE_S

    def exchange(self, num_steps: int) -> None:
        """Tell the explorer how far this process is, and learn from it how far to go."""
        self._exchanged_s = self.signed_s = clock()
        self.report_progress()
        self.read_last_step()
        if not self._exchanged_steps:  # what comes before the first step may take as long as it likes
            self._looked_s = self._lived_s = self._exchanged_s
        else:
            self._most_steps = max(self._most_steps, num_steps - self._exchanged_steps)
        self._exchanged_steps = num_steps
        if self._exchanged_s - self._looked_s > self._life_limit_s / LOOKS:
            self._look_for_explorer(num_steps)

    def give_sign(self) -> None:
        """Tell the explorer that the training goes on, where no step ends; it learns nothing from the explorer."""
        now_s = clock()
        if now_s - self.signed_s > SIGN_S:
            self.signed_s = now_s
            self.report_progress()

    def report_progress(self) -> None:
        """Write the counts so far."""
        try:
            file = os.open(self._progress_path, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError:  # the explorer has gone, and its folder with it
            return
        try:
            os.write(file, b"%9d %9d %9d %9d %9d\n" % self._read_counts())
        finally:
            os.close(file)

    def read_last_step(self) -> None:
        """Learn after which step to stop."""
        line = self.read_line("last_step")
        last_step = int(line) if line else self._max_steps
        if last_step != self.last_step:
            self.log.write("last_step", number=last_step)
        self.last_step = last_step

    def read_line(self, name: str) -> str | None:
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

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Write a JSON file whole."""
        import json

        path = os.path.join(self.reports, name)
        with open(f"{path}.part", "w", encoding="utf-8") as stream:
            json.dump(record, stream)
        os.replace(f"{path}.part", path)

    def _look_for_explorer(self, num_steps: int) -> None:
        """Name a common last step where the explorer is gone: all ranks leave after it, and nothing is saved."""
        self._looked_s = clock()
        life = _read_change_ns(os.path.join(self.reports, "explorer"))
        if life != self._life:
            self._life, self._lived_s = life, self._looked_s
        elif self._looked_s - self._lived_s > self._life_limit_s and not self.read_line("last_step"):
            ahead = max(STEPS_TO_COMMON, EXCHANGES_TO_COMMON * self._most_steps)
            self.log.write("explorer_is_gone", last_step=num_steps + ahead)
            with open(os.path.join(self.reports, "last_step"), "w") as stream:
                stream.write(f"{num_steps + ahead}\n")


def begin_pulse(observer: Observer) -> None:
    """Let a thread give signs of life from the first step on: sampling, generation and the like call no hook."""
    import _thread  # unlike `threading`, it shows the training no further thread

    _thread.start_new_thread(_give_pulse, (weakref.ref(observer),))


def _give_pulse(find_observer: Callable[[], Observer | None]) -> None:
    """Give signs of life until the observer is gone."""
    main_thread = None
    used_s, at_s = time.process_time(), time.monotonic()
    while True:
        time.sleep(SIGN_S)
        observer = find_observer()
        if observer is None:
            return
        try:
            now_used_s, now_s = time.process_time(), time.monotonic()
            is_busy = now_used_s - used_s > WORKING_SHARE * (now_s - at_s)
            used_s, at_s = now_used_s, now_s
            main_thread = main_thread or MainThread()
            has_run = main_thread.has_run()
            is_working = is_busy and (has_run or not observer.polls_in_wait())
            if not observer.is_done and (is_working or observer.num_saving):
                observer.exchange.num_signs += 1
                observer.exchange.give_sign()
        except Exception as error:
            observer.note("pulse", error)
            return
        del observer


class MainThread:
    """Tells whether the main thread runs Python code: one that waits in a collective does not.

    CPython makes a pending call as soon as the main thread runs code again. The call here is one of C, so that no code
    runs in between that of the training. To look at the frames of the thread would tell less, for one that releases
    the interpreter in the same line each time seems to stay there; and it is not safe: torch.compile evaluates frames
    itself, and following `f_back` of a thread that runs now and then crashes the process.
    """

    def __init__(self) -> None:
        import ctypes

        python = ctypes.PyDLL(None)  # not `ctypes.pythonapi`, whose types the training may have set
        self._add_pending_call = python.Py_AddPendingCall
        self._add_pending_call.argtypes = (ctypes.c_void_p, ctypes.py_object)
        self._reverse = ctypes.cast(python.PyList_Reverse, ctypes.c_void_p)
        self._marks = [False, True]  # reversed by the call
        python.Py_IncRef(ctypes.py_object(self._marks))  # the call may come after this object
        self._is_pending = False
        self.has_run()

    def has_run(self) -> bool:
        """Return whether the main thread has run code since this was last asked."""
        has_run = self._marks[0]
        if has_run or not self._is_pending:
            self._marks[:] = [False, True]
            self._is_pending = self._add_pending_call(self._reverse, self._marks) == 0  # else many are pending
        return has_run


def parse_json(text: str) -> Any:
    """Return the value of a text that the explorer wrote."""
    import json

    return json.loads(text)


def read_settings(folder: str) -> dict[str, Any]:
    """Return the settings of the first probe of a start."""
    with open(os.path.join(folder, "probe.json"), encoding="utf-8") as stream:
        settings: dict[str, Any] = parse_json(stream.read())
    return settings


def read_host() -> str:
    """Return the name of this host."""
    return os.uname().nodename


def read_process_start_s() -> float:
    """Return the Unix time at which the kernel started this process, before Python's own start."""
    try:
        with open("/proc/self/stat") as stream:
            ticks = int(stream.read().rsplit(")", 1)[1].split()[19])
        with open("/proc/stat") as stream:
            boot_s = next(int(line.split()[1]) for line in stream if line.startswith("btime"))
        return boot_s + ticks / os.sysconf("SC_CLK_TCK")
    except Exception:  # no /proc, or one of another form: now is near enough
        return time.time()


def _read_change_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
