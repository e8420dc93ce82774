"""Whether a step of the user's own trains at all, and the example of one."""

from __future__ import annotations

import pytest

from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from bexplore.host.records import from_record
from bexplore.job import Job, Mode
from bexplore.measurement.probe import Outcome, Probe
from bexplore.run.fingerprint import describe
from tests.builders import ROOT, imported_job, step_job


def test_the_engine_refuses_a_step_without_gradients_at_the_first_probe(run_on):
    with pytest.raises(UserInputError, match="no parameter has a gradient"):
        run_on(step_job("NoBackward"))(Probe(number=0, micro_batch_size=1))


def test_a_step_that_ignores_its_batch_is_refused_with_enough_samples(run_on):
    runner = run_on(step_job("IgnoresItsBatch"))

    assert runner(Probe(number=0, micro_batch_size=1)).outcome is Outcome.MEASURED
    with pytest.raises(UserInputError, match="does not depend on its batch"):
        runner(Probe(number=1, micro_batch_size=8))


def test_a_check_that_fails_by_itself_leaves_what_was_measured(run_on):
    observation = run_on(imported_job(batch="filled_up_to_eight"))(Probe(number=0, micro_batch_size=8))

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert "a batch of 4 samples is needed" in observation.details["why_unchecked"]


def test_an_evaluation_has_nothing_to_train(run_on):
    job = imported_job(mode=Mode.EVAL)

    assert run_on(job)(Probe(number=0, micro_batch_size=8)).outcome is Outcome.MEASURED


@pytest.mark.on_device
def test_a_batch_of_another_size_fails_that_size_alone(run_on):
    runner = run_on(imported_job(batch="at_most_fifty"))

    assert runner(Probe(number=0, micro_batch_size=50)).outcome is Outcome.MEASURED
    refused = runner(Probe(number=1, micro_batch_size=64))

    assert refused.outcome is Outcome.CRASHED
    assert refused.reason == "a batch of 64 samples is needed, and it has a tensor of shape (50, 32)"
    assert refused.traceback_text == ""


@pytest.mark.parametrize("counts", [False, True])
def test_whether_the_samples_of_a_batch_are_seen_is_in_what_a_probe_tells(run_on, counts):
    job = imported_job(model="takes_graphs", batch="graphs", loss="as_it_is")
    count = {"samples_of": "programs:num_graphs"} if counts else {}
    job = from_record(Job, job.as_record() | {"model": job.model | count})

    observation = run_on(job)(Probe(number=0, micro_batch_size=8))

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert observation.details["samples_are_seen"] is counts


CONFIGS = ROOT / "configs"


def test_the_engine_runs_the_example_and_names_its_optimizers(run_on):
    config = load_config(CONFIGS / "own_step.yaml").on_device("cpu")

    observation = run_on(config.job)(Probe(number=0, micro_batch_size=16))

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert observation.details["optimizers"] == ["torch.optim.Adam", "torch.optim.SGD"]
    assert observation.details["unfused_optimizers"] == ["torch.optim.Adam", "torch.optim.SGD"]
    assert "AdamW" not in describe(config)
    assert "optimizers of its own" in describe(config)
