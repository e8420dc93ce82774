"""A whole exploration of settings and sizes together, on a machine with a known answer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bexplore.actions.apply import BatchSizeRule, plan_edit
from bexplore.api import explore
from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.engine.runner import RunnerSettings
from bexplore.errors import NothingFitsError
from bexplore.exploration import job as module
from bexplore.exploration.base import ExploreOptions
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.run.event_records import event_record
from bexplore.run.events import AlreadyFinished, Finished, Planned, Recommended, Traced
from bexplore.run.fingerprint import search_settings
from bexplore.run.selection import Selection
from bexplore.search.result import ProbeFinished
from tests.unit.exploration.variant_builders import GIB, trace

# Of a sample, GiB and the share of the speed, by what is recomputed. The machine saturates near 30 samples.
MEMORY = {"none": 1.0, "selective": 0.7, "full": 0.25}
SPEED = {"none": 1.0, "selective": 0.9, "full": 0.8}
FIXED_GIB = 0.5
LISTS = "{activation_checkpointing: [none, selective, full]}"
JOB = """\
train_input: {{batch_size: 64, micro_batch_size: explore}}
model: {{vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}}
explore: {{device: cpu, memory_budget: {budget}, max: 32, tolerance: 0.05, settings: {lists}{more}}}
"""


def needed_gib(kept: str, size: int) -> float:
    return FIXED_GIB + MEMORY[kept] * size


def samples_per_s(kept: str, size: int) -> float:
    return SPEED[kept] * 1000.0 * size / (size + 30.0)


class FakeWorkers:
    """Processes that are not there."""

    def __init__(self, *_arguments, **_options) -> None: ...

    def device_info(self, device: str, **_options) -> dict:
        return {"device": device, "free_memory_bytes": None, "total_memory_bytes": None}

    def __enter__(self) -> FakeWorkers:
        return self

    def __exit__(self, *_exception: object) -> None: ...

    def close(self) -> None: ...


class FakeRunner:
    """Stands for `EngineRunner`; remembers each probe with its job."""

    probes: list[tuple[str, Probe]] = []  # noqa: RUF012  # emptied by the fixture
    worker_pid = None

    def __init__(self, settings: RunnerSettings, **_options) -> None:
        self.settings = settings
        self.job = settings.job

    def __call__(self, probe: Probe) -> Observation:
        kept, size = self.job.activation_checkpointing, probe.micro_batch_size
        self.probes.append((kept, probe))
        facts = {"memory_budget_bytes": self.settings.budget_bytes, "elapsed_s": 1.0}
        if needed_gib(kept, size) * GIB > self.settings.budget_bytes:
            return Observation(probe=probe, outcome=Outcome.OUT_OF_MEMORY, reason="too big", **facts)
        seconds = size / samples_per_s(kept, size)
        times = tuple(seconds * wobble for wobble in (1.0, 1.002, 0.998, 1.001, 0.999)[: probe.max_passes])
        peak = round(needed_gib(kept, size) * GIB)
        return Observation(
            probe=probe, outcome=Outcome.MEASURED, pass_times_s=times, peak_memory_bytes=peak, num_graphs=1, **facts
        )

    def prepare(self, probe: Probe) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...

    def compare_eager(self, **_options) -> None: ...

    def gradient_equivalence(self, **_options) -> dict:
        return {"message": f"compared with {self.job.activation_checkpointing}"}

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *_exception: object) -> None: ...


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """The machine: workers and traces that are functions of what is recomputed."""

    def traces(config: Config, *_arguments, **_options):
        jobs = [variant.job for variant in config.variants] or [config.job]
        kept = [job.activation_checkpointing for job in jobs]
        return [trace(FIXED_GIB, MEMORY[one], flops=100.0 / SPEED[one]) for one in kept]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "EngineRunner", FakeRunner)
    monkeypatch.setattr(module, "open_runner", FakeRunner)
    monkeypatch.setattr(module, "Workers", FakeWorkers)
    monkeypatch.setattr(module, "trace_all", traces)
    monkeypatch.setattr(module, "begin", lambda *_arguments: None)
    monkeypatch.setattr(FakeRunner, "probes", [])


def job(folder: Path, *, budget: str = "8.6GiB", lists: str = LISTS, more: str = "") -> Config:
    path = folder / "job.yaml"
    path.write_text(JOB.format(budget=budget, lists=lists, more=more))
    return load_config(path)


def finished(config: Config, **options) -> Finished:
    *_, last = explore(config, ExploreOptions(**options))
    assert isinstance(last, Finished)
    return last


def test_the_fastest_settings_and_size_that_fit_are_found_together(tmp_path):
    result = finished(job(tmp_path)).result

    assert result.choice.settings == {"activation_checkpointing": "full"}
    assert result.choice.variant == 2
    best = samples_per_s("full", 32)  # the file's own fit up to size 8
    assert samples_per_s("full", result.micro_batch_size) >= 0.95 * best
    low, high = result.choice.settings_over_file_interval
    assert low < result.choice.settings_over_file < high
    assert low < best / samples_per_s("none", 8) < high
    assert result.choice.operations_over_file == pytest.approx(1.25)
    assert result.choice.changes_training == ()
    assert result.checks.gradient_equivalence == {"message": "compared with full"}


def test_the_front_holds_points_that_ran_and_predicted_ones(tmp_path):
    result = finished(job(tmp_path)).result
    front = result.choice.pareto_front

    assert {point.ran for point in front} == {True, False}
    assert [point.peak_memory_bytes for point in front] == sorted(point.peak_memory_bytes for point in front)
    for point in front:
        kept = point.settings["activation_checkpointing"]
        assert point.peak_memory_bytes == pytest.approx(needed_gib(kept, point.micro_batch_size) * GIB, rel=0.01)
    recommended = next(point for point in front if point.micro_batch_size == result.micro_batch_size)
    assert recommended.ran


@pytest.mark.parametrize(
    ("more", "max_probes", "score"),
    [("", 28, 95), (", effort: quick", 20, 87), (", max_probes: 5", 5, 95), (", target_confidence: 80", 28, 80)],
)
def test_a_search_over_settings_goes_on_for_longer_but_for_limits_of_the_file(tmp_path, more, max_probes, score):
    settings = search_settings(job(tmp_path, more=more))
    assert (settings.max_probes, settings.target_confidence) == (max_probes, score)


def test_events_and_journal_name_the_settings_of_each_probe(tmp_path):
    events = list(explore(job(tmp_path)))
    plan, traced = (next(event for event in events if isinstance(event, kind)) for kind in (Planned, Traced))
    probes = [event.observation for event in events if isinstance(event, ProbeFinished)]
    last = [event for event in events if isinstance(event, Recommended)][-1]
    run = events[-1].run

    assert plan.notices[-1].startswith(
        "3 combinations of settings, the file's own first: activation_checkpointing=none"
    )
    assert plan.max_probes == 16 + 12
    assert [one["max_micro_batch_size"] for one in traced.variants] == [8, 11, 32]
    for item, (kept, probe) in zip(probes, FakeRunner.probes, strict=True):
        assert event_record(ProbeFinished(observation=item))["settings"] == {"activation_checkpointing": kept}
        assert item.probe == probe
    assert [item.probe.variant for item in run.journal.read()] == [item.probe.variant for item in probes]
    assert (last.name, last.settings) == ("activation_checkpointing=full", {"activation_checkpointing": "full"})
    assert json.loads((run.directory / "result.json").read_text())["settings"] == last.settings


def test_the_final_answer_runs_exactly_with_its_settings_in_a_folder_of_their_own(tmp_path, monkeypatch):
    folders = []
    init = FakeRunner.__init__
    monkeypatch.setattr(
        FakeRunner, "__init__", lambda self, settings, **_: (folders.append(settings), init(self, settings))[1]
    )
    last = finished(job(tmp_path))
    verified = [(kept, probe.micro_batch_size) for kept, probe in FakeRunner.probes if probe.purpose == "verify"]

    assert verified[-1] == ("full", last.result.micro_batch_size)
    assert last.result.program.compilation == "exact"
    assert [one.run_dir for one in folders] == [
        last.run.directory,
        last.run.directory / "variant_1",
        last.run.directory / "variant_2",
    ]


def test_a_job_that_fits_at_no_size_with_its_own_settings_is_answered_with_others(tmp_path):
    result = finished(job(tmp_path, budget="1.3GiB")).result

    assert result.choice.settings["activation_checkpointing"] in ("selective", "full")
    assert result.choice.settings_over_file is None
    assert result.choice.operations_over_file > 1.0
    assert result.choice.base_variant > 0


def test_a_job_that_fits_with_no_settings_is_refused(tmp_path):
    with pytest.raises(NothingFitsError):
        finished(job(tmp_path, budget="300MiB"))


def test_what_cannot_fit_is_told_and_never_run(tmp_path):
    events = list(explore(job(tmp_path, budget="1.1GiB")))
    traced = next(event for event in events if isinstance(event, Traced))

    assert [one.name for one in traced.left_out] == ["activation_checkpointing=selective"]
    assert "needs 1.20 GiB by the trace; the budget is 1.10 GiB" in traced.left_out[0].reason
    assert {kept for kept, _ in FakeRunner.probes} <= {"none", "full"}


def test_auto_is_a_plain_exploration_where_memory_does_not_bind(tmp_path):
    events = list(explore(job(tmp_path, budget="64GiB", lists="auto", more=", compile: false")))
    result = events[-1].result

    assert (result.choice.settings, result.choice.pareto_front, result.choice.variant) == ({}, (), 0)
    assert {kept for kept, _ in FakeRunner.probes} == {"none"}
    assert next(event for event in events if isinstance(event, Traced)).variants == ()


def test_a_finished_exploration_is_not_run_again_and_other_settings_are_another(tmp_path):
    finished(job(tmp_path))
    count = len(FakeRunner.probes)

    (again,) = explore(job(tmp_path))
    assert isinstance(again, AlreadyFinished)
    assert again.result.choice.settings == {"activation_checkpointing": "full"}
    assert len(FakeRunner.probes) == count
    plan = next(iter(explore(job(tmp_path, lists="{activation_checkpointing: [none, full]}"))))
    assert any(line.startswith("variants.activation_checkpointing=selective") for line in plan.changes)


def test_an_interrupted_exploration_goes_on_with_the_variants_that_it_began_with(tmp_path):
    config = job(tmp_path)
    stops = iter([None] * 4 + ["interrupted"] * 99)
    first = finished(config, should_stop=lambda: next(stops))
    known = [probe for _, probe in FakeRunner.probes]
    assert (first.result.search.stop_reason, len(known)) == ("interrupted", 4)

    events = list(explore(config))
    resumed = events[-1].result

    assert next(event for event in events if isinstance(event, Planned)).num_known_probes == 4
    assert events[-1].run.directory == first.run.directory
    assert [item.probe for item in first.run.journal.read()][:4] == known
    assert resumed.choice.settings == finished(config, fresh=True).result.choice.settings
    assert resumed.search.num_probes == len(first.run.journal.read())


def test_a_resumed_run_keeps_its_variants_whatever_would_be_chosen_now(tmp_path, monkeypatch):
    config = job(tmp_path)
    stops = iter([None] * 2 + ["interrupted"] * 99)
    finished(config, should_stop=lambda: next(stops))
    monkeypatch.setattr(module, "select_variants", lambda traced, **_options: Selection(searched=tuple(traced[:1])))

    traced = next(event for event in explore(config) if isinstance(event, Traced))

    assert len(traced.variants) == 3


def test_the_answer_is_written_with_its_settings_and_is_then_the_files_own(tmp_path):
    config = job(tmp_path)
    finished(config)

    edit = plan_edit(config, batch_size=BatchSizeRule.KEEP)

    assert edit.settings == {"activation_checkpointing": "full"}
    (tmp_path / "job.yaml").write_bytes(edit.file.after)
    applied = load_config(tmp_path / "job.yaml")
    assert applied.job == dataclasses.replace(config.job, activation_checkpointing="full")
    assert plan_edit(applied, batch_size=BatchSizeRule.KEEP).diff == ""


def test_a_second_answer_that_keeps_the_batch_size_has_the_settings_of_the_first(tmp_path):
    result = finished(job(tmp_path)).result

    assert result.batch.keeps_batch_size is not None
    assert 64 % result.batch.keeps_batch_size.micro_batch_size == 0
    of_second = [kept for kept, probe in FakeRunner.probes if probe.purpose == "keep_batch_size"]
    assert set(of_second) <= {"full"}


def test_a_plan_of_a_dry_run_names_the_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "recall_or_trace", lambda *_arguments, **_options: trace(FIXED_GIB))
    (plan,) = explore(job(tmp_path), ExploreOptions(dry_run=True))

    assert plan.run is None
    assert plan.notices[-1].startswith("3 combinations of settings")
    assert plan.max_probes == 28


def test_another_precision_is_told_in_the_plan_and_in_the_result(tmp_path):
    events = list(explore(job(tmp_path, lists="{precision: [float32, bfloat16]}")))
    plan = next(event for event in events if isinstance(event, Planned))

    assert (
        "precision bfloat16 instead of float32 changes the training, which explore.settings allows" in plan.notices[-1]
    )
    result = events[-1].result
    is_other = result.choice.settings["precision"] == "bfloat16"
    assert result.choice.changes_training == (("precision bfloat16 instead of float32",) if is_other else ())


def test_a_torch_that_was_not_tested_is_one_warning_of_the_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "package_version", lambda name: "2.99.0+cpu")
    events = list(explore(job(tmp_path)))
    warned = [text for event in events for text in getattr(event, "warnings", ()) if "2.99.0" in text]
    warned += [text for text in events[-1].result.warnings if "2.99.0" in text]
    assert len(warned) == 1 and "bexplore doctor" in warned[0]
