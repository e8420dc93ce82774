"""The example of a whole step, in a worker."""

from __future__ import annotations

from bexplore.config.load import load_config
from bexplore.measurement.probe import Outcome, Probe
from bexplore.run.fingerprint import describe
from tests.builders import ROOT

CONFIGS = ROOT / "configs"


def test_the_engine_runs_the_example_and_names_its_optimizers(run_on):
    config = load_config(CONFIGS / "own_step.yaml").on_device("cpu")

    observation = run_on(config.job)(Probe(number=0, micro_batch_size=16))

    assert observation.outcome is Outcome.MEASURED, observation.reason
    assert observation.details["optimizers"] == ["torch.optim.Adam", "torch.optim.SGD"]
    assert observation.details["unfused_optimizers"] == ["torch.optim.Adam", "torch.optim.SGD"]
    assert "AdamW" not in describe(config)
    assert "optimizers of its own" in describe(config)
