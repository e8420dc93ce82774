"""Which settings of a job of several ranks make another run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bexplore.config.load import load_config
from bexplore.job import Mode
from bexplore.measurement.probe import Compilation
from bexplore.run.fingerprint import Fingerprint, describe, search_settings
from bexplore.run.run_directory import differences
from tests.unit.config.builders import Folder, sections


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def meta(folder: Folder, parallelism: Any, *, batch_size: int = 240, mode: Mode | None = None, **settings: Any) -> Any:
    """What decides a run of two replicas."""
    explore = {"device": "cpu"} | ({} if parallelism is None else {"parallelism": parallelism}) | settings
    values = sections(batch_size=batch_size, explore=explore)
    values["eval_input"] = values["train_input"]
    config = folder.load(values, mode=mode)
    fingerprint = Fingerprint(config=config, folder_name="job")
    return {"job": config.job.as_record(), "search_specification": fingerprint.search_specification()}


def changes(folder: Folder, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return list(differences(meta(folder, **before), meta(folder, **after)))


def test_another_batch_size_is_another_run_where_the_last_pass_alone_reduces_gradients(folder):
    assert changes(folder, {"parallelism": {}}, {"parallelism": {}, "batch_size": 480}) == [
        "replica_batch_size: 120 -> 240"
    ]


@pytest.mark.parametrize(
    "job",
    [
        {"parallelism": None},
        {"parallelism": {"gradient_sync": "every"}},
        {"parallelism": {}, "mode": Mode.EVAL},
    ],
)
def test_another_batch_size_resumes_the_run_where_all_passes_are_alike(folder, job):
    assert changes(folder, job, job | {"batch_size": 480}) == []


@pytest.mark.parametrize("rule", ["divisors", "even"])
def test_another_batch_size_is_another_run_where_its_parts_are_the_candidates(folder, rule):
    job = {"parallelism": None, "candidates": rule}

    assert changes(folder, job, job | {"batch_size": 480}) == ["replica_batch_size: 120 -> 240"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (["replica_batch_size=2", "max=64"], ["max=64"], ["replica_batch_size: 2 -> None"]),
        (["replica_batch_size=2"], ["replica_batch_size=8"], ["replica_batch_size: 2 -> 8"]),
        (["replica_batch_size=64", "max=4"], ["replica_batch_size=128", "max=4"], []),
    ],
)
def test_another_batch_of_a_command_is_another_run_where_it_bounds_the_sizes(before, after, told):
    def meta_of(settings: list[str]) -> dict[str, Any]:
        given = ['command=["train", "{micro_batch_size}"]', "writes_are_fine=true", *settings]
        config = load_config(None, overrides=[f"explore.{one}" for one in given])
        return {"search_specification": Fingerprint(config=config, folder_name="job").search_specification()}

    assert list(differences(meta_of(before), meta_of(after))) == told


@pytest.mark.parametrize(
    ("explore", "of_search", "of_training"),
    [
        ({"device": "cpu", "compile": False}, Compilation.SHARED, Compilation.EAGER),  # glibc's heap remembers
        ({"device": "cpu"}, Compilation.SHARED, Compilation.EXACT),
        ({"device": "cuda:0", "compile": False}, Compilation.SHARED, Compilation.EAGER),
    ],
)
def test_what_the_search_runs_is_verified_where_the_training_may_have_another_speed(
    folder, explore, of_search, of_training
):
    settings = search_settings(folder.load(sections(explore=explore)))

    assert (settings.search_compilation, settings.user_compilation) == (of_search, of_training)
    assert settings.verify_exact is (of_search is not of_training)
    assert (settings.compile_time_s == 0.0) is (of_training is Compilation.EAGER)


@pytest.mark.parametrize(("explore", "repeats"), [({}, True), ({"device_name": "h100"}, False)])
def test_speeds_that_are_estimated_are_asked_for_once(folder, explore, repeats):
    assert search_settings(folder.load(sections(explore=explore))).repeats is repeats


def test_all_ranks_and_one_rank_are_runs_of_their_own(folder):
    assert changes(folder, {"parallelism": {}}, {"parallelism": {}, "launcher": "torchrun"}) == [
        "launcher: none -> torchrun"
    ]
    assert changes(folder, {"parallelism": {}}, {"parallelism": {}, "launcher": "none"}) == []


def test_another_way_to_share_the_work_is_another_job(folder):
    found = changes(folder, {"parallelism": {}}, {"parallelism": {"fsdp_reshard_after_forward": "never"}})
    assert found == ["parallelism.fsdp_reshard_after_forward: default -> never"]


def test_a_run_of_one_device_is_decided_by_what_it_was_before_ranks_were_known(folder):
    assert {"launcher", "replica_batch_size"}.isdisjoint(meta(folder, None)["search_specification"])


@pytest.mark.parametrize(
    ("parallelism", "told"),
    [
        (None, "2 replicas"),
        ({}, "FSDP over 2 ranks"),
        ({"data_parallel_replicate_degree": 2}, "DDP over 2 ranks"),
        ({"tensor_parallel_degree": 2}, "FSDP over 2 ranks, tensor parallel over 2"),
    ],
)
def test_a_job_is_described_by_how_its_ranks_share_the_work(folder, parallelism, told):
    explore = {} if parallelism is None else {"parallelism": parallelism}
    assert describe(folder.load(sections(explore={"device": "cpu"} | explore))).endswith(f"AdamW, {told}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --lr 1 {micro_batch_size} --x", "nothing -> --x"),
        ("train --lr 2 {micro_batch_size}", "--lr 1 -> --lr 2"),
        ("python run.py {micro_batch_size}", "train --lr 1 -> python run.py"),
        ("fit --lr 1 {micro_batch_size} --y", "train -> fit; nothing -> --y"),
    ],
)
def test_of_another_training_command_the_words_that_differ_alone_are_told(words, told):
    before = {"job": {"model": {"command": ["train", "--lr", "1", "{micro_batch_size}"], "file": "a.yaml"}}}
    after = {"job": {"model": {"command": words.split(), "code_sha256": {"b.py": "7f"}}}}

    assert differences(before, after) == (f"model.command: {told}",)


def test_a_difference_of_the_job_and_of_its_search_is_told_once():
    before, after = ({"job": {"num_replicas": n}, "search_specification": {"num_replicas": n}} for n in (1, 2))

    assert differences(before, after) == ("num_replicas: 1 -> 2",)
