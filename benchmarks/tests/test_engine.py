"""The engine's benchmark: its smallest measurement is real, and every state of a campaign gives a valid report."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import engine
from benchmarks import engine_measure as measure
from benchmarks.engine import Known, Unit
from benchmarks.engine_cost import finders
from benchmarks.engine_jobs import JOBS, sweep_sizes, truth_sizes
from benchmarks.engine_measure import MeasurementError, exhaustive_s
from benchmarks.engine_report import Truth, markdown, summary
from bexplore.config.load import load_config
from bexplore.engine.worker import session

TINY = """
train_input: {batch_size: 8, micro_batch_size: explore}
model:
    name: gpt2
    vocab_size: 64
    hidden_size: 16
    num_hidden_layers: 1
    num_heads: 2
    filter_size: 32
    max_position_embeddings: 8
    position_embedding_type: learned
optimizer: {optimizer_type: AdamW, learning_rate: 0.001}
runconfig: {model_dir: tiny}
explore: {device: cpu, memory_budget: 100MiB, compile: {backend: eager}}
"""

MACHINE = dict.fromkeys(
    ("device", "cores", "processor", "python", "torch", "transformers", "lightning", "accelerate"), "?"
)


def truth_record(pass_times_s: dict[int, list[float]]) -> dict:
    return {
        "kind": "truth",
        "sizes": {
            str(size): {"rounds": [[seconds] for seconds in times], "update_times_s": [0.01]}
            for size, times in pass_times_s.items()
        },
    }


def sweep_record() -> dict:
    rows = [
        {
            "micro_batch_size": size,
            "outcome": "measured",
            "start_time_s": 2.0,
            "compile_time_s": 10.0,
            "elapsed_s": 20.0,
            "pass_time_s": 0.1 * size,
            "update_time_s": 0.01,
            "num_passes": 4,
        }
        for size in (2, 4)
    ]
    return {"kind": "sweep", "sizes": rows, "total_s": 40.0}


def explore_record(**changes) -> dict:
    return {
        "kind": "explore",
        "micro_batch_size": 4,
        "confidence": 93,
        "stop_reason": "target_confidence",
        "largest_that_fits": 5,
        "base_micro_batch_size": 1,
        "first_recommendation_s": 9.0,
        "total_s": 16.0,
        "own_passes_s": 3.0,
        "stages_s": {"compile, shared": 5.0, "compile, exact": 5.0},
        "probes": [{}],
    } | changes


def unit(answer, **changes) -> Unit:
    def measure(_known):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Unit(**{"job": "small", "kind": "rival", "what": "other", "expected_s": 1.0, "measure": measure} | changes)


def whole(records: list[dict]) -> list[dict]:
    return [{"job": "small", "what": "", "run": 1, "load_average": 0.5} | record for record in records]


def test_the_truth_of_a_tiny_job_is_measured_in_processes_that_take_turns(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)

    found = measure.truth(config, (2, 4), tmp_path / "caches", pass_budget_s=0.1)

    for size in ("2", "4"):
        assert len(found["sizes"][size]["rounds"]) >= 5
        assert all(seconds > 0 for turn in found["sizes"][size]["rounds"] for seconds in turn)
    assert Truth(found).best in (2, 4)


def test_an_exploration_its_floor_and_a_sweep_give_their_ratios(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    explored = measure.explore(config, ["explore.candidates=[2]"])
    records = [
        {"kind": "explore"} | explored,
        {"kind": "floor"} | measure.floor(config, explored["base_micro_batch_size"]),
        {"kind": "sweep"} | measure.sweep(config, (2,), tmp_path / "caches"),
    ]

    found = summary({"small": "a job"}, whole(records))["jobs"]["small"]

    assert found["explorations"][0]["micro_batch_size"] == 2
    assert all(ratio["ratio"] > 0 for ratio in found["ratios"].values())


def test_a_measurement_is_on_disk_before_the_next_and_is_not_repeated(tmp_path):
    path = tmp_path / "engine.jsonl"
    known = Known(path)
    units = [unit({"answer": 8}), unit(MeasurementError("ended 1"), run=2), unit({"answer": 9}, run=3)]

    failed = engine.run(units, known, deadline_s=None, write=lambda: None)

    assert failed == 1
    again = Known(path)
    assert [record["answer"] for record in again.records.values()] == [8, 9]
    assert [one.key for one in units if one.key not in again.records] == [units[1].key]


def test_what_was_measured_with_another_torch_does_not_count(tmp_path):
    path = tmp_path / "engine.jsonl"
    engine.run([unit({"answer": 8})], Known(path), deadline_s=None, write=lambda: None)
    path.write_text(path.read_text().replace("torch ", "torch 0."))

    assert Known(path).records == {}


def test_the_truth_has_every_size_that_an_exploration_recommended(tmp_path):
    known = Known(tmp_path / "engine.jsonl")
    for kind, size in (("explore", 24), ("wide", 66), ("rival", 92)):
        known.add(unit({}, kind=kind), {"micro_batch_size": size})

    assert known.answers("small") == (24, 66)
    assert {24, 66} < set(truth_sizes(147, known.answers("small")))


def test_each_answer_is_trained_100_steps_once(tmp_path, monkeypatch):
    known, trained = Known(tmp_path / "engine.jsonl"), []
    for number, size in enumerate((8, 4, 8), 1):
        known.add(unit({}, kind="explore", what="", run=number), {"micro_batch_size": size})

    def survive(_config, size, *, compiled):
        trained.append((size, compiled))
        return {"program": "compiled", "steps": 100, "survived": True, "reason": "", "total_s": 9.0}

    monkeypatch.setattr(measure, "survive", survive)
    units = [engine._survive("small", "bexplore", number) for number in (1, 2, 3)]
    engine.run(units, known, deadline_s=None, write=lambda: None)

    assert trained == [(8, True), (4, True)]
    assert [record["size"] for record in known.of("small", "survive")] == [8, 4, 8]


def test_nothing_is_begun_that_would_not_end_in_time(tmp_path):
    known = Known(tmp_path / "engine.jsonl")

    engine.run([unit({"answer": 8}, expected_s=math.inf)], known, deadline_s=0.0, write=lambda: None)

    assert known.records == {}


@pytest.mark.parametrize(
    ("steps", "told"), [((), "not measured"), ((100,), "yes"), ((9,), "no: 9 steps"), ((100, 9), "in 1 of 2 runs")]
)
def test_an_answer_survives_where_every_run_of_it_did(steps, told):
    records = [{"kind": "survive", "what": "bexplore", "size": 4, "steps": n, "survived": n == 100} for n in steps]

    found = summary({"small": "a job"}, whole([explore_record(), *records]))

    assert found["jobs"]["small"]["explorations"][0]["survived"] == told


@pytest.mark.parametrize(("size", "told"), [(4, "| yes |"), (3, "| not measured |")])
def test_100_steps_of_another_size_than_the_one_told_say_nothing_of_it(size, told):
    rival = {"kind": "rival", "what": "accelerate", "answer": 4, "trials": [[4, 3]], "total_s": 9.0}
    survived = {"kind": "survive", "what": "bexplore", "size": size, "steps": 100, "survived": True}
    found = summary({"small": "a job"}, whole([explore_record(), rival, survived]))

    lines = markdown({"command": "bench", "machine": MACHINE} | found).splitlines()

    assert next(line for line in lines if line.startswith("| bexplore |")).endswith(told)


def test_on_a_machine_slower_than_guessed_the_time_is_kept(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: clock[0])

    def slow(_known: Known) -> dict:
        clock[0] += 30.0
        return {"answer": 8}

    units = [unit(None, what=str(number), expected_s=10.0, measure=slow) for number in range(6)]
    engine.run(units, Known(tmp_path / "engine.jsonl"), deadline_s=100.0, write=lambda: None)

    assert clock[0] == 90.0


@pytest.mark.parametrize("count", range(6))
def test_every_state_of_the_campaign_gives_a_report(count):
    floor = {"kind": "floor", "import_s": 3.0, "compile_s": 5.0, "trace_s": 1.0, "total_s": 10.0}
    rival = {"kind": "rival", "what": "accelerate", "answer": 4, "trials": [[8, 0], [4, 3]], "total_s": 9.0}
    records = [explore_record(), floor, sweep_record(), truth_record({2: [0.2] * 5, 4: [0.3] * 5}), rival]
    found = summary({"small": "a job"}, whole(records[:count]))

    text = markdown({"command": "bench", "machine": MACHINE} | found)

    verdicts = {row["what"]: row["verdict"] for row in found["targets"]}
    assert text.startswith("# The engine")
    assert verdicts["exploration / static power-of-two sweep"] == ("reached" if count >= 3 else "not measured")
    assert verdicts["regret beyond the truth's interval"] == ("reached" if count >= 4 else "not measured")
    assert "accelerate | 1 | 9 | 2 | 4" in text or count < 5


def test_a_target_is_not_reached_while_a_job_is_missing():
    found = summary({"small": "a job", "gpt": "another"}, whole([explore_record(), sweep_record()]))

    sweep = next(row for row in found["targets"] if row["what"] == "exploration / static power-of-two sweep")
    assert sweep["verdict"] == "so far; 1 job is missing"


def test_an_exploration_that_is_too_dear_or_unsure_is_said_to_miss():
    records = whole([explore_record(total_s=30.0, confidence=80), sweep_record()])

    found = summary({"small": "a job"}, records)

    missed = [row["what"] for row in found["targets"] if row["verdict"] == "MISSED"]
    assert missed[0] == "exploration / static power-of-two sweep"
    assert "score at the end of each exploration" in missed


def rival_record(answer: int, total_s: float, **changes) -> dict:
    return {
        "kind": "rival",
        "what": "accelerate",
        "answer": answer,
        "trials": [[answer, 3]],
        "total_s": total_s,
    } | changes


# Samples/s of sizes 2, 4 and 8: 10, 20 and 19 of 20.
SPEEDS = {2: [0.2] * 5, 4: [0.2] * 5, 8: [8 / 19] * 5}


def test_the_cost_of_tuning_is_seconds_and_the_loss_over_ten_hours():
    own = [
        explore_record(total_s=seconds, micro_batch_size=size) | {"run": n}
        for n, (seconds, size) in enumerate([(300.0, 4), (20.0, 8), (400.0, 4)], 1)
    ]
    records = whole([*own, rival_record(8, 10.0), sweep_record(), truth_record(SPEEDS)])

    found = summary({"small": "a job"}, records)

    ours, rival, sweep = finders(found["jobs"]["small"])
    assert (ours["name"], ours["answer"], ours["cost_s"]) == ("bexplore", 4, pytest.approx(400.0))  # the median run
    assert (rival["name"], rival["cost_s"]) == ("accelerate", pytest.approx(10 + 0.05 * 36_000))
    assert (sweep["name"], sweep["answer"], sweep["cost_s"]) == ("sweep", 2, pytest.approx(40 + 0.5 * 36_000))
    each, by_sum = found["targets"][:2]
    assert (each["verdict"], by_sum["verdict"]) == ("reached", "reached")
    assert each["reached"] == "in 1 of 1: small 400 s to 1,810 s (accelerate)"
    assert by_sum["reached"] == "400 s to 1,810 s (accelerate), 18,040 s (sweep)"


def test_a_rival_that_is_as_right_and_quicker_costs_less():
    records = whole([explore_record(total_s=300.0), rival_record(4, 10.0), truth_record(SPEEDS)])

    each, by_sum = summary({"small": "a job"}, records)["targets"][:2]

    assert (each["verdict"], by_sum["verdict"]) == ("MISSED", "MISSED")


def test_a_rivals_answer_out_of_memory_has_no_finite_cost():
    ended = {"kind": "survive", "what": "accelerate", "size": 4, "steps": 2, "survived": False}
    records = whole([explore_record(total_s=300.0), rival_record(4, 10.0), ended, truth_record(SPEEDS)])

    found = summary({"small": "a job"}, records)

    assert finders(found["jobs"]["small"])[1]["ends"] == "no: 2 steps"
    assert "none, its training ends; else 10 (0)" in markdown({"command": "bench", "machine": MACHINE} | found)
    assert [row["verdict"] for row in found["targets"][:2]] == ["MISSED", "MISSED"]


def test_an_answer_of_ours_that_runs_out_of_memory_loses_whatever_it_costs():
    ended = {"kind": "survive", "what": "bexplore", "size": 4, "steps": 2, "survived": False}
    records = whole([explore_record(total_s=1.0), rival_record(8, 10.0), ended, truth_record(SPEEDS)])

    each, by_sum = summary({"small": "a job"}, records)["targets"][:2]

    assert (each["verdict"], by_sum["verdict"]) == ("MISSED", "MISSED")
    assert "small 1 s, no: 2 steps to 1,810 s (accelerate)" in each["reached"]


def test_100_steps_of_one_answer_say_nothing_of_another_run():
    ended = {"kind": "survive", "what": "accelerate", "size": 8, "steps": 2, "survived": False}
    records = whole([explore_record(), rival_record(4, 10.0), ended, truth_record(SPEEDS)])

    assert finders(summary({"small": "a job"}, records)["jobs"]["small"])[1]["survived"] == "not measured"


def test_what_an_answer_outside_the_truth_costs_is_not_known():
    records = whole([explore_record(), rival_record(16, 10.0), truth_record(SPEEDS)])

    found = summary({"small": "a job"}, records)

    assert finders(found["jobs"]["small"])[1]["cost_s"] is None
    assert found["targets"][0]["verdict"] == "not measured"


def test_the_report_alone_keeps_the_machine_of_the_measurements(tmp_path):
    (tmp_path / "engine.json").write_text(json.dumps({"machine": MACHINE | {"lightning": "2.6.6"}}))

    engine.main(["--report", "--runs", "3", "--results", str(tmp_path)])

    found = json.loads((tmp_path / "engine.json").read_text())
    assert found["machine"]["lightning"] == "2.6.6"
    assert not (tmp_path / "engine.jsonl").exists()


def test_a_ratio_is_taken_within_a_run_so_that_a_slower_day_does_not_count():
    slower = [explore_record(total_s=48.0) | {"run": 2}, sweep_record() | {"total_s": 120.0, "run": 2}]
    alone = explore_record(total_s=1.0) | {"run": 3}

    ratio = summary({"small": "a job"}, whole([explore_record(), sweep_record(), *slower, alone]))["jobs"]["small"][
        "ratios"
    ]["sweep"]

    assert (ratio["least"], ratio["most"], ratio["runs"]) == (pytest.approx(0.4), pytest.approx(0.4), 2)


def test_an_exploration_with_a_wider_tie_stands_beside_its_days_sweep():
    sweeps = [
        sweep_record() | {"run": 1, "at": "2026-01-01 12:00:00"},
        sweep_record() | {"run": 2, "at": "2026-01-09 12:00:00", "total_s": 80.0},
    ]
    wide = explore_record(confidence=71, total_s=20.0) | {"kind": "wide", "at": "2026-01-08 12:00:00"}

    found = summary({"small": "a job"}, whole([explore_record(), *sweeps, wide]))

    assert found["jobs"]["small"]["wide"][0]["of_sweep"] == 0.25
    assert "71" not in next(row["reached"] for row in found["targets"] if row["what"].startswith("score"))
    lines = markdown({"command": "bench", "machine": MACHINE} | found).splitlines()
    assert any(line.startswith("| a job | 4 | 71 | 1 | 20.0 | 0.25 |") for line in lines)
    assert "0 of 1 ended at 90 and above. Medians of the share of the sweep: 0.25 (a job)." in lines


def test_a_regret_counts_only_beyond_the_interval_of_the_truth():
    noisy = Truth(truth_record({4: [0.39, 0.41, 0.4, 0.42, 0.38], 8: [0.8, 0.78, 0.8, 0.76, 0.81]}))
    clear = Truth(truth_record({4: [0.4, 0.41, 0.4, 0.41, 0.4], 8: [0.6, 0.61, 0.6, 0.61, 0.6]}))

    assert noisy.regret(4)["beyond_interval"] == 0.0
    assert clear.best == 8
    assert clear.regret(4)["estimate"] == pytest.approx(0.25, abs=0.01)
    assert clear.regret(4)["beyond_interval"] == pytest.approx(0.25, abs=0.01)
    assert clear.regret(16) is None


def test_the_exhaustive_sweep_is_start_compile_and_passes_of_every_size():
    # Sizes 1, 2, 3, each 2 s of start, 10 s of compile, 4 updates, and 8 + 3 passes of 0.1 s a sample.
    assert exhaustive_s(sweep_record(), 3) == pytest.approx(3 * (12 + 0.04) + 11 * 0.6)


def test_sizes_end_at_what_fits_and_the_truth_holds_every_answer():
    assert sweep_sizes(36) == (2, 4, 8, 16, 32)
    assert truth_sizes(36, (5, 7)) == (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
    assert len(truth_sizes(100_000, tuple(range(1, 30)))) == 24


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_a_valid_file_that_says_its_memory(name):
    config = load_config(JOBS[name].config)

    assert config.request.is_search
    assert config.settings.memory_budget_bytes(0) > 0


def test_without_a_cuda_device_its_benchmark_says_so(monkeypatch, capsys):
    monkeypatch.setattr(engine, "has_cuda", lambda: False)

    assert engine.main(["--cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_the_plan_puts_the_first_runs_of_every_job_before_any_repeat(tmp_path, capsys):
    engine.main(["--dry-run", "--results", str(tmp_path), "--jobs", "gpt", "bert"])

    keys = [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert keys[:4] == ["gpt | explore | 1", "gpt | floor | 1", "gpt | sweep | 1", "gpt | truth | 1"]
    assert keys.index("bert | truth | 1") < keys.index("gpt | explore | 2")
    assert json.dumps(keys) == json.dumps(list(dict.fromkeys(keys)))


def test_passes_of_a_probe_are_its_own_and_of_sizes_that_took_turns():
    probe = {"micro_batch_size": 8, "pass_times_s": [0.2, 0.2], "update_times_s": [0.1]}
    untimed = measure.Untimed(passes=2, updates=1)

    alone = measure.passes_s(probe | {"interleaved_times_s": {}}, untimed)
    in_turns = measure.passes_s(probe | {"interleaved_times_s": {"8": [0.2, 0.2], "4": [0.05, 0.05]}}, untimed)

    assert alone == pytest.approx(2 * 0.2 + 0.1 + 2 * 0.2 + 0.1)
    assert in_turns == pytest.approx(alone + 2 * 2 * 0.05)  # two rounds of two passes each


def test_untimed_passes_depend_on_the_process_and_the_length_of_a_pass():
    def probe(size: int, pass_s: float, *, start_s: float = 0.0, compilation: str = "shared") -> dict:
        known = {"micro_batch_size": size, "compilation": compilation}
        return known | {"pass_times_s": [pass_s, pass_s], "start_time_s": start_s}

    probes = [
        probe(1, 0.2, start_s=3.0),
        probe(8, 1.1),  # expected to be long, and so
        probe(8, 1.1),
        probe(1, 0.2),
        probe(4, 0.5),
        probe(64, 8.8, start_s=3.0),  # in a process that knows nothing
        probe(8, 1.1, start_s=3.0, compilation="exact"),
    ]

    found = [(untimed.passes, untimed.updates) for untimed in measure.untimed_of(probes)]
    assert found == [(2, 1), (0, 1), (0, 0), (1, 0), (2, 1), (1, 1), (1, 2)]


def test_the_benchmark_and_the_engine_call_the_same_passes_long():
    assert measure.LONG_PASS_S == session.LONG_PASS_S
