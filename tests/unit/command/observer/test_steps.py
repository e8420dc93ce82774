"""What the observer counts as a step, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bexplore.command.observer.bexplore_observer import steps as steps_module


def numbers(record: dict, *names: str) -> list[tuple]:
    return [tuple(step[name] for name in names) for step in record["steps"]]


@pytest.fixture
def leaves(monkeypatch):
    """Let the end of the process raise; its status is that of the exception."""

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(steps_module.os, "_exit", leave)


def test_a_step_is_an_update_and_the_passes_before_it(observe, train, optimizer, read_record):
    observer, own = observe(), optimizer()

    for _ in range(3):
        train(observer, own, num_passes=2)
    observer.record_end()

    record = read_record()
    assert record["outcome"] == "ended" and record["optimizers"] == ["Optimizer"]
    assert numbers(record, "num_passes", "num_updates") == [(2, 1)] * 3


def test_updates_of_several_optimizers_without_a_pass_between_are_one_step(observe, train, optimizer, read_record):
    observer, small, large = observe(), optimizer(8), optimizer(64)

    for _ in range(3):
        train(observer, small, large)
    observer.record_end()

    # The first update is of the only optimizer that is known by then.
    assert numbers(read_record(), "num_passes", "num_updates") == [(1, 2)] * 3


def test_an_optimizer_that_takes_the_place_of_another_one_counts_the_steps(observe, train, optimizer, read_record):
    observer, finder = observe(), optimizer(64)
    trainer = optimizer(64)
    trainer.param_groups = finder.param_groups

    for one in (finder, trainer):
        for _ in range(4):
            train(observer, one)
    observer.record_end()

    assert len(read_record()["steps"]) == 7  # the finder's four, and the trainer's from its second on


def test_an_update_has_the_passes_since_the_one_before_it(observe, train, optimizer, read_record):
    observer, critic, actor = observe(), optimizer(64), optimizer(8)

    for number in range(6):
        train(observer, critic, num_passes=2)
        if number % 2:
            train(observer, actor, num_passes=2)
    observer.record_end()

    found = numbers(read_record(), "num_passes", "num_updates", "num_passes_of_update")
    assert found == [(2, 1, 2), (2, 1, 2), (4, 2, 2), (2, 1, 2), (4, 2, 2), (2, 1, 2)]


def test_an_optimizer_that_steps_inside_of_a_pass_ends_a_step_with_it(observe, optimizer, read_record):
    observer, own = observe(), optimizer()

    for _ in range(3):
        observer.before_backward()
        observer.in_backward = True
        for _ in range(5):  # a hook of each parameter
            observer.before_update(own, (), {})
            observer.after_update(own, (), {})
        observer.in_backward = False
        observer.after_backward()
    observer.record_end()

    assert numbers(read_record(), "num_passes", "num_updates") == [(1, 1)] * 3


def test_batches_between_an_update_and_the_next_pass_are_of_the_next_step(
    observe, train, optimizer, tensor, read_record
):
    observer, own = observe(), optimizer()

    for _ in range(3):
        observer.loaders.fetches.turn_to((1, True), observer.total_passes)
        observer.loaders.note_batch([tensor(4, 3), tensor(4)], (1, True))
        train(observer, own)
    observer.record_end()

    record = read_record()
    assert numbers(record, "num_fetches", "num_samples", "num_elements") == [(1, 4, 16)] * 3
    assert record["rows"] == {"4": 3} and len(record["digests"]) == 3


def test_a_rank_writes_its_record_and_leaves_once_it_is_released(
    observe, train, optimizer, read_record, settings, leaves
):
    observer, own = observe(max_steps=2), optimizer()
    Path(settings["reports"], "release").write_text("now\n")

    train(observer, own)
    with pytest.raises(SystemExit) as left:
        train(observer, own)

    assert left.value.code == 0
    assert read_record()["outcome"] == "observed" and len(read_record()["steps"]) == 2


def test_a_rank_that_nobody_releases_leaves_with_a_status(observe, train, optimizer, leaves):
    with pytest.raises(SystemExit) as left:
        train(observe(max_steps=1, park_s=0.0), optimizer())
    assert left.value.code == 1


def test_a_parked_rank_goes_on_where_another_was_ahead(observe, train, optimizer, settings):
    observer, own = observe(max_steps=2), optimizer()
    train(observer, own)
    Path(settings["reports"], "last_step").write_text("3\n")

    train(observer, own)

    assert not observer.is_done


def test_a_parked_rank_goes_on_with_the_next_probe_and_its_size(
    observe, train, optimizer, tensor, settings, tmp_path, read_record
):
    observer, own = observe(max_steps=1, capacity=8), optimizer()
    (tmp_path / "next").mkdir()
    following = settings | {"micro_batch_size": 2, "reports": str(tmp_path / "next"), "capacity": 8}
    Path(settings["reports"], "next").write_text(json.dumps(following) + "\n")
    observer.loaders.fetches.turn_to((1, True), 0)
    observer.loaders.note_batch(tensor(4, 3), (1, True))

    train(observer, own)

    assert (observer.size, observer.loaders.lists.size, observer.is_done) == (2, 2, False)
    assert list((tmp_path / "next").glob("hello-*.json"))
    observer.record_end()
    assert read_record()["outcome"] == "observed"
    (second,) = (tmp_path / "next").glob("rank-*.json")
    assert json.loads(second.read_text())["before"] == {"num_fetches": 1, "num_passes": 1}


def test_many_passes_without_an_update_have_no_step(observe, train, read_record):
    observer = observe()

    train(observer, num_passes=steps_module.PASSES_WITHOUT_STEP + 5)

    assert read_record()["outcome"] == "no_step" and observer.is_done


def test_nothing_of_the_observer_reaches_the_training(observe, optimizer):
    observer, broken = observe(), optimizer()
    broken.param_groups = None

    observer.before_update(broken, (), {})
    observer.after_update(broken, (), {})
    observer.loaders.note_batch(object(), (1, True))
    observer.loaders.note_end_of_epoch(None)

    assert [note.partition(":")[0] for note in observer.notes] == ["update", "update"]
