"""`find_fastest_batch_size`: a decorator of a training function whose first argument is its batch size."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from bexplore.errors import UserInputError
from bexplore.start_again import GivenSize, ProgramRequest, explore_program, read_given_size, show_hints

_Rest = ParamSpec("_Rest")  # the parameters after the size
_Result = TypeVar("_Result")


@overload
def find_fastest_batch_size(
    function: Callable[Concatenate[int, _Rest], _Result],
    *,
    writes_are_fine: bool = False,
    model_dir: str | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Callable[_Rest, _Result]: ...


@overload
def find_fastest_batch_size(
    function: None = None,
    *,
    writes_are_fine: bool = False,
    model_dir: str | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Callable[[Callable[Concatenate[int, _Rest], _Result]], Callable[_Rest, _Result]]: ...


@show_hints()
def find_fastest_batch_size(
    function: Callable[..., Any] | None = None,
    *,
    writes_are_fine: bool = False,
    model_dir: str | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Callable[..., Any]:
    """Call a training function with the micro-batch size that is fastest, as found by probes in other processes.

    A call starts this program again for each probe, ends it after some steps, then calls the function with the winner.
    The start runs all that stands before the call, so the call should come early, and before anything is on the GPU.

        @bexplore.find_fastest_batch_size(max=512)
        def train(batch_size, output_dir="out"): ...

        train()

    Args:
        function: A function that takes the batch size first, and is called without it.
        writes_are_fine: Whether a probe may write where the function writes. Else the function takes `output_dir`,
            which is a temporary folder in a probe.
        model_dir: Folder of the results; None for `model_dir`. A finished exploration is not run again.
        fresh: Start over, even if there is an earlier run.
        settings: Settings of the `explore` section, such as `min`, `max`, `tolerance` and `effort`.

    Raises:
        UserInputError: The function neither takes `output_dir` nor may write where it likes.
    """
    if function is None:
        return functools.partial(
            find_fastest_batch_size, writes_are_fine=writes_are_fine, model_dir=model_dir, fresh=fresh, **settings
        )
    name, signature = function.__qualname__, inspect.signature(function)
    if "output_dir" not in signature.parameters and not writes_are_fine:
        raise UserInputError(
            f"{name} does not take output_dir, so each probe may write over your checkpoints and logs",
            hint="let it write to an argument output_dir, or consent: find_fastest_batch_size(writes_are_fine=True)",
        )
    request = ProgramRequest(
        what=f"{function.__module__}.{name}",
        settings=settings,
        writes_are_fine=writes_are_fine,
        model_dir=model_dir,
        fresh=fresh,
    )

    @functools.wraps(function)
    def with_size(*args: Any, **kwargs: Any) -> Any:
        given = read_given_size() or GivenSize(micro_batch_size=explore_program(request).micro_batch_size or 0)
        bound = signature.bind(given.micro_batch_size, *args, **kwargs)
        if given.output_dir is not None and not writes_are_fine:
            bound.arguments["output_dir"] = given.output_dir
        return function(*bound.args, **bound.kwargs)

    return with_size
