"""The explorer's side of all ranks of a job: started by a launcher, asked together, ended together.

Ranks never agree on a failure by collectives: each has its own connection, and the first bad answer ends all of them.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from bexplore.engine.process.launcher import KEY_VARIABLE, LOOPBACK, Caller, Launcher, RankListener, external_hint
from bexplore.engine.process.limits import FIRST_LIMITS_S, POLL_S, Limits, MemoryWatchdog, Patience, Progress
from bexplore.engine.process.worker_process import (
    BoundedLog,
    Peer,
    converse,
    new_mark,
    signal_group,
    start_process,
    waiting,
)
from bexplore.engine.protocol.answers import find_blamed_rank, merge_answers, name_rank_of, with_end_of_rank
from bexplore.engine.protocol.failures import describe_exit, last_line
from bexplore.engine.protocol.messages import (
    FROM_WORKER,
    Answer,
    Done,
    Failed,
    Hello,
    Join,
    OpenStore,
    Refused,
    Request,
    Whereabouts,
    WhereAreYou,
    lost,
    receive,
    send,
)
from bexplore.errors import EngineError
from bexplore.host import logs
from bexplore.host.blas_threads import users_environment
from bexplore.host.machine import oom_kills
from bexplore.host.process_tree import WORKER_MARK, end_marked, read_environment, send_signal
from bexplore.measurement.probe import Outcome

# All ranks have called so long after their launcher's start; it may wait in a queue of a scheduler. Seconds.
LAUNCH_LIMIT_S = 1800.0
# A collective that a rank never comes to must not end before the explorer has found that rank. Seconds.
COLLECTIVE_LIMIT_S = 24 * 3600.0
# Ranks have so long to report where they are. Seconds.
WHEREABOUTS_S = 1.0
# A launcher has so long to end by itself once its ranks have. Killed, srun leaves its allocation behind. Seconds.
LAUNCHER_END_S = 5.0


class RankGroup:
    """All ranks of a job; takes requests as a single worker does."""

    def __init__(
        self,
        launcher: Launcher,
        listener: RankListener,
        log_path: Path,
        *,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        self._launcher, self._listener = launcher, listener
        self._mark = "" if launcher.is_external else new_mark()
        self._called: dict[int, Caller] = {}
        self._has_joined = self._is_closed = False
        self._log = BoundedLog(log_path)
        self._oom_kills_before = oom_kills()
        self._process: subprocess.Popen[bytes] | None = None
        if launcher.is_external:
            logs.log.info("waiting for ranks", hint=external_hint(listener.address, launcher.num_ranks))
            return
        self._process = start_process(
            launcher.command(listener.address, preload),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=users_environment() | dict(environment or {}) | {WORKER_MARK: self._mark, KEY_VARIABLE: listener.key},
        )
        self._log.follow(self._process.stdout)

    @property
    def pid(self) -> int:
        """Process id of the launcher; 0 where the user started it."""
        return 0 if self._process is None else self._process.pid

    @property
    def pids(self) -> list[int]:
        """Process ids of the launcher and of the ranks on this host."""
        return [*([self.pid] if self.pid else []), *(hello.pid for hello in self._here())]

    @property
    def is_alive(self) -> bool:
        """Whether the ranks can take a request."""
        return not self._is_closed and (self._process is None or self._process.poll() is None)

    def await_preloaded(self) -> None:
        """Return once all ranks have called, which they do before they import anything."""
        self._failure_of_start(FIRST_LIMITS_S["start"])

    def post(self, request: Request) -> None:
        """Send nothing yet: `ask` sends the request once all ranks are there."""

    def ask(
        self,
        request: Request,
        *,
        limits: Limits,
        on_progress: Progress = lambda report: None,
    ) -> Answer:
        """Send a request to all ranks and wait for all answers, or for the first bad one.

        Of a failure the answer is that of the rank to blame, and the group has ended.
        """
        with waiting():
            failure = self._join(on_progress)
            return failure if failure is not None else self._ask_all(request, limits, on_progress)

    def _join(self, on_progress: Progress) -> Failed | Refused | None:
        """Let all ranks call and join; return why they have not."""
        if self._has_joined:
            return None
        on_progress({"stage": "join", "num_ranks": self._launcher.num_ranks})
        failure = self._failure_of_start(LAUNCH_LIMIT_S)
        if failure is not None:
            return failure
        limits = Limits(stage_s=FIRST_LIMITS_S["join"])
        is_one_host = len({hello.host for hello in self._hellos.values()}) == 1
        store = OpenStore(is_one_host=is_one_host, timeout_s=FIRST_LIMITS_S["join"])
        opened = self._ask_ranks([0], store, limits, lambda report: None)
        if not isinstance(opened, Done):
            return opened
        address = self._called[0].address
        request = Join(
            address=LOOPBACK if is_one_host else address,
            port=int(opened.values["port"]),
            is_one_host=is_one_host,
            timeout_s=COLLECTIVE_LIMIT_S,
        )
        joined = self._ask_ranks(range(self._launcher.num_ranks), request, limits, lambda report: None)
        if not isinstance(joined, Done):
            return joined
        self._has_joined = True
        return None

    def _failure_of_start(self, limit_s: float) -> Failed | Refused | None:
        """Wait until all ranks have called; return why they do not."""
        until_s = time.monotonic() + limit_s
        while len(self._called) < self._launcher.num_ranks:
            caller = self._listener.next_caller(POLL_S)
            if caller is not None:
                wrong = self._admit(caller)
                if wrong:
                    return wrong
            elif self._process is not None and self._process.poll() is not None:
                return self._launcher_ended(self._process.returncode)
            elif time.monotonic() > until_s:
                there = len(self._called)
                reason = f"{there} of {self._launcher.num_ranks} ranks called within {limit_s:.0f} s"
                return lost(Outcome.TIMED_OUT, reason, self._log.tail_text())
        return None

    def _admit(self, caller: Caller) -> Refused | None:
        """Take a rank in; one of another group, which has ended meanwhile, is sent away."""
        hello = caller.hello
        generation = max((one.hello.generation for one in self._called.values()), default=hello.generation)
        if hello.mark != self._mark or hello.generation < generation or hello.rank in self._called:
            caller.connection.close()
            return None
        if hello.generation > generation:
            self._forget_called()  # their launcher has started all ranks again
        if hello.num_ranks != self._launcher.num_ranks:
            return Refused.of(
                EngineError(
                    f"the launcher started {hello.num_ranks} ranks, and the job has {self._launcher.num_ranks}",
                    hint="correct the launcher's number of ranks, or explore.parallelism",
                )
            )
        self._called[hello.rank] = caller
        return None

    def _forget_called(self) -> None:
        for caller in self._called.values():
            caller.connection.close()
        self._called.clear()

    def _launcher_ended(self, status: int) -> Refused:
        last = last_line(self._log.tail_text()) or "it wrote nothing"
        return Refused.of(
            EngineError(
                f"the launcher {describe_exit(status)} before its ranks called: {last}",
                hint="run it by hand: " + shlex.join(self._launcher.command("HOST:PORT", ())),
            )
        )

    def _ask_all(self, request: Request, limits: Limits, on_progress: Progress) -> Answer:
        return self._ask_ranks(range(self._launcher.num_ranks), request, limits, on_progress)

    def _ask_ranks(self, which: Sequence[int], request: Request, limits: Limits, on_progress: Progress) -> Answer:
        peers = {rank: self._peer(self._called[rank], limits) for rank in which}
        for one in peers.values():
            one.send(request)
        if not any(isinstance(one.answer, Failed) for one in peers.values()):
            converse(peers, on_progress, _find_hanging)
        return self._one_answer(peers)

    def _peer(self, caller: Caller, limits: Limits) -> Peer:
        hello = caller.hello
        watch = MemoryWatchdog(hello.pid, limits.resident_bytes if self._is_here(hello) else None)
        return Peer(
            pid=hello.pid,
            name="it",  # `named` puts the rank before it
            connection=caller.connection,
            patience=Patience(limits),
            watch=watch,
            failure_at_end=lambda: self._failure_at_end(hello),
        )

    def _failure_at_end(self, hello: Hello) -> Failed:
        if self._is_here(hello) and oom_kills() > self._oom_kills_before:
            return lost(Outcome.OUT_OF_MEMORY, "the kernel's out-of-memory killer ended it")
        return lost(Outcome.CRASHED, "it ended without an answer", ended_by=signal.SIGKILL.name)  # or as by that

    def _one_answer(self, ranks: Mapping[int, Peer]) -> Answer:
        """Return one answer of all ranks; after a bad one the group is closed."""
        refused = next((one.answer for one in ranks.values() if isinstance(one.answer, Refused)), None)
        in_order = sorted(ranks.items(), key=lambda item: item[1].answered_s)
        failures = {rank: one.answer for rank, one in in_order if isinstance(one.answer, Failed)}
        if refused is None and not failures:
            answers = {rank: one.answer for rank, one in ranks.items() if isinstance(one.answer, Done)}
            if set(answers) != set(range(self._launcher.num_ranks)):
                return answers[0]  # of the first rank alone
            return merge_answers(answers, self._hellos, launcher=self._launcher.kind)
        self.close()
        if refused is not None:
            return refused
        log = self._log.tail_text()
        rank = find_blamed_rank(failures, log)
        return name_rank_of(
            with_end_of_rank(failures[rank], rank, log), self._hellos[rank], num_ranks=self._launcher.num_ranks
        )

    def close(self) -> None:
        """End all ranks, wait for their launcher, and end what is left; safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for caller in self._called.values():
            caller.connection.close()  # at its end each rank ends itself
        if self._process is not None:
            self._end_launcher(self._process)
            end_marked(WORKER_MARK, self._mark)
        else:
            self._end_here()
        self._log.close()

    def _end_launcher(self, process: subprocess.Popen[bytes]) -> None:
        """Let the launcher end by itself: one that is killed may leave ranks on other hosts, and allocations."""
        try:
            if not self._called:
                process.terminate()
            process.wait(LAUNCHER_END_S)
        except subprocess.TimeoutExpired:
            self._end_here()
            self._cancel_steps()
            try:
                process.wait(LAUNCHER_END_S)
            except subprocess.TimeoutExpired:
                pass  # it is killed now
        signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def _end_here(self) -> None:
        """Kill the ranks on this host: one that is stopped does not see that its connection has ended."""
        for hello in self._here():
            send_signal(hello.pid, signal.SIGKILL)

    def _cancel_steps(self) -> None:
        """Cancel the steps of Slurm that ranks have named."""
        for step in {hello.slurm_step for hello in self._hellos.values() if hello.slurm_step}:
            subprocess.run(["scancel", step], check=False, capture_output=True, timeout=LAUNCHER_END_S)

    def _here(self) -> list[Hello]:
        return [hello for hello in self._hellos.values() if self._is_here(hello)]

    @property
    def _hellos(self) -> dict[int, Hello]:
        return {rank: caller.hello for rank, caller in self._called.items()}

    def _is_here(self, hello: Hello) -> bool:
        """Return whether a rank is a process of this host: one that carries the group's mark."""
        return bool(self._mark) and f"\0{WORKER_MARK}={self._mark}\0" in f"\0{read_environment(hello.pid)}"


def _find_hanging(ranks: Mapping[int, Peer]) -> tuple[int, str]:
    """Return the rank for which the others wait, and what it does: one that does not answer, else one that is in no
    collective, else the one that was silent first."""
    found = _ask_whereabouts(ranks)
    mute = [rank for rank in ranks if rank not in found]
    if mute:
        return mute[0], "; its process does not answer"
    busy = [rank for rank, where in found.items() if not where.waits_for_ranks]
    if busy and len(busy) < len(ranks):
        return busy[0], f"; the other ranks wait for it, and it is at {found[busy[0]].place or 'no line of yours'}"
    first = min(found)
    return first, f"; it is at {found[first].place}" if found[first].place else ""


def _ask_whereabouts(ranks: Mapping[int, Peer]) -> dict[int, Whereabouts]:
    for one in ranks.values():
        try:
            send(one.connection, WhereAreYou())
        except OSError:
            continue
    found: dict[int, Whereabouts] = {}
    until_s = time.monotonic() + WHEREABOUTS_S
    while len(found) < len(ranks) and time.monotonic() < until_s:
        waited_for = {one.connection: rank for rank, one in ranks.items() if rank not in found}
        for connection in wait(list(waited_for), POLL_S):
            rank = waited_for[connection]  # type: ignore[index]  # they are connections
            try:
                message = receive(ranks[rank].connection, FROM_WORKER)
            except (EOFError, OSError, ValueError):
                continue
            if isinstance(message, Whereabouts):
                found[rank] = message
    return found
