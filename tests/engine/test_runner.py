"""The engine, with real workers: what a probe measures, and how every kind of failure ends."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from pathlib import Path

import psutil
import pytest

from bexplore.engine.process.device_lock import LockHolder, device_lock
from bexplore.engine.process.pool import Workers
from bexplore.engine.runner import EngineRunner, RunnerSettings, begin
from bexplore.errors import UserInputError
from bexplore.job import CompileSettings, Job, Mode
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.run.event_records import probe_record
from tests.builders import DEVICE, ROOT, imported_job, step_job

MIB = 2**20


def probe(micro_batch_size: int, **fields) -> Probe:
    return Probe(number=0, micro_batch_size=micro_batch_size, max_passes=3, **fields)


def in_turn(folder: Path, job: Job, *probes: Probe, **fields) -> list[Observation]:
    """Run probes one after the other, for several tests, by one runner that has the device to itself."""
    settings = RunnerSettings(job=job, **{"run_dir": folder, "budget_bytes": 4 * 2**30} | fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BEXPLORE_LOCK_DIR", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        runner = EngineRunner(settings)
        try:
            return [runner(each) for each in probes]
        finally:
            runner.close()


@pytest.fixture(scope="module")
def shared_and_exact(tmp_path_factory) -> list[Observation]:
    """Size 4 and size 6, each with the shared program and then exactly."""
    compilations = (Compilation.SHARED, Compilation.EXACT)
    probes = [probe(size, compilation=compilation) for size in (4, 6) for compilation in compilations]
    return in_turn(tmp_path_factory.mktemp("run"), imported_job(), *probes)


@pytest.fixture(scope="module")
def refused_and_fitting(tmp_path_factory) -> list[Observation]:
    """Size 100, which does not fit, before anything else and again after size 1; size 2 at the end."""
    probes = [probe(size) for size in (100, 1, 100, 2)]
    return in_turn(tmp_path_factory.mktemp("run"), imported_job("greedy"), *probes, budget_bytes=512 * MIB)


def test_a_probe_times_passes_and_updates_apart_and_says_what_was_compiled(shared_and_exact):
    observation = shared_and_exact[0]

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert len(observation.pass_times_s) >= 3
    assert len(observation.update_times_s) == 3
    assert (observation.num_graphs, observation.num_graph_breaks, observation.num_recompiles) == (1, 0, 0)
    assert observation.compile_time_s > 0
    assert observation.loss == pytest.approx(1.4, abs=0.5)


@pytest.mark.on_device
def test_one_shared_compilation_serves_every_size_in_one_worker(run_on):
    runner = run_on(imported_job(backend="inductor"))

    observations = [runner(probe(size)) for size in (8, 1, 64)]

    mode, of_one_sample = ("unbacked", 0) if DEVICE == "cpu" else ("dynamic", 1)
    assert [o.num_graphs for o in observations] == [1, of_one_sample, 0]
    assert {o.worker for o in observations} == {0}
    assert observations[0].details["shared_mode"] == mode


def test_a_constant_of_the_batch_s_size_still_allows_one_compilation(run_on):
    runner = run_on(imported_job("masked", backend="inductor"))

    observations = [runner(probe(size)) for size in (4, 1)]

    assert [o.outcome for o in observations] == [Outcome.MEASURED] * 2, observations[0].reason
    assert [o.num_graphs for o in observations] == [1, 0]
    assert observations[0].details["shared_mode"] == "unbacked"


def test_repeated_blocks_are_compiled_once_as_a_nested_region(run_on):
    model = {"vocab_size": 64, "hidden_size": 32, "num_layers": 3, "num_heads": 2, "max_position_embeddings": 8}
    job = Job(workload="decoder", model=model, data={"sequence_length": 8}, sequence_length=8)
    runner = run_on(job)

    observations = [runner(probe(size)) for size in (1, 6)]

    assert [o.outcome for o in observations] == [Outcome.MEASURED] * 2, observations[0].reason
    assert [o.num_graphs for o in observations] == [1, 0]
    assert observations[0].details["shared_mode"] == "nested"


@pytest.mark.parametrize(
    ("model", "batch", "mode"), [("convolutional", "images", "unbacked"), ("normalized", "samples", "unbacked")]
)
def test_batch_statistics_do_not_keep_a_program_from_one_compilation(run_on, model, batch, mode):
    runner = run_on(imported_job(model, batch=batch, backend="inductor"))

    observations = [runner(probe(size)) for size in (2, 5, 16)]  # 16 is the side of an image too

    assert [o.outcome for o in observations] == [Outcome.MEASURED] * 3, observations[0].reason
    assert [o.num_graphs for o in observations] == [1, 0, 0]
    assert {o.worker for o in observations} == {0}
    assert observations[0].details["shared_mode"] == mode


@pytest.mark.on_device
def test_batch_statistics_of_one_value_fail_as_they_do_eagerly(run_on):
    runner = run_on(imported_job("normalized"))

    assert runner(probe(4)).outcome is Outcome.MEASURED
    refused = runner(probe(1))

    assert refused.outcome is Outcome.CRASHED
    assert "Expected more than 1 value per channel" in refused.reason


def test_an_exact_probe_gets_a_worker_and_a_program_of_its_own(shared_and_exact):
    shared, exact, _, other = shared_and_exact

    assert [o.worker for o in (shared, exact, other)] == [0, 1, 2]
    assert [o.num_graphs for o in (shared, exact, other)] == [1, 1, 1]


def test_the_shared_program_waits_aside_and_is_not_compiled_again(shared_and_exact):
    assert [o.worker for o in shared_and_exact[:3]] == [0, 1, 0]
    assert [o.num_graphs for o in shared_and_exact[:3]] == [1, 1, 0]


def test_a_shared_program_without_room_beside_the_next_is_given_up(run_on):
    runner = run_on(imported_job(), budget_bytes=2**50)

    observations = [runner(probe(4)), runner(probe(4, compilation=Compilation.EXACT)), runner(probe(6))]

    assert [o.worker for o in observations] == [0, 1, 2]


@pytest.mark.on_device
def test_what_is_compiled_ahead_of_the_first_probe_is_charged_to_it(run_on):
    runner = run_on(imported_job())
    runner.prepare(probe(4))

    first, second = runner(probe(4)), runner(probe(8))

    assert [o.worker for o in (first, second)] == [0, 0]
    assert [o.num_graphs for o in (first, second)] == [1, 0]
    assert first.compile_time_s > second.compile_time_s == 0
    assert first.start_time_s > second.start_time_s == 0
    assert first.elapsed_s > first.compile_time_s


def test_a_failure_ahead_of_the_first_probe_is_its_answer(run_on):
    runner = run_on(imported_job("shape_error"))
    runner.prepare(probe(4))

    broken, other = runner(probe(4)), runner(probe(8))

    assert broken.outcome is Outcome.CRASHED
    assert broken.worker == 0
    assert other.worker > 0


@pytest.mark.on_device
def test_what_was_begun_early_is_waited_for_and_not_done_again(run_on):
    runner = run_on(imported_job())
    begin(runner._workers, runner.settings, probe(4))
    runner.prepare(probe(4))

    first = runner(probe(4))

    assert (first.worker, first.num_graphs) == (0, 1)
    assert first.compile_time_s > 0


def test_what_was_begun_for_another_question_is_given_up(run_on):
    runner = run_on(imported_job())
    begin(runner._workers, dataclasses.replace(runner.settings, budget_bytes=2**30), probe(4))  # another limit
    runner.prepare(probe(4))

    assert runner(probe(4)).worker > 0


def test_nothing_begins_while_another_explorer_has_the_device(run_on):
    first, second = run_on(imported_job()), run_on(imported_job())
    begin(first._workers, first.settings, probe(4))
    begin(second._workers, second.settings, probe(4))
    assert second.worker_pid is None

    first.close()
    begin(second._workers, second.settings, probe(4))

    assert second.worker_pid is not None


def test_what_is_wrong_with_the_job_is_told_before_it_waits_for_others(run_on):
    heard = []
    job = imported_job("perceptrom")
    holder = LockHolder(folder="runs/of_another")
    with device_lock("cpu", holder=holder, waiting=print), pytest.raises(UserInputError, match="no 'perceptrom'"):
        run_on(job, on_progress=heard.append)(probe(4))

    assert [one["holder"] for one in heard if one.get("stage") == "lock"] == [str(holder)]
    assert str(holder).startswith(f"process {os.getpid()} in runs/of_another, since 20")


def test_the_process_that_waits_becomes_the_next_worker(run_on):
    runner = run_on(imported_job())
    runner.prepare(probe(4))
    waiting = runner._workers._spare.process.pid

    runner(probe(4, compilation=Compilation.EXACT))

    assert runner.worker_pid == waiting


@pytest.mark.on_device
def test_an_eager_probe_reports_no_graphs(run_on):
    observation = run_on(imported_job())(probe(4, compilation=Compilation.EAGER))

    assert observation.outcome is Outcome.MEASURED
    assert observation.num_graphs is None


@pytest.mark.on_device
def test_graph_breaks_are_counted_with_their_reasons(run_on):
    observation = run_on(imported_job("breaking"))(probe(4))

    assert observation.outcome is Outcome.MEASURED
    assert observation.num_graph_breaks == 1
    assert re.fullmatch(
        r"Call to `torch._dynamo.graph_break\(\)` at programs.py:\d+", observation.graph_break_reasons[0]
    )


def test_a_function_that_is_left_to_python_is_a_graph_break_too(run_on):
    observation = run_on(imported_job("reads_in_loop"))(probe(4))

    assert observation.num_graph_breaks == 1
    assert re.search(r"item\(\).* at programs.py:\d+", observation.graph_break_reasons[0])


@pytest.mark.on_device
def test_the_peak_has_weights_two_gradients_states_and_activations(run_on):
    width = 512
    job = Job(
        workload="decoder",
        model={"vocab_size": 64, "hidden_size": width, "num_layers": 1, "num_heads": 4, "max_position_embeddings": 8},
        data={"sequence_length": 8},
        sequence_length=8,
        compile=CompileSettings(enabled=False),
    )

    observation = run_on(job)(probe(1))

    num_parameters = 12 * width**2  # the block's matrices; embeddings and norms are small
    # Weights, accumulated gradients and two states of AdamW are 16 bytes; new gradients come one by one.
    assert 16 * num_parameters < observation.peak_memory_bytes < 22 * num_parameters


def test_what_the_process_holds_beside_its_tensors_is_told_apart(run_on, shared_and_exact):
    frugal, hoarder = shared_and_exact[0], run_on(imported_job("hoarder"))(probe(4))

    assert frugal.resident_memory_bytes < frugal.peak_memory_bytes + 24 * MIB
    assert hoarder.resident_memory_bytes > hoarder.peak_memory_bytes + 90 * MIB
    assert hoarder.needed_memory_bytes == hoarder.resident_memory_bytes


@pytest.mark.on_device
def test_evaluation_runs_forward_only_and_updates_nothing(run_on):
    observation = run_on(imported_job(mode=Mode.EVAL))(probe(4))

    assert observation.outcome is Outcome.MEASURED
    assert observation.update_times_s == ()


@pytest.mark.on_device
def test_a_vision_network_with_batch_statistics_is_measured(run_on):
    observation = run_on(imported_job("convolutional", batch="images"))(probe(4))

    assert observation.outcome is Outcome.MEASURED, observation.reason


@pytest.mark.on_device
def test_what_exceeds_the_budget_is_out_of_memory_and_the_next_probe_runs(refused_and_fitting):
    too_big, fits, *_ = refused_and_fitting

    assert too_big.outcome is Outcome.OUT_OF_MEMORY
    assert "memory" in too_big.reason
    assert fits.outcome is Outcome.MEASURED, fits.reason


@pytest.mark.on_device
def test_a_size_refused_memory_costs_no_worker_once_another_ran(refused_and_fitting):
    _, small, too_big, larger = refused_and_fitting

    assert [o.outcome for o in (small, too_big, larger)] == [Outcome.MEASURED, Outcome.OUT_OF_MEMORY, Outcome.MEASURED]
    assert len({o.worker for o in (small, too_big, larger)}) == 1
    assert larger.resident_memory_bytes < larger.peak_memory_bytes + 64 * MIB


@pytest.mark.parametrize(("sizes", "workers"), [((4, 2, 8), [0, 0, 1]), ((2, 6, 5), [0, 0, 1])])
def test_a_larger_size_gets_a_process_that_can_tell_if_it_fits(run_on, sizes, workers):
    """Size 4 uses up the address space of its process and runs; size 6 does so and is refused memory."""
    job = imported_job()
    runner = run_on(dataclasses.replace(job, model=job.model | {"model": "bugs:reserving"}), budget_bytes=512 * MIB)

    observations = [runner(probe(size, compilation=Compilation.EAGER)) for size in sizes]

    refused = [o.micro_batch_size for o in observations if o.outcome is Outcome.OUT_OF_MEMORY]
    assert refused == [size for size in sizes if size == 6], [o.reason for o in observations]
    assert observations[-1].outcome is Outcome.MEASURED, observations[-1].reason
    assert [o.worker for o in observations] == workers


def test_a_long_pass_is_not_run_twice_for_its_peak(run_on, tmp_path):
    def eager(number: int, size: int) -> Probe:
        return Probe(number=number, micro_batch_size=size, compilation=Compilation.EAGER, max_passes=1)

    def num_passes(worker: int) -> int:
        log = (tmp_path / "run" / "workers" / f"worker_{worker:03d}.log").read_text()
        return log.count("pass of 4")

    job = imported_job()
    runner = run_on(dataclasses.replace(job, model=job.model | {"model": "bugs:slow"}))
    runner(eager(0, 2))

    expected_to_be_long = runner(eager(1, 4))
    runner.rest()
    nothing_expected = runner(eager(2, 4))

    assert num_passes(1) == num_passes(0) + 1 > 2
    assert expected_to_be_long.peak_memory_bytes == nothing_expected.peak_memory_bytes > 0


def test_a_size_whose_peak_is_over_the_budget_costs_no_worker_either(run_on):
    runner = run_on(imported_job("greedy"), budget_bytes=190 * MIB)

    observations = [runner(probe(size)) for size in (1, 3, 2)]

    assert [o.outcome for o in observations] == [Outcome.MEASURED, Outcome.OUT_OF_MEMORY, Outcome.MEASURED]
    assert "over the budget" in observations[1].reason
    assert {o.worker for o in observations} == {0}


def test_a_refusal_below_a_size_that_ran_ends_the_process(run_on):
    runner = run_on(imported_job("greedy"), budget_bytes=512 * MIB, largest_measured=128)
    runner(probe(1))

    assert runner(probe(100)).outcome is Outcome.OUT_OF_MEMORY
    assert runner(probe(2)).worker == 1


@pytest.mark.on_device
def test_weights_that_are_refused_while_it_is_built_are_out_of_memory(run_on):
    observation = run_on(imported_job("colossus"), budget_bytes=512 * MIB)(probe(1))

    assert observation.outcome is Outcome.OUT_OF_MEMORY, observation.reason
    assert ("DefaultCPUAllocator" if DEVICE == "cpu" else "CUDA out of memory") in observation.reason


@pytest.mark.on_device
def test_a_worker_that_keeps_what_a_refused_step_took_is_ended(run_on):
    runner = run_on(imported_job("keeper"), budget_bytes=512 * MIB)

    outcomes = [runner(probe(size)) for size in (1, 100, 2)]

    assert [o.outcome for o in outcomes] == [Outcome.MEASURED, Outcome.OUT_OF_MEMORY, Outcome.MEASURED]
    assert [o.worker for o in outcomes] == [0, 0, 1]


def test_a_peak_over_the_budget_is_out_of_memory_whatever_the_host_has(run_on):
    observation = run_on(imported_job("greedy"), budget_bytes=150 * MIB)(probe(3))

    assert observation.outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.on_device
def test_a_bug_of_the_user_is_a_crash_with_its_place_never_out_of_memory(run_on):
    observation = run_on(imported_job("shape_error"))(probe(4))

    assert observation.outcome is Outcome.CRASHED
    assert "programs.py" in observation.traceback_text
    assert "shape" in observation.reason


def test_a_mistake_in_an_import_path_is_the_users_input_with_its_hint(run_on):
    with pytest.raises(UserInputError, match="perceptro") as error:
        run_on(imported_job("perceptro"))(probe(4))

    assert "perceptron" in error.value.hint


@pytest.mark.on_device
def test_a_bug_at_some_sizes_only_leaves_the_other_sizes_measurable(run_on):
    runner = run_on(imported_job("breaks_above_four"))

    broken, whole = runner(probe(8)), runner(probe(4))

    assert broken.outcome is Outcome.CRASHED
    assert "written for 4 samples" in broken.reason
    assert whole.outcome is Outcome.MEASURED


def test_a_loss_that_is_not_a_number_is_its_own_outcome(run_on):
    observation = run_on(imported_job("not_a_number"))(probe(4))

    assert observation.outcome is Outcome.NOT_FINITE
    assert "nan" in observation.reason


@pytest.mark.on_device
def test_a_compiler_that_is_not_there_is_compile_failed(run_on):
    observation = run_on(imported_job(backend="no_such_backend"))(probe(4, compilation=Compilation.EXACT))

    assert observation.outcome is Outcome.COMPILE_FAILED
    assert "no_such_backend" in observation.reason


@pytest.mark.on_device
@pytest.mark.promise("a program that exits, aborts, or is killed by a signal", "an outcome; the next worker starts")
def test_a_worker_that_dies_is_a_crash_and_the_next_worker_starts(run_on, monkeypatch):
    runner = run_on(imported_job("ends"))
    reasons = {"exit": "status 7", "SIGKILL": "SIGKILL", "SIGSEGV": "SIGSEGV", "SIGABRT": "SIGABRT"}

    for number, (how, reason) in enumerate(reasons.items()):
        monkeypatch.setenv("TEST_END", how)
        died = runner(probe(4))

        assert died.worker == number
        assert died.outcome is Outcome.CRASHED
        assert reason in died.reason
        if how == "exit":
            assert "last words of the worker" in died.traceback_text


@pytest.mark.on_device
@pytest.mark.promise("a program that hangs", "timed out; its process is gone")
def test_a_hang_is_timed_out_and_its_process_is_gone(run_on, monkeypatch):
    monkeypatch.setenv("TEST_END", "hang")
    runner = run_on(imported_job("ends"))
    runner.start()
    pid = runner.worker_pid

    observation = runner(probe(4, time_limit_s=3.0))

    assert observation.outcome is Outcome.TIMED_OUT
    assert not psutil.pid_exists(pid)


def test_the_worker_and_its_children_end_with_the_runner(run_on):
    runner = run_on(imported_job(backend="inductor"))
    runner(probe(2))
    tree = [psutil.Process(runner.worker_pid), *psutil.Process(runner.worker_pid).children(recursive=True)]

    runner.close()

    _, alive = psutil.wait_procs(tree, timeout=300)
    assert alive == []


@pytest.mark.promise("SIGKILL of the explorer of an own job", "its worker ends")
def test_the_worker_ends_when_the_explorer_is_killed(tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.builders import imported_job; from bexplore.engine.runner import EngineRunner, RunnerSettings\n"
        f"runner = EngineRunner(RunnerSettings(job=imported_job(), run_dir=Path({str(tmp_path)!r})))\n"
        "runner.start(); runner.await_started(); print(runner.worker_pid, flush=True); sys.stdin.read()"
    )
    explorer = psutil.Popen(
        [os.sys.executable, "-c", script],
        stdin=-1,
        stdout=-1,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    worker = psutil.Process(int(explorer.stdout.readline()))

    explorer.kill()
    explorer.wait()

    deadline = time.monotonic() + 60
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_device_that_is_not_there_is_the_users_input(tmp_path):
    with (
        Workers(tmp_path) as workers,
        pytest.raises(UserInputError, match=r"device 'cuda:77' cannot be used: torch .*sees"),
    ):
        workers.device_info("cuda:77")


@pytest.mark.on_device
def test_passing_the_recompile_limit_is_never_reported_as_compiled(run_on):
    runner = run_on(imported_job("recompiles"))

    observation = runner(Probe(number=0, micro_batch_size=4, max_passes=30, compilation=Compilation.EXACT))

    assert observation.outcome is Outcome.COMPILE_FAILED, observation.reason
    assert "recompile" in observation.reason.lower()


def test_a_pass_in_which_the_compiler_ran_is_run_again_and_is_no_timing(run_on):
    runner = run_on(step_job("LateAtTheSeventhPass"))

    observation = runner(dataclasses.replace(probe(4), max_passes=10))

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert observation.num_recompiles == 1
    assert observation.compile_time_s >= observation.details["compiler_s"]
    assert observation.details["num_repeated_passes"] == 1
    assert any("run again" in warning for warning in observation.warnings)


def test_a_program_compiled_in_each_pass_is_not_timed_and_says_why(run_on):
    observation = run_on(imported_job("compiles_in_each_pass"))(probe(4))

    assert observation.outcome is Outcome.COMPILE_FAILED
    assert "the compiler ran again in each of 4 passes" in observation.reason
    assert "self.passes" in observation.reason
    assert observation.worker == 0


@pytest.mark.on_device
def test_an_error_in_the_users_update_is_a_crash_with_its_own_place(run_on):
    observation = run_on(step_job("FailingUpdate"))(probe(4))

    assert observation.outcome is Outcome.CRASHED
    assert "written without an update" in observation.reason
    assert "programs.py" in observation.reason


@pytest.mark.on_device
def test_a_model_that_the_compiler_leaves_alone_is_reported_as_eager(run_on):
    observation = run_on(imported_job("uncompiled", loss="uncompiled_loss"))(probe(4))

    assert observation.ran_eagerly
    assert probe_record(observation)["compilation"] == "eager"
