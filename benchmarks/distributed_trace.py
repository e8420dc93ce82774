"""The trace of a rank against a rank: `python -m benchmarks.distributed_trace [--only WORDS ...] [--fresh] [--traces]`.

A rank of N is one process with real tensors, whose collectives are copies. At two ranks there are also two real ranks
of gloo. Last, `bexplore trace` of a decoder of 6.7 billion parameters on 64 ranks: its seconds and its memory. Each
trace and each rank is a process of its own, forked from one that has imported everything; what an earlier call recorded
on the same torch is not measured again, but with `--fresh`, and with `--traces` the traces alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.distributed_trace_jobs import LARGE_JOB, LARGE_RANKS, SIZES, Case, cases
from benchmarks.trace_command import large_lines, timed_trace

if TYPE_CHECKING:
    from bexplore.engine.worker.steps import Ranks

RESULTS = Path(__file__).parent / "results"
RECORDS = RESULTS / "distributed_trace.json"
TABLE = RESULTS / "distributed_trace.md"
WORST_PERCENT = 3.0  # of one rank of N
WORST_PERCENT_OF_GLOO = 6.0
GLOO_RANKS = 2
LARGE = "gpt_6.7b | FSDP2 | 64 | table"
LARGE_WORDS = f"the decoder of 6.7 billion parameters on {LARGE_RANKS} ranks"
LARGE_LIMIT_S = 40.0
LARGE_LIMIT_BYTES = 1.5e9
_BUDGET_BYTES = 8 * 2**30
_LIMIT_S = 1200  # of one process
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # What kernels allocate does not depend on how well they are optimized, and that takes most of a rank's time.
    "TORCHINDUCTOR_DEBUG_COMPILE": "1",
    # A trace builds no programs; those of ranks are the same for many, and are kept in one cache.
    "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), "bexplore_distributed_trace")),
}

Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="WORDS", nargs="+", default=[""], help="cases whose name has one of these")
    parser.add_argument("--fresh", action="store_true", help="measure again what is recorded already")
    parser.add_argument("--traces", action="store_true", help="trace again what is recorded already")
    options = parser.parse_args()
    records: dict[str, Record] = {} if options.fresh or not RECORDS.exists() else json.loads(RECORDS.read_text())
    records = {key: record for key, record in records.items() if record["torch"] == version("torch")}
    if _is_chosen(LARGE, options.only) and (options.traces or LARGE not in records):
        _keep(records, LARGE, timed_trace(LARGE_JOB, "--devices", str(LARGE_RANKS)))
    os.environ.update(_ENVIRONMENT)
    _import_everything()
    for one in [one for one in cases() if _is_chosen(one.name, options.only)]:
        for action in ["trace", "rank", *(["gloo"] if one.num_ranks == GLOO_RANKS else [])]:
            key = f"{one.name} | {action}"
            if key not in records or (options.traces and action == "trace"):
                _keep(records, key, _in_children(action, one))
        print(_line(one, records), file=sys.stderr, flush=True)
    TABLE.write_text(_markdown(records))
    print(_markdown(records))


def _is_chosen(name: str, only: list[str]) -> bool:
    return any(words in name for words in only)


def _keep(records: dict[str, Record], key: str, record: Record) -> None:
    """Write a result at once, so that an interrupted call goes on where it stopped."""
    records[key] = {"torch": version("torch"), **record}
    RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    TABLE.write_text(_markdown(records))


def _import_everything() -> None:
    """Import what every child needs, before it is forked: nothing that starts threads."""
    import torch._inductor.compile_fx  # noqa: F401 - for its effect: a child finds it imported
    import transformers.models.auto.modeling_auto
    import transformers.models.convnext.modeling_convnext
    import transformers.models.llama.modeling_llama  # noqa: F401 - likewise

    import bexplore.engine.worker.session
    import bexplore.trace.tracer  # noqa: F401 - likewise


def _in_children(action: str, one: Case) -> Record:
    """Run one action in a fresh process, or in one for each rank; return the answer of the first."""
    num_processes = one.num_ranks if action == "gloo" else 1
    port = _free_port()
    started = time.perf_counter()
    context = multiprocessing.get_context("fork")
    children = []
    for rank in range(num_processes):
        receive, send = context.Pipe(duplex=False)
        environment = {
            **{name: str(rank) for name in ("RANK", "LOCAL_RANK")},
            **{name: str(num_processes) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        }
        arguments = (action, one, environment if action == "gloo" else {}, send)
        child = context.Process(target=_child, args=arguments)
        child.start()
        send.close()
        children.append((child, receive))
    answer = _answer(children[0][1])
    for child, _ in children:
        child.join(timeout=10)
        child.kill()
    return answer | {"wall_s": time.perf_counter() - started}


def _answer(receive: Connection) -> Record:
    if not receive.poll(_LIMIT_S):
        return {"failure": f"longer than {_LIMIT_S} s"}
    try:
        answer: Record = receive.recv()
    except EOFError:
        return {"failure": "the process died"}
    return answer


def _child(action: str, one: Case, environment: Mapping[str, str], send: Connection) -> None:
    os.environ.update(environment)
    try:
        answer = CHILD_ACTIONS[action](one)
        answer["cpu_s"] = time.process_time()
    except Exception:  # the cases after it are measured all the same
        answer = {"failure": traceback.format_exc()[-2000:]}
    send.send(answer)
    send.close()
    os._exit(0)  # ranks of a process leave threads that an exit would wait for


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def trace_child(one: Case) -> Record:
    """Trace a rank."""
    from bexplore.trace.tracer import trace_job

    started, cpu_started = time.perf_counter(), time.process_time()
    model = trace_job(one.job)
    return {
        "peaks": {str(size): model.peak_memory_bytes(size) for size in SIZES},
        "trace_s": time.perf_counter() - started,
        "trace_cpu_s": time.process_time() - cpu_started,
        "notes": list(model.notes),
    }


def rank_child(one: Case, ranks: Ranks | None = None) -> Record:
    """Run a rank, as a probe runs it; with others beside it, they all time as many passes."""
    from bexplore.engine.protocol.messages import RunProbe
    from bexplore.engine.protocol.shared_mode import SharedMode
    from bexplore.engine.worker.session import Session
    from bexplore.measurement.probe import Compilation, Probe

    session = Session(
        RunProbe(
            job=one.job,
            probe=Probe(number=0, micro_batch_size=1, compilation=Compilation.EXACT),
            shared_mode=SharedMode.NESTED,
            budget_bytes=_BUDGET_BYTES,
        ),
        report=lambda **_: None,
        ranks=ranks,
    )
    peaks, graphs = {}, 0
    for number, size in enumerate(SIZES):
        probe = Probe(number=number, micro_batch_size=size, compilation=Compilation.EXACT, max_passes=2)
        measured = session.measure(probe, pass_budget_s=0.0)
        peaks[str(size)] = measured["peak_memory_bytes"]
        graphs += measured["num_graphs"] or 0
    return {"peaks": peaks, "num_graphs": graphs}


def gloo_child(one: Case) -> Record:
    """Run one of the real ranks; tell the largest peak of all."""
    import torch
    import torch.distributed as dist

    from bexplore.engine.worker.ranks import JoinedRanks

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    own = rank_child(one, JoinedRanks())
    peaks = torch.tensor([own["peaks"][str(size)] for size in SIZES])
    dist.all_reduce(peaks, dist.ReduceOp.MAX)
    dist.destroy_process_group()
    return {"peaks": dict(zip(map(str, SIZES), peaks.tolist(), strict=True))}


CHILD_ACTIONS: dict[str, Callable[[Case], Record]] = {
    "trace": trace_child,
    "rank": rank_child,
    "gloo": gloo_child,
}


def _errors(one: Case, records: dict[str, Record], action: str) -> dict[int, float]:
    """Return the error of the trace by size, percent of the measured peak; empty where one is missing."""
    traced, measured = (records.get(f"{one.name} | {kind}", {}).get("peaks") for kind in ("trace", action))
    if not traced or not measured:
        return {}
    return {size: 100 * (traced[str(size)] / measured[str(size)] - 1) for size in SIZES}


def _line(one: Case, records: dict[str, Record]) -> str:
    return f"{one.name:55s} {_cells(one, records, 'rank')} {_cells(one, records, 'gloo')}"


def _cells(one: Case, records: dict[str, Record], action: str) -> str:
    record = records.get(f"{one.name} | {action}", {})
    failure = record.get("failure") or records.get(f"{one.name} | trace", {}).get("failure")
    if record and failure:
        return "failed"
    return ", ".join(f"{error:+.2f}" for error in _errors(one, records, action).values())


def _markdown(records: dict[str, Record]) -> str:
    known = [one for one in cases() if f"{one.name} | trace" in records]
    lines = [
        "# The trace of a rank against a rank",
        "",
        f"Written by `python -m benchmarks.distributed_trace`; {platform.machine()}, Python "
        f"{platform.python_version()}, torch {version('torch')}. Micro-batch sizes {' and '.join(map(str, SIZES))}.",
        "",
        "Peak of a step of two accumulation passes and an update: error of the trace, percent of what was measured on "
        "one rank of N (a process alone, with real tensors; collectives are copies), and on one of two real ranks of "
        "gloo, the larger of both.",
        "",
        "| model | program | shared by | ranks | traced MiB "
        "| one rank MiB | error % | real rank MiB | error % | trace CPU s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_row(one, records) for one in known),
        "",
        _summary("one rank of N", "rank", WORST_PERCENT, known, records),
        _summary("real ranks of gloo", "gloo", WORST_PERCENT_OF_GLOO, known, records),
        *_missing_lines(len(cases()) - len(known)),
        *large_lines(records.get(LARGE, {}), LARGE_WORDS, LARGE_LIMIT_S, LARGE_LIMIT_BYTES),
    ]
    failures = [
        f"* {key}: {record['failure'].splitlines()[-1]}" for key, record in records.items() if "failure" in record
    ]
    return "\n".join([*lines, *(["", *failures] if failures else [])]) + "\n"


def _row(one: Case, records: dict[str, Record]) -> str:
    of = {action: records.get(f"{one.name} | {action}", {}).get("peaks", {}) for action in CHILD_ACTIONS}
    mebibytes = {action: ", ".join(f"{peak / 2**20:.1f}" for peak in peaks.values()) for action, peaks in of.items()}
    cpu_s = records[f"{one.name} | trace"].get("trace_cpu_s")
    return (
        f"| {one.model} | {one.program} | {one.way} | {one.num_ranks} | {mebibytes['trace']} | {mebibytes['rank']} "
        f"| {_cells(one, records, 'rank')} | {mebibytes['gloo']} | {_cells(one, records, 'gloo')} "
        f"| {'' if cpu_s is None else f'{cpu_s:.1f}'} |"
    )


def _summary(title: str, action: str, worst: float, known: list[Case], records: dict[str, Record]) -> str:
    errors = [abs(error) for one in known for error in _errors(one, records, action).values()]
    if not errors:
        return f"Against {title}: nothing measured."
    return (
        f"Against {title}: {len(errors)} peaks, median error {statistics.median(errors):.2f} %, worst "
        f"{max(errors):.2f} % (must: at most {worst:.0f} %)."
    )


def _missing_lines(num_missing: int) -> list[str]:
    return ["", f"{num_missing} cases are not measured yet; the command goes on with them."] if num_missing else []


if __name__ == "__main__":
    main()
