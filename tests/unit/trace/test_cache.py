from __future__ import annotations

import dataclasses
import os
from importlib import metadata
from pathlib import Path

import pytest

from bexplore.host import json_files
from bexplore.host.accelerators import device_by_name
from bexplore.host.json_files import cache_folder
from bexplore.job import Job
from bexplore.trace import cache
from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.cache import Sources, find_imported_sources, recall, remember
from bexplore.trace.cost_model import Polynomial
from tests.builders import cost_model

H100 = GpuProperties.from_device(device_by_name("h100"))
UNCHANGED = Sources(files={}, packages={"torch": metadata.version("torch")})


TRACE = cost_model(Polynomial(5, 2), trace_s=1.5)


def entries() -> list[Path]:
    return sorted(cache_folder("traces").iterdir())


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 1, "sources": 3}', '{"format": 1, "sources": {"files": 3, "packages": 4}}']
)
@pytest.mark.promise("garbage in the cache of traces", "traced again")
def test_an_entry_that_is_none_is_no_trace(content):
    remember(Job(workload="decoder"), TRACE, UNCHANGED, gpu=None)
    [entry] = entries()
    entry.write_text(content)
    assert recall(Job(workload="decoder"), gpu=None) is None


@pytest.mark.parametrize(
    "sources",
    [
        Sources(files={}, packages={"torch": "1.0"}),
        Sources(files={}, packages={"a-package-that-nobody-has": "1.0"}),
        Sources(files={"/nowhere/program.py": "00"}, packages={}),
        Sources(files={__file__: "00"}, packages={}),
    ],
    ids=["another version", "package gone", "file gone", "file changed"],
)
def test_a_trace_whose_sources_are_not_what_they_were_is_not_remembered(sources):
    remember(Job(workload="decoder"), TRACE, sources, gpu=None)
    assert recall(Job(workload="decoder"), gpu=None) is None


def test_a_trace_is_remembered_for_its_own_job_and_device_alone():
    job = Job(workload="decoder")
    remember(job, TRACE, UNCHANGED, gpu=None)
    assert recall(job, gpu=None) is not None
    assert recall(Job(workload="decoder", sequence_length=128), gpu=None) is None
    assert recall(job, gpu=H100) is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8"),
        ("TORCH_CUBLAS_WORKSPACE_CACHE", "1"),
        ("ATEN_CPU_CAPABILITY", "avx2"),
        ("OMP_NUM_THREADS", "97"),
    ],
)
def test_a_trace_is_not_remembered_where_a_variable_changes_its_memory(monkeypatch, variable, value):
    remember(Job(workload="decoder"), TRACE, UNCHANGED, gpu=None)
    monkeypatch.setenv(variable, value)
    assert recall(Job(workload="decoder"), gpu=None) is None


def test_a_trace_of_another_processor_is_not_remembered(monkeypatch):
    remember(Job(workload="decoder"), TRACE, UNCHANGED, gpu=None)
    monkeypatch.setattr(cache, "processor_name", lambda: "another processor")
    assert recall(Job(workload="decoder"), gpu=None) is None


def test_what_was_changed_during_the_trace_says_nothing_about_it():
    assert find_imported_sources(began_s=0.0) is None  # every file is younger


def test_only_the_entries_that_were_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    job_of = [dataclasses.replace(Job(workload="decoder"), seed=seed) for seed in range(3)]
    for used_at_s, job in enumerate(job_of[:2]):
        remember(job, TRACE, UNCHANGED, gpu=None)
        os.utime(max(entries(), key=lambda path: path.stat().st_mtime), (used_at_s, used_at_s))
    assert recall(job_of[0], gpu=None) is not None  # used again, later than the other
    remember(job_of[2], TRACE, UNCHANGED, gpu=None)
    assert [recall(job, gpu=None) is not None for job in job_of] == [True, False, True]


def test_a_folder_that_cannot_be_written_costs_only_the_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(json_files.CACHE_VARIABLE, str(tmp_path / "file"))
    remember(Job(workload="decoder"), TRACE, UNCHANGED, gpu=None)
    assert recall(Job(workload="decoder"), gpu=None) is None
