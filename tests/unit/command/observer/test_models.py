"""What calls of models show of the size, and updates that call no hook."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bexplore.command.observer.bexplore_observer.models import (
    FORWARD_CALLS,
    UnseenUpdates,
    count_parallel_devices,
    find_batch_coupled,
    find_outermost_modules,
)


@pytest.fixture
def model(fake_torch):
    return fake_torch.nn.Module()


def test_modules_that_no_other_holds_are_outermost(fake_torch, model):
    parent = fake_torch.nn.Module()
    parent.modules = lambda: [parent, model]
    assert find_outermost_modules(fake_torch) == [parent]


def test_normalizations_in_training_and_losses_of_a_batch_are_coupled(fake_torch, model):
    loss_class = type("MyContrastiveLoss", (fake_torch.nn.Module,), {})
    kept = [fake_torch.nn.modules.batchnorm._BatchNorm(), loss_class()]
    assert find_batch_coupled(fake_torch) == ["MyContrastiveLoss", "OwnNormalization"]

    kept[0].training = False
    assert find_batch_coupled(fake_torch) == ["MyContrastiveLoss"]


@pytest.mark.parametrize(("device_ids", "number"), [(None, 1), ([], 1), ([0], 1), ([0, 1], 2)])
def test_the_devices_of_data_parallel_are_counted(fake_torch, device_ids, number):
    kept = None if device_ids is None else fake_torch.nn.DataParallel(device_ids)

    assert count_parallel_devices(fake_torch) == number
    del kept


def test_without_a_loader_a_few_calls_show_the_size(observe, model, tensor):
    observer = observe()
    observer.models.watch_inputs()

    for _ in range(2 * FORWARD_CALLS):
        model(tensor(4, 2), mask=tensor(4))
        observer.models.note_pass()

    assert observer.models.inputs == [(4, 12)] * FORWARD_CALLS
    assert model.hooks == [] and len(observer.loaders.digests) == 3


def test_where_the_sizes_differ_all_calls_are_counted(observe, model, tensor):
    observer = observe()
    observer.models.watch_inputs()

    for rows in (4, 3, 4, 3, 4, 3):
        model(tensor(rows, 2))
        observer.models.note_pass()

    assert observer.models.samples == [(0, 4), (0, 3)]  # those after the first few


def test_calls_that_no_pass_follows_are_not_of_the_training(observe, model, tensor):
    observer = observe()
    observer.models.watch_inputs()

    for _ in range(FORWARD_CALLS):
        for rows in (10, 10, 4):
            model(tensor(rows, 2))
        observer.models.note_pass()

    assert observer.models.inputs == [(4, 8)] * FORWARD_CALLS


@pytest.mark.parametrize(
    ("calls", "elements"),
    [
        pytest.param([8, 8, 3], 38, id="parts of a batch, the last one smaller"),
        pytest.param([8, 8], 32, id="equal parts"),
        pytest.param([8, 9], 18, id="a larger call begins a batch"),
        pytest.param([8, 3, 3], 6, id="a batch ends with its smaller part"),
    ],
)
def test_calls_that_may_take_parts_of_one_batch_are_added(observe, model, tensor, calls, elements):
    observer = observe()
    observer.models.watch_inputs()

    for _ in range(FORWARD_CALLS):
        for rows in calls:
            model(tensor(rows, 2))
        observer.models.note_pass()

    assert observer.models.elements_of_parts == [elements] * FORWARD_CALLS
    assert observer.models.inputs == [(calls[-1], 2 * calls[-1])] * FORWARD_CALLS


def test_where_a_loader_shows_the_size_no_model_is_looked_at(observe, model, tensor):
    observer = observe()
    observer.loaders.fetches.turn_to((1, True), 0)
    observer.loaders.note_batch(tensor(4, 3), (1, True))

    observer.models.watch_inputs()

    assert model.hooks == []


def test_a_model_that_was_compiled_in_place_gets_no_hook_of_torch(observe, model, tensor):
    calls = []
    model._compiled_call_impl = compiled = lambda *args: calls.append(args)
    observer = observe()
    observer.models.watch_inputs()
    assert model.hooks == []

    for _ in range(FORWARD_CALLS):
        model._compiled_call_impl(tensor(4, 2))
        observer.models.note_pass()

    assert len(calls) == len(observer.models.inputs) == FORWARD_CALLS
    assert model._compiled_call_impl is compiled


def test_the_first_batch_of_a_further_size_is_seen_by_the_rows_of_a_sample(observe, model, tensor, settings):
    observer = observe(capacity=16)
    observer.models.learn_rows()
    for _ in range(FORWARD_CALLS):
        model(tensor(2 * 4, 3))  # two rows for each sample
    assert model.hooks == []

    observer.use(settings | {"micro_batch_size": 8, "capacity": 16})
    observer.models.reset_probe()
    observer.models.await_own_batches()
    model(tensor(2 * 4, 3))
    assert observer.models.own_from_step is None
    observer.steps.append((1.0, 1, 1, 0.1))
    model(tensor(2 * 8, 3))

    assert observer.models.own_from_step == 1


class Weight:
    """A parameter with a version and a gradient."""

    def __init__(self, fake_torch) -> None:
        self.own = fake_torch.nn.Parameter(4)
        self.own._version, self.own.grad = 0, Gradient(True)


class Gradient(SimpleNamespace):
    def __init__(self, is_set: bool) -> None:
        super().__init__(any=lambda: is_set)


def test_an_update_without_a_hook_is_seen_by_the_version_of_a_parameter(fake_torch):
    weight, unseen = Weight(fake_torch).own, UnseenUpdates(fake_torch)
    assert not unseen.have_come()

    weight._version += 1

    assert unseen.have_come() and not unseen.have_come()


def test_an_update_that_leaves_the_version_is_seen_by_a_cleared_gradient(fake_torch):
    weight, unseen = Weight(fake_torch).own, UnseenUpdates(fake_torch)
    unseen.have_come()
    unseen.note_pass()
    assert not unseen.have_come()

    weight.grad = None

    assert unseen.have_come()
