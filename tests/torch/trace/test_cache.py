"""A remembered trace, with the modules that the job imports."""

from __future__ import annotations

import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from bexplore.engine.program_client import recall_or_trace
from bexplore.host.json_files import cache_folder
from bexplore.host.records import to_record
from bexplore.job import CompileSettings, Job
from bexplore.trace import CostModel
from bexplore.trace.cache import Sources, recall, remember
from bexplore.trace.cost_model import Polynomial
from tests.builders import cost_model

UNCHANGED = Sources(files={}, packages={"torch": metadata.version("torch")})
PROGRAM = """
    import torch
    from helper import WIDTH

    def build():
        return torch.nn.Linear(WIDTH, 10)

    def samples(micro_batch_size):
        return torch.randn(micro_batch_size, WIDTH), torch.randint(10, (micro_batch_size,))
"""


TRACE = cost_model(Polynomial(5, 2), trace_s=1.5)


def write_program(root: Path, *, width: int) -> Job:
    (root / "program.py").write_text(textwrap.dedent(PROGRAM))
    (root / "helper.py").write_text(f"WIDTH = {width}\n")
    paths = {"model": "program:build", "batch": "program:samples"}
    return Job(workload="imported", model=paths, import_root=str(root), compile=CompileSettings(enabled=False))


def looked_at(job: Job, tmp_path: Path, *, fresh: bool = False) -> CostModel:
    traced = recall_or_trace(job, tmp_path / "run", lambda message: None, fresh=fresh)
    assert isinstance(traced, CostModel), traced
    return traced


def entries() -> list[Path]:
    return sorted(cache_folder("traces").iterdir())


def test_a_program_is_traced_again_once_an_imported_module_has_changed(tmp_path):
    first = looked_at(write_program(tmp_path, width=16), tmp_path)
    again = looked_at(write_program(tmp_path, width=16), tmp_path)
    wider = looked_at(write_program(tmp_path, width=32), tmp_path)
    back = looked_at(write_program(tmp_path, width=16), tmp_path)
    assert (first.remembered_from, wider.remembered_from) == (None, None)
    assert again.remembered_from
    assert to_record(again) == to_record(first) | {"remembered_from": again.remembered_from}
    assert wider.fingerprint != first.fingerprint
    assert back == again


@pytest.mark.promise("a damaged entry of the trace's cache", "replaced")
def test_a_fresh_trace_reads_no_entry_and_one_that_is_damaged_is_replaced(tmp_path):
    job = write_program(tmp_path, width=16)
    remember(job, TRACE, UNCHANGED, gpu=None)
    assert looked_at(job, tmp_path, fresh=True).remembered_from is None
    for entry in entries():
        entry.write_text(entry.read_text()[:100])
    traced = looked_at(job, tmp_path)
    assert traced.remembered_from is None
    assert f"{traced.fingerprint}-" in " ".join(path.name for path in entries())
    assert recall(job, gpu=None) is not None
