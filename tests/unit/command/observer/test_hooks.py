"""The functions of torch that the observer puts its own around."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bexplore.command.observer import bexplore_observer
from bexplore.command.observer.bexplore_observer import hooks

FILES = sorted(Path(bexplore_observer.__file__).parent.glob("*.py"))


def test_a_pass_is_counted_once_however_it_is_nested(observe, fake_torch):
    observer = observe()
    fake_torch.autograd.backward = lambda depth: fake_torch.autograd.backward(depth - 1) if depth else "done"
    hooks._watch_backward(observer)

    assert fake_torch.autograd.backward(2) is fake_torch.autograd.backward(0)

    assert observer.total_passes == 2


def test_an_error_of_a_pass_is_reported_and_goes_on(observe, fake_torch):
    observer = observe()
    fake_torch.autograd.backward = lambda: {}["absent"]
    hooks._watch_backward(observer)

    with pytest.raises(KeyError):
        fake_torch.autograd.backward()

    assert observer.errors.is_written and not observer.in_backward


def test_times_without_gradients_are_kept_but_for_those_of_an_update(observe, fake_torch):
    class NoGrad:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_error: object) -> None:
            pass

    observer = observe()
    hooks._watch_gradients(observer, NoGrad)

    with NoGrad():
        pass
    observer.in_update = True
    with NoGrad():
        pass

    assert len(observer.without_gradients) == 2 and observer.loaders.fetches.turn.is_off


def test_a_checkpoint_is_a_time_that_is_kept_and_a_sign_of_life(observe, fake_torch):
    observer, saved = observe(), []
    fake_torch.save, fake_torch.serialization = saved.append, SimpleNamespace()
    hooks._watch_saving(observer)

    fake_torch.save("state")

    assert saved == ["state"] and observer.num_saving == 0
    assert len(observer.without_gradients) == 2 and observer.exchange.num_signs == 1


@pytest.mark.parametrize(("state", "expected"), [({"state": {0: 1}}, True), ({"state": {}}, False)])
def test_an_optimizer_that_takes_over_states_before_the_first_pass_resumes(observe, optimizer, state, expected):
    class Own(optimizer):
        pass

    observer = observe()
    hooks._watch_resuming(observer, Own)

    Own().load_state_dict(state)

    assert observer.is_resumed is expected


def test_every_function_of_the_package_is_hidden_from_dynamo(fake_torch):
    hidden = []
    fake_torch._C = SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=SimpleNamespace(skip_code=hidden.append)))
    modules = [sys.modules[name] for name in list(sys.modules) if name.startswith(f"{bexplore_observer.__name__}.")]

    hooks.hide_package_from_dynamo(fake_torch)

    names = {code.co_qualname for code in hidden}
    assert len(modules) == len(FILES) - 1
    assert {"LoaderWatch.note_batch", "Fetches.count_rows", "ModelWatch.awaits_own_batches", "find_tensors"} <= names


def test_a_torch_without_dynamo_is_left_as_it_is(fake_torch):
    assert hooks.skip(fake_torch, hooks.skip) is hooks.skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_package_needs_python_3_8_and_its_standard_library_alone(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    absolute = [one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.level == 0]
    absolute += [alias.name for one in ast.walk(tree) if isinstance(one, ast.Import) for alias in one.names]
    roots = {name.split(".")[0] for name in absolute if name}
    assert roots - set(sys.stdlib_module_names) <= {"torch"}
