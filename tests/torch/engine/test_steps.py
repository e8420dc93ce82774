"""How passes and updates are timed on a device that computes while the host goes on; and a scaler that skips."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.engine.worker.session import Session
from bexplore.engine.worker.steps import MAX_BACK_TO_BACK, CompiledEachPassError, Steps, with_dense_gradients
from bexplore.engine.worker.timing import Timed, run_pass, time_size
from bexplore.engine.worker.torch_private import around_compilations, callback_handler
from bexplore.job import CompileSettings, Job, TorchSettings
from bexplore.measurement.probe import Compilation, Probe
from bexplore.workloads import Workload, build
from tests.builders import JOBS, imported_job


@dataclass
class FakeCuda:
    """Two devices with a stream each, which compute what is queued for them; device 0 is the current one.

    Attributes:
        host_s: The time of the host.
        free_at_s: By device, when it has computed all that it was given.
        events: How many were recorded.
    """

    host_s: float = 0.0
    free_at_s: dict[int, float] = field(default_factory=lambda: {0: 0.0, 1: 0.0})
    events: int = 0

    def queue(self, device: int, *, host_s: float, device_s: float) -> None:
        """The host works, then gives the device work."""
        self.host_s += host_s
        self.free_at_s[device] = max(self.free_at_s[device], self.host_s) + device_s

    def synchronize(self, device: torch.device | None = None) -> None:
        index = (device.index if device else 0) or 0
        self.host_s = max(self.host_s, self.free_at_s[index])

    def current_stream(self, device: torch.device | None = None) -> int:
        return (device.index if device else 0) or 0


class FakeEvent:
    cuda: FakeCuda

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: int | None = None) -> None:
        self.cuda.events += 1
        self.at_s = max(self.cuda.host_s, self.cuda.free_at_s[stream or 0])

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at_s - self.at_s) * 1e3


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Event", type("Event", (FakeEvent,), {"cuda": fake}))
    monkeypatch.setattr(torch.cuda, "synchronize", fake.synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", fake.current_stream)
    return fake


def steps_of(
    forward_backward: Callable[..., torch.Tensor],
    update: Callable[[], None] = lambda: None,
    *,
    device: str = "cpu",
    modules: Iterable[nn.Module] = (),
    optimizers: Iterable[torch.optim.Optimizer] = (),
) -> Steps:
    workload = Workload(
        job=Job(workload="imported", device=device),
        loss_module=None,
        compiled_modules=list(modules),
        make_batch=lambda size: size,
        forward_backward=forward_backward,
        update=update,
        optimizers=list(optimizers),
    )
    return Steps(workload, torch.device(device))


def steps_on(cuda: FakeCuda, device: str, *, host_s: float, device_s: float, update_s: float = 0.0) -> Steps:
    """Passes that the host prepares for so long before the device computes them."""
    index = torch.device(device).index or 0

    def forward_backward(_batch: int, *, synchronize: bool) -> torch.Tensor:
        cuda.queue(index, host_s=host_s, device_s=device_s)
        return torch.tensor(1.0)

    return steps_of(forward_backward, lambda: cuda.queue(index, host_s=host_s, device_s=update_s), device=device)


def test_a_pass_is_timed_on_the_stream_of_its_own_device(cuda):
    steps = steps_on(cuda, "cuda:1", host_s=0.001, device_s=0.080)

    assert steps.time_pass(4) == pytest.approx(0.081)
    assert cuda.host_s == pytest.approx(0.081)  # and it was waited for


def compiling_steps(cuda: FakeCuda, compiled_passes: Iterable[int]) -> tuple[Steps, list[int]]:
    """Passes of 80 ms, and the numbers of those that ran; the compiler runs in some of them, for a second each."""
    ran: list[int] = []

    def forward_backward(_batch: int, *, synchronize: bool) -> torch.Tensor:
        ran.append(len(ran))
        if ran[-1] in compiled_passes:
            steps.note_compilation()
            cuda.queue(0, host_s=1.0, device_s=0.0)
        cuda.queue(0, host_s=0.0, device_s=0.08)
        return torch.tensor(1.0)

    steps = steps_of(forward_backward, device="cuda:0")
    return steps, ran


def test_a_pass_in_which_the_compiler_ran_is_repeated_and_left_out(cuda):
    steps, ran = compiling_steps(cuda, compiled_passes={1, 2})

    assert [steps.time_pass(4) for _ in range(3)] == pytest.approx([0.08] * 3)
    assert ran == [0, 1, 2, 3, 4]
    assert steps.num_repeated == 2


def test_where_the_compiler_runs_in_each_pass_none_is_timed(cuda):
    steps, ran = compiling_steps(cuda, compiled_passes=range(100))

    with pytest.raises(CompiledEachPassError, match="in each of 4 passes"):
        steps.time_pass(4)
    assert len(ran) == 4


def test_an_update_in_which_the_compiler_ran_is_no_timing():
    def update() -> None:
        if not updates:
            steps.note_compilation()
        updates.append(0.0)

    updates: list[float] = []
    steps = steps_of(lambda batch: torch.tensor(1.0), update)

    assert len(steps.time_updates(3, 4)) == 2


def test_short_passes_run_back_to_back_to_keep_the_host_ahead(cuda):
    steps = steps_on(cuda, "cuda", host_s=0.004, device_s=0.005)

    alone = run_pass(steps, 4)
    timed = time_size(
        steps,
        {4: 4},
        Probe(number=0, micro_batch_size=4, max_passes=10),
        budget_s=4.0,
        usual_pass_s={4: alone.seconds},
        report=lambda **_: None,
    )

    assert alone.seconds == pytest.approx(0.009)
    assert timed.details["num_back_to_back"][:2] == [6, 9]
    assert timed.pass_times_s[1] == pytest.approx(0.005 + 0.004 / 9)
    assert len(timed.pass_times_s) <= 8  # four rounds of a tenth of a second, not so much of each mean
    assert sum(timed.details["num_back_to_back"]) * 0.005 >= 0.25


def test_rounds_have_passes_back_to_back_too(cuda):
    steps = steps_on(cuda, "cuda", host_s=0.004, device_s=0.005)

    timed: Timed = time_size(
        steps,
        {8: 8, 4: 4},
        Probe(number=1, micro_batch_size=8, interleaved_with=(4,)),
        usual_pass_s={8: 0.005, 4: 0.005},
        budget_s=0.5,
        report=lambda **_: None,
    )

    assert set(timed.details["num_back_to_back"]) <= {9, 10}
    assert timed.interleaved_times_s[4][0] == pytest.approx(0.0054)


def test_long_passes_and_those_of_a_cpu_are_timed_one_by_one(cuda):
    assert steps_on(cuda, "cuda", host_s=0.0, device_s=0.0).num_back_to_back(0.06) == 1
    assert steps_on(cuda, "cuda", host_s=0.0, device_s=0.0).num_back_to_back(0.0) == 1
    assert steps_on(cuda, "cuda", host_s=0.0, device_s=0.0).num_back_to_back(1e-6) == MAX_BACK_TO_BACK
    assert steps_on(cuda, "cpu", host_s=0.0, device_s=0.0).num_back_to_back(0.001) == 1


def test_an_update_is_timed_behind_a_pass_as_in_training(cuda):
    steps = steps_on(cuda, "cuda:1", host_s=0.004, device_s=0.060, update_s=0.003)

    assert steps.time_updates(3, 4) == pytest.approx([0.003] * 3)
    assert cuda.events == 6


def scaled() -> tuple[Steps, torch.optim.Optimizer, list[int]]:
    """Passes with a gradient scaler, whose first gradients overflow; its optimizer, and what was run."""
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(layer.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    ran: list[int] = []

    def forward_backward(batch: int, *, synchronize: bool) -> torch.Tensor:
        ran.append(batch)
        loss = layer(torch.full((1, 2), 1e35)).sum()  # times 2^16 its gradient is infinite, times 2^11 it is not
        scaler.scale(loss).backward()
        return loss.detach()

    def update() -> None:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return steps_of(forward_backward, update, modules=[layer], optimizers=[optimizer]), optimizer, ran


def test_updates_go_on_until_the_optimizer_has_its_states():
    steps, optimizer, ran = scaled()

    steps.forward_backward(4)
    steps.first_update(4)

    assert len(optimizer.state) == 2
    assert len(ran) == 6  # from 2^16 down to 2^11


def test_what_is_compiled_first_ends_with_an_update_that_was_not_skipped():
    job = Job(
        workload="imported",
        model={"step": "programs:scaled_step"},
        import_root=str(JOBS),
        compile=CompileSettings(enabled=False),
    )
    session = Session(
        RunProbe(
            job=job,
            probe=Probe(number=0, micro_batch_size=1, compilation=Compilation.EXACT),
            shared_mode=SharedMode.NESTED,
        ),
        report=lambda **_: None,
    )

    session.prepare(4)

    assert len(session.workload.optimizers[0].state) == 2


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_every_pass_of_a_built_job_has_its_settings_of_torch(precision, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)  # put back after the test
    before = torch.get_float32_matmul_precision()
    try:
        chosen = TorchSettings(float32_matmul_precision=precision, cudnn_benchmark=True)
        build(imported_job(torch=chosen))
        build(imported_job())  # leaves open what it does not name
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cudnn.benchmark
    finally:
        torch.set_float32_matmul_precision(before)


def test_an_optimizer_without_states_needs_one_update_only():
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    passes = []

    def forward_backward(batch: int, *, synchronize: bool) -> torch.Tensor:
        passes.append(batch)
        layer(torch.ones(1, 2)).sum().backward()
        return torch.tensor(0.0)

    steps = steps_of(forward_backward, optimizer.step, modules=[layer], optimizers=[optimizer])
    steps.forward_backward(4)
    steps.first_update(4)

    assert passes == [4]


def test_zeros_stand_for_no_sparse_gradient():
    dense, sparse = torch.nn.Linear(2, 2), torch.nn.Embedding(4, 2, sparse=True)
    dense(sparse(torch.tensor([1]))).sum().backward()
    gradients = [(parameter, parameter.grad) for parameter in (*dense.parameters(), *sparse.parameters())]

    assert with_dense_gradients(gradients) is None
    assert with_dense_gradients(gradients[:2]) == list(dense.parameters())


def test_what_is_called_around_a_compilation_is_not_compiled_itself():
    """The compiler holds a lock while it calls it, for which a compilation would wait for ever."""
    was_compiled = []

    def note() -> None:
        was_compiled.append(torch.compiler.is_compiling())

    with around_compilations(note, note):
        callbacks = callback_handler.start_callbacks[-1], callback_handler.end_callbacks[-1]

        def call(x: torch.Tensor) -> torch.Tensor:
            for callback in callbacks:
                callback(None)
            return x + 1

        compiled = torch.compile(call, backend="eager")
        compiled(torch.zeros(1))
        was_compiled.clear()  # of the compilation itself
        compiled(torch.zeros(1))
    assert was_compiled == [False, False]
