"""Optuna's sampler over the belief: a pure function of the study's trials."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bexplore.errors import UserInputError
from bexplore.search import loop
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space, default_candidates
from bexplore.search.study.sampler import BexploreSampler, open_study
from tests.unit.search.builders import EXACT, MANY, CurveRunner, saturating


def ask(study: optuna.Study) -> tuple[optuna.Trial, int]:
    trial = study.ask()
    return trial, trial.suggest_int("micro_batch_size", 1, 512)


def in_memory(space: Space = MANY, **options) -> optuna.Study:
    return open_study(BexploreSampler(space, EXACT, **options))


def answer(study: optuna.Study, trial: optuna.Trial, size: int, *, largest: int = 300) -> None:
    if size > largest:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, saturating(size))


def sequence(study: optuna.Study, count: int) -> list[int]:
    sizes = []
    for _ in range(count):
        trial, size = ask(study)
        answer(study, trial, size)
        sizes.append(size)
    return sizes


@pytest.mark.parametrize("storage", ["sqlite:///{}/study.db", "{}/study.log"])
def test_a_fresh_sampler_on_the_same_storage_asks_for_the_same_sizes(tmp_path: Path, storage: str):
    expected = sequence(in_memory(), 6)
    url = storage.format(tmp_path)
    resumed = []
    for _ in range(6):
        resumed += sequence(open_study(BexploreSampler(MANY, EXACT), storage=url), 1)
    assert resumed == expected


def test_parallel_askers_get_different_sizes():
    study = in_memory()
    sequence(study, 3)
    sizes = [ask(study)[1] for _ in range(4)]
    assert len(set(sizes)) == 4


def test_an_asker_that_names_no_tie_is_left_the_best_choice():
    study, other = in_memory(), in_memory()
    assert sequence(study, 3) == sequence(other, 3)
    alone = ask(study)[1]
    other.ask()  # runs, and has no size yet
    assert ask(other)[1] != alone


def test_askers_that_begin_at_the_same_moment_do_not_all_take_the_base():
    study = in_memory()
    study._storage.create_new_trial(study._study_id)  # is being asked for, and has no size yet
    assert ask(study)[1] != MANY.base
    assert ask(in_memory())[1] == MANY.base


def test_a_probe_whose_lease_has_ended_is_forgotten():
    clock = [0.0]
    study = in_memory(now=lambda: clock[0])
    sequence(study, 3)
    _, left_behind = ask(study)
    clock[0] = 1e12
    assert ask(study)[1] == left_behind


def test_a_size_is_not_repeated_by_accident():
    study = in_memory(Space.from_sizes([1, 2, 4, 8, 16, 32, 64, 128, 256, 512]))
    sizes = sequence(study, 4)
    assert len(set(sizes)) == 4


def test_after_an_out_of_memory_only_smaller_sizes_are_asked_for():
    study = in_memory()
    seen = []
    for _ in range(10):
        trial, size = ask(study)
        assert all(size < other for other in seen if other > 40)
        seen.append(size)
        answer(study, trial, size, largest=40)
    assert any(size > 40 for size in seen)


def test_a_failed_trial_of_anybodys_closes_its_own_size_alone():
    study = in_memory(Space.from_sizes([1, 2, 4, 8]))
    sampler = study.sampler
    trial, _ = ask(study)
    study.tell(trial, 30.0)
    trial, size = ask(study)
    study.tell(trial, state=TrialState.FAIL)
    posterior = sampler.decide(study).posterior
    assert posterior.sizes[posterior.open].tolist() == [other for other in (1, 2, 4, 8) if other != size]


def test_a_plain_optimize_loop_finds_the_best_size():
    study = optuna.create_study(direction="maximize", sampler=BexploreSampler(MANY, EXACT))

    def objective(trial: optuna.Trial) -> float:
        size = trial.suggest_int("micro_batch_size", 1, 512)
        if size > 300:
            raise optuna.TrialPruned
        return saturating(size)

    study.optimize(objective, n_trials=10)
    assert study.best_value > 0.98 * saturating(300)


def test_a_value_that_is_no_throughput_is_a_failure_of_its_size():
    study = in_memory(Space.from_sizes([1, 2, 4, 8]))
    trial, size = ask(study)
    study.tell(trial, float("-1"))
    decision = study.sampler.decide(study)
    assert decision.recommendation is None
    assert decision.micro_batch_size != size


def test_any_other_parameter_is_refused():
    study = in_memory()
    with pytest.raises(UserInputError, match="learning_rate"):
        study.ask().suggest_float("learning_rate", 0.0, 1.0)


def test_a_stored_study_that_asks_another_question_is_refused(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/study.db"
    open_study(BexploreSampler(MANY, EXACT), storage=url)
    with pytest.raises(UserInputError, match="tolerance") as caught:
        open_study(BexploreSampler(MANY, SearchSettings(tolerance=0.05)), storage=url)
    assert "`fresh=True`" in caught.value.hint


def test_dashboards_read_samples_per_second_at_the_axis(tmp_path):
    study = open_study(BexploreSampler(Space.from_sizes([1, 2])), storage=tmp_path / "study.log")

    assert optuna.load_study(study_name="bexplore", storage=study._storage).metric_names == ["samples/s"]


def test_a_study_tells_what_became_of_probes_and_what_is_recommended(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    space, runner = Space.from_sizes([1, 2, 4, 8]), CurveRunner(largest=4)
    *_, result = loop.run_search(runner, space=space, settings=EXACT, run=loop.RunRecord(storage=storage))

    study = optuna.load_study(study_name="bexplore", storage=storage)
    told = {trial.params["micro_batch_size"]: trial for trial in study.trials}
    assert told[8].state is TrialState.PRUNED
    assert told[8].user_attrs["outcome"] == "out_of_memory"
    assert told[8].user_attrs["reason"] == "peak above the budget"
    assert told[4].user_attrs["compilation"] == "exact"
    assert told[4].user_attrs["peak_memory_mib"] > told[1].user_attrs["peak_memory_mib"]
    assert told[4].value == pytest.approx(4 / told[4].user_attrs["pass_s"], rel=1e-4)
    size = result.recommendation.micro_batch_size
    assert study.user_attrs["recommendation"].startswith(f"micro_batch_size {size}: ")


def test_an_explorer_with_other_candidates_is_told_which_and_what_to_set(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    open_study(BexploreSampler(MANY, EXACT), storage=url)
    less_memory = Space.from_sizes(default_candidates(1, 256))

    with pytest.raises(UserInputError, match="largest 512 there, 256 here") as refused:
        open_study(BexploreSampler(less_memory, EXACT), storage=url)

    assert "set max, and the same memory_budget" in refused.value.hint
