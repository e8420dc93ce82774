"""The innermost cause of an exception, and the user's line."""

from __future__ import annotations

import runpy
import sys

import pytest

from bexplore.engine.protocol.failures import classify_exception
from bexplore.host.causes import find_cause, find_place


def caught(run, *arguments) -> BaseException:
    with pytest.raises(Exception) as found:
        run(*arguments)
    return found.value


def compiler_failure(inner: BaseException) -> BaseException:
    """An exception of the compiler's that says nothing, as `BackendCompilerFailed` of an empty message does."""
    kind = type("BackendCompilerFailed", (RuntimeError,), {"__module__": "torch._dynamo.exc"})
    error = kind("backend='mine' raised:")
    error.inner_exception = inner
    return error


def chained() -> None:
    try:
        {}["width"]
    except KeyError as error:
        raise RuntimeError from error


def test_an_empty_exception_gives_way_to_its_cause():
    error = compiler_failure(caught(chained))
    assert repr(find_cause(error)) == "KeyError('width')"
    reason = classify_exception(error).reason
    assert reason.startswith("BackendCompilerFailed: backend='mine' raised: KeyError: 'width' (")
    assert f"({__file__}:{chained.__code__.co_firstlineno + 2})" in reason


def test_a_cause_that_is_named_already_is_not_said_twice():
    error = compiler_failure(ValueError("no such kernel"))
    error.args = ("backend='mine' raised:\nValueError: no such kernel",)
    assert (
        classify_exception(error).reason == "BackendCompilerFailed: backend='mine' raised: ValueError: no such kernel"
    )


def test_a_line_that_the_compiler_quotes_is_the_user_s():
    error = RuntimeError('Unsupported\n\nfrom user code:\n  File "/home/me/model.py", line 7, in forward\n    x.item()')
    assert find_place(error) == "/home/me/model.py:7"


def test_what_the_compiler_explains_is_said_with_its_heading():
    """A message of torch 2.13, in short."""
    called = "Dynamo failed to run FX node with fake tensors: call_function imul(*(FakeTensor(), 2), **{})"
    error = RuntimeError(
        f"RuntimeError when making fake tensor call\n  Explanation: {called}: got RuntimeError('no such row')\n"
        "  Hint: Dynamo has detected ...\n\n  Developer debug context: \n"
    )
    reason = "RuntimeError when making fake tensor call: RuntimeError('no such row')"
    assert classify_exception(error).reason == f"RuntimeError: {reason}"


@pytest.mark.parametrize("package", ["site-packages/library", "bexplore/torch"])
def test_the_user_s_line_goes_before_those_of_packages(tmp_path, package):
    folder = tmp_path / package
    folder.mkdir(parents=True)
    (folder / "called.py").write_text("raise ValueError('inside')\n")
    error = caught(runpy.run_path, str(folder / "called.py"))
    assert find_place(error).startswith(__file__)


def test_bexplore_and_python_are_no_place():
    from bexplore.errors import require

    place = find_place(caught(require, False, "a", "b"))
    assert place.startswith(__file__)
    assert sys.prefix not in place
