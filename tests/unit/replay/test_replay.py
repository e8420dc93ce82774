"""The engine over recorded tables, and what a table may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.errors import UserInputError
from bexplore.measurement.probe import Compilation
from bexplore.replay.replay import ReplayOptions, TableRunner, exhaustive_cost_s, replay_table
from bexplore.replay.table import load_table
from bexplore.search.loop import run_search
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space

HEADER = "curve_id,micro_batch_size,throughput_samples_per_s,step_time_s,peak_mem_gib,oom"
LADDER = ("a,8,100,,,0", "a,16,180,,,0", "a,32,300,,,0", "a,64,410,,,0", "a,128,480,,,0")


def table(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def result_of(path: Path, **options) -> dict:
    *_, last = replay_table(path, ReplayOptions(**options))
    assert last["event"] == "result"
    return last


def test_a_replay_finds_the_best_and_probes_only_recorded_sizes(tmp_path: Path):
    events = list(replay_table(table(tmp_path, *LADDER), ReplayOptions()))
    assert events[-1]["micro_batch_size"] == 128
    assert events[-1]["curve_id"] == "a"
    assert {event["micro_batch_size"] for event in events} <= {8, 16, 32, 64, 128}


def test_a_table_of_one_curve_needs_no_name_of_it(tmp_path: Path):
    rows = [row.removeprefix("a,") for row in LADDER]

    result = result_of(table(tmp_path, *rows, header=HEADER.removeprefix("curve_id,")))

    assert (result["curve_id"], result["micro_batch_size"]) == ("table", 128)


def test_a_replay_tells_the_fastest_recorded_size_and_what_of_it_the_answer_has(tmp_path: Path):
    path = table(tmp_path, *LADDER, "a,256,480,,,0")
    result = result_of(path, max_probes=2, noise=0.0)

    (curve,) = load_table(path)
    assert (result["recorded_best_micro_batch_size"], result["recorded_best_samples_per_s"]) == (128, 480.0)
    assert result["share_of_recorded_best"] == 1.0 - curve.regret(result["micro_batch_size"])


def test_a_table_where_nothing_fits_has_no_recorded_best(tmp_path: Path):
    assert result_of(table(tmp_path, "a,8,,,,1", "a,16,,,,1")).get("recorded_best_micro_batch_size") is None


def test_the_same_seed_gives_the_same_events(tmp_path: Path):
    path = table(tmp_path, *LADDER)
    runs = [list(replay_table(path, ReplayOptions(seed=seed))) for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_each_size_is_charged_start_and_compile_unless_shared(tmp_path: Path):
    path = table(tmp_path, *LADDER)
    apart = result_of(path, compile_time_s=30.0)
    shared = result_of(path, compile_time_s=30.0, shared_compile=True)
    assert apart["exhaustive_cost_s"] == pytest.approx(5 * 35.0, rel=0.1)
    assert 35.0 < shared["exhaustive_cost_s"] < 45.0
    assert 35.0 * apart["num_probes"] < apart["cost_s"] < apart["exhaustive_cost_s"]


def test_a_winner_compiled_exactly_is_charged_a_second_start_and_compile(tmp_path: Path):
    (curve,) = load_table(table(tmp_path, *LADDER))
    runner = TableRunner(curve, ReplayOptions(shared_compile=True))
    settings = SearchSettings(search_compilation=Compilation.SHARED, user_compilation=Compilation.EXACT)
    *_, result = run_search(runner, space=Space.from_sizes(curve.points), settings=settings)
    assert result.recommendation.num_probes > 2
    assert 2 * 35.0 < runner.cost_s < 2 * 35.0 + 10 * result.recommendation.num_probes * 0.4  # and passes


@pytest.mark.parametrize(("yes", "no"), [("1", "0"), ("1.0", "0.0"), ("True", "False"), ("yes", "no"), ("TRUE", "")])
def test_an_oom_row_is_a_candidate_that_does_not_fit(tmp_path: Path, yes: str, no: str):
    path = table(tmp_path, *LADDER, f"a,8,100,,,{no}", f"a,256,,,,{yes}")
    events = list(replay_table(path, ReplayOptions()))
    tried = [event for event in events if event["event"] == "probe" and event["micro_batch_size"] == 256]
    assert all(event["outcome"] == "out_of_memory" for event in tried)
    assert events[-1]["micro_batch_size"] == 128


def test_rows_of_one_size_are_repeats_and_step_times_are_throughput(tmp_path: Path):
    (curve,) = load_table(table(tmp_path, "a,10,100,,,0", "a,10,120,,,0", "a,10,500,,,0", "a,20,,0.1,1.5,0"))
    assert curve.points[10].throughput == 120
    assert curve.points[20].throughput == pytest.approx(200)
    assert curve.points[20].peak_memory_bytes == round(1.5 * 2**30)


def test_extra_columns_are_ignored_and_missing_optional_ones_are_unknown(tmp_path: Path):
    path = table(tmp_path, "a,x,8,0.1", header="curve_id,source,micro_batch_size,step_time_s")
    (curve,) = load_table(path)
    assert curve.points[8].fits
    assert curve.points[8].peak_memory_bytes is None


def test_a_curve_where_nothing_fits_ends_in_a_result_without_a_size(tmp_path: Path):
    last = result_of(table(tmp_path, "a,8,,,,1", "a,16,,,,1"))
    assert (last["micro_batch_size"], last["stop_reason"]) == (None, "nothing_fits")


WITH_SETTINGS = "curve_id,setting,micro_batch_size,throughput_samples_per_s,oom"
JOB_OF_SETTINGS = (
    *("a,none,8,100,0", "a,none,16,150,0", "a,none,32,,1", "a,none,64,,1"),
    *("a,full,8,80,0", "a,full,16,125,0", "a,full,32,165,0", "a,full,64,190,0"),
)


def test_the_settings_of_a_curve_are_one_job_and_its_best_pair_the_answer(tmp_path: Path):
    path = table(tmp_path, *JOB_OF_SETTINGS, header=WITH_SETTINGS)
    events = list(replay_table(path, ReplayOptions(shared_compile=True)))
    (result,) = [event for event in events if event["event"] == "result"]
    assert (result["setting"], result["micro_batch_size"]) == ("full", 64)
    assert {event["setting"] for event in events if event["event"] == "probe"} == {"none", "full"}
    alone = [load_table(path)[number] for number in range(2)]
    assert result["exhaustive_cost_s"] == pytest.approx(
        sum(exhaustive_cost_s(curve, ReplayOptions(shared_compile=True)) for curve in alone)
    )


def test_a_job_whose_first_setting_fits_nowhere_is_answered_with_another(tmp_path: Path):
    rows = ("a,none,8,,1", "a,none,16,,1", "a,full,8,80,0", "a,full,16,125,0")
    last = result_of(table(tmp_path, *rows, header=WITH_SETTINGS))
    assert (last["setting"], last["micro_batch_size"]) == ("full", 16)


def test_a_setting_that_lacks_a_size_of_another_is_named(tmp_path: Path):
    with pytest.raises(UserInputError, match="the setting 'full' has no row of micro_batch_size 16") as caught:
        load_table(table(tmp_path, "a,none,8,1,0", "a,none,16,2,0", "a,full,8,1,0", header=WITH_SETTINGS))
    assert "oom 1" in caught.value.message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,8,nan,,,0", "throughput_samples_per_s 'nan' is not a finite number"),
        ("a,8,-3,,,0", "throughput_samples_per_s '-3' is not above 0"),
        ("a,8,fast,,,0", "'fast' is not a finite number"),
        ("a,2.5,10,,,0", "micro_batch_size '2.5' is not a whole number above 0"),
        ("a,0,10,,,0", "micro_batch_size '0' is not a whole number above 0"),
        ("a,,10,,,0", "is not a whole number above 0"),
        ("a,8,,,,0", "neither throughput_samples_per_s nor step_time_s is given"),
        ("a,8,10,,,2", "oom '2' is neither 0 nor 1"),
        (",8,10,,,0", "curve_id is blank"),
        ("a,8,10,,inf,0", "peak_mem_gib 'inf' is not a finite number"),
    ],
)
def test_a_cell_that_cannot_be_believed_is_named_with_its_line(tmp_path: Path, row: str, words: str):
    path = table(tmp_path, "a,4,10,,,0", row)
    with pytest.raises(UserInputError) as caught:
        load_table(path)
    assert words in caught.value.message
    assert f"{path}:3" in caught.value.message


def test_all_problems_of_a_table_are_told_at_once(tmp_path: Path):
    with pytest.raises(UserInputError) as caught:
        load_table(table(tmp_path, "a,8,nan,,,0", "a,16,10,,,0", "a,0,10,,,0"))
    assert caught.value.message.count("\n") == 1


@pytest.mark.parametrize(
    ("header", "rows", "words"),
    [
        ("curve_id,step_time_s", ("a,0.1",), "lacks the column micro_batch_size"),
        ("curve_id,micro_batch_size", ("a,8",), "throughput_samples_per_s or step_time_s"),
        (HEADER, (), "no rows"),
        ("", (), "lacks the column"),
    ],
)
def test_a_table_without_what_it_needs_is_refused(tmp_path: Path, header: str, rows: tuple[str, ...], words: str):
    with pytest.raises(UserInputError, match=words) as caught:
        load_table(table(tmp_path, *rows, header=header))
    assert caught.value.hint


def test_a_file_that_is_not_there_is_a_users_mistake(tmp_path: Path):
    with pytest.raises(UserInputError, match="cannot read"):
        load_table(tmp_path / "none.csv")


def test_an_unknown_curve_is_answered_with_names_that_exist(tmp_path: Path):
    with pytest.raises(UserInputError, match="'b'") as caught:
        list(replay_table(table(tmp_path, *LADDER), ReplayOptions(), curve_id="b"))
    assert "a" in caught.value.hint


def test_curves_on_two_processes_give_what_they_give_on_one(tmp_path: Path):
    rows = [row.replace("a,", f"{name},", 1) for name in ("a", "b", "c", "d") for row in LADDER]
    path = table(tmp_path, *rows)
    alone = list(replay_table(path, ReplayOptions(), num_processes=1))
    assert list(replay_table(path, ReplayOptions(), num_processes=2)) == alone


def test_a_target_score_ends_a_replay_of_settings_below_the_usual_one():
    assert [ReplayOptions().settings(number).target_confidence for number in (1, 3)] == [90, 95]
    assert ReplayOptions(target_confidence=80).settings(3).target_confidence == 80
