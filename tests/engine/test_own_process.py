"""The final answer of a job without a compiler on a CPU: run in a process of its own, as the training will be."""

from __future__ import annotations

import json
import shutil

from bexplore.api import explore
from bexplore.exploration.base import ExploreOptions
from bexplore.job import CompileSettings
from bexplore.measurement.probe import Compilation, Outcome, Probe, Purpose
from tests.builders import JOBS, imported_job

PATHS = {"model": "programs:perceptron", "batch": "programs:samples", "loss": "programs:cross_entropy"}


def test_an_eager_answer_on_a_cpu_is_verified_in_a_process_of_its_own(tmp_path):
    config = {
        "train_input": {"batch_size": 16, "micro_batch_size": {"explore": {"min": 1, "max": 4}}},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.001},
        "explore": {"device": "cpu", "memory_budget": "1GiB", "compile": False, "workload": PATHS, "max_probes": 4},
    }
    shutil.copy(JOBS / "programs.py", tmp_path)
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(config))

    events = list(explore(path, ExploreOptions(model_dir=str(tmp_path / "runs"))))

    result = events[-1].result
    ran = [event.observation for event in events if hasattr(event, "observation")]
    assert {one.program_name for one in ran} == {"eager"}
    verified = [one for one in ran if one.probe.purpose is Purpose.VERIFY]
    search = [one for one in ran if one.probe.purpose is not Purpose.VERIFY]
    assert {one.probe.compilation for one in search} == {Compilation.SHARED}
    assert {one.probe.compilation for one in verified} == {Compilation.EAGER}
    assert not {one.worker for one in verified} & {one.worker for one in search}
    assert len(search) <= 3  # one of the four is kept for the answer; where that falls behind another, that one follows
    assert result.program.compilation == "eager"
    assert result.micro_batch_size in {one.micro_batch_size for one in verified}
    measured = [one.samples_per_s for one in ran if one.micro_batch_size == result.micro_batch_size]
    assert (
        0.7 * min(measured) <= result.answer.samples_per_s <= 1.3 * max(measured)
    )  # an estimate, while others may be busy
    assert result.program.exact_over_shared is not None


def test_a_job_without_compiler_runs_eagerly_however_it_ends(run_on):
    runner = run_on(imported_job("shape_error", compile=CompileSettings(enabled=False)))

    observation = runner(Probe(number=0, micro_batch_size=4, compilation=Compilation.SHARED))

    assert observation.outcome is not Outcome.MEASURED
    assert observation.program_name == "eager"
