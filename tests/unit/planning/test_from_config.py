from __future__ import annotations

import pytest

from bexplore.host.accelerators import DEVICES
from bexplore.planning import from_config
from bexplore.planning.from_config import costs_of_config
from bexplore.planning.step_costs import peak_of
from tests.config_builders import Folder, sections


def record(**fields):
    """A trace of a job that fits up to 16 samples."""
    given = {
        "device": "cpu",
        "device_name": "",
        "num_parameters": 1000,
        "flops_per_sample": 1e9,
        "hardware_flops_per_sample": 2e9,
        "max_micro_batch_size": 16,
        "notes": (),
        "settings": {"precision": "float32", "activation_checkpointing": "none"},
        "operations_over_file": 1.0,
    }
    return given | fields


@pytest.fixture
def costs(tmp_path, monkeypatch):
    """Costs of a file by the traces that a test makes up."""

    def of(*records):
        explore = {"settings": {"activation_checkpointing": ["none", "full"]}}
        config = Folder(tmp_path).load(sections(explore=explore))
        monkeypatch.setattr(from_config, "trace_variants", lambda *_, **__: list(records))
        return costs_of_config(config, device_name="h100", model_dir=None)

    return of


def test_settings_of_another_precision_are_left_out_since_operations_do_not_tell_their_speed(costs):
    other = record(settings={"precision": "bfloat16", "activation_checkpointing": "none"})
    more = record(settings={"precision": "float32", "activation_checkpointing": "full"}, operations_over_file=1.3)
    found = costs(record(), other, more)
    assert [one.time_share for one in found.other_settings] == [1.3]
    assert "settings of another precision are left out" in " ".join(found.notes)
    assert "precision" not in " ".join(costs(record(), more).notes)


def test_a_job_of_which_no_sample_fits_says_so(costs):
    assert "not even one sample fits" in " ".join(costs(record(max_micro_batch_size=None)).notes)
    assert costs(record()).notes == ()


@pytest.mark.parametrize("key", DEVICES)
def test_a_plan_has_the_name_and_the_peak_of_each_device_of_the_table(tmp_path, monkeypatch, key):
    config = Folder(tmp_path).load(sections(explore={"precision": "bfloat16"}))
    monkeypatch.setattr(from_config, "trace_once", lambda *_, **__: record())
    found = costs_of_config(config, device_name=key, model_dir=None)

    assert found.device_name == DEVICES[key].name
    assert found.peak_flops_per_s == peak_of(config.job, DEVICES[key].bfloat16_flops_per_s)
