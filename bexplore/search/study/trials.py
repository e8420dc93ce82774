"""Trials of a study: the evidence of each probe, its lease, and their agreement with the run's journal.

The sampler's record is the system attribute `bexplore`, which dashboards leave out. The user attributes are flat, with
units in their names, for dashboards and data frames; nothing reads them back.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from bexplore.host.records import from_record, to_record
from bexplore.measurement.probe import Observation, Outcome, Probe, Purpose
from bexplore.search.evidence import Evidence
from bexplore.search.recommendation import Recommendation
from bexplore.units import format_rate

PARAMETER = "micro_batch_size"
VARIANT = "variant"  # of the job; a parameter of studies of several variants
ATTRIBUTE = "bexplore"
LEASE_S = 120.0  # a probe in flight without a renewed lease is abandoned. Source: four missed renewals
ASKING_S = 60.0  # an explorer that has not chosen a size by then is dead. Source: a decision takes below 1 s
RENEWALS = 4  # of a lease in its time. Source: three may fail
SHOWN_DIGITS = 5  # of a figure in a dashboard. Source: two more than repeated probes have in common
# Any other outcome: FAIL
STATES = {
    Outcome.MEASURED: TrialState.COMPLETE,
    Outcome.ESTIMATED: TrialState.COMPLETE,
    Outcome.OUT_OF_MEMORY: TrialState.PRUNED,
}


def read_search_specification(study: optuna.Study) -> dict[str, Any]:
    """Return the study's search specification; empty for a new study."""
    return study._storage.get_study_system_attrs(study._study_id).get(ATTRIBUTE, {})


def set_search_specification(study: optuna.Study, search_specification: Mapping[str, Any]) -> None:
    """Store the study's search specification."""
    study._storage.set_study_system_attr(study._study_id, ATTRIBUTE, dict(search_specification))


def read_num_replicas(study: optuna.Study) -> int | None:
    """Return the replicas that the latest measured probe of a command showed; None where none did."""
    measured = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    seen = (trial.system_attrs.get(ATTRIBUTE, {}).get("num_replicas") for trial in reversed(measured))
    return next((number for number in seen if number), None)


def read_evidence(trial: FrozenTrial) -> Evidence:
    """Return the evidence in a trial that has a size, written by bexplore or by another program."""
    record = trial.system_attrs.get(ATTRIBUTE, {}).get("evidence")
    if record is not None and trial.state.is_finished():
        return from_record(Evidence, record, ignore_unknown=True)
    tried: dict[str, Any] = {
        "micro_batch_size": int(trial.params[PARAMETER]),
        "variant": int(trial.params.get(VARIANT, 0)),
    }
    if trial.state is TrialState.COMPLETE:
        value = trial.value or math.nan
        if not value > 0 or math.isinf(value):
            return Evidence(**tried, outcome=Outcome.NOT_FINITE, reason=f"value {trial.value}")
        return Evidence(**tried, outcome=Outcome.MEASURED, log_throughput=math.log(value))
    if trial.state is TrialState.PRUNED:
        return Evidence(**tried, outcome=Outcome.OUT_OF_MEMORY)
    purpose = Purpose(trial.system_attrs.get(ATTRIBUTE, {}).get("purpose", Purpose.SEARCH))
    outcome = Outcome.CRASHED if trial.state is TrialState.FAIL else None
    return Evidence(**tried, outcome=outcome, purpose=purpose)


def is_abandoned(trial: FrozenTrial, now: float) -> bool:
    """Return whether no explorer works on the trial any more: it is no evidence."""
    record = trial.system_attrs.get(ATTRIBUTE, {})
    if record.get("abandoned"):
        return True
    if trial.state.is_finished():
        return False
    started = trial.datetime_start.timestamp() if trial.datetime_start else now
    limit = LEASE_S if PARAMETER in trial.params else ASKING_S
    return now > record.get("lease_until", started + limit)


def rebuild(study: optuna.Study, history: Sequence[Observation], *, now: float, is_alone: bool = False) -> None:
    """Bring the study up to the journal: finish, add, and abandon trials where they differ.

    Args:
        study: Trials in flight of dead processes are abandoned, those of other hosts when their lease ends.
        history: Every finished observation of the journal, in order.
        is_alone: Whether no other explorer of this host works on the study: its trials in flight are left over.
    """
    trials = study.get_trials(deepcopy=False)
    known = {trial.system_attrs.get(ATTRIBUTE, {}).get("number") for trial in trials if trial.state.is_finished()}
    num_trials = len(trials)
    for observation in sorted(history, key=lambda observation: observation.probe.number):
        number = observation.probe.number
        if number in known:
            continue
        known.add(number)
        if number < num_trials and not trials[number].state.is_finished():
            tell(study, trials[number], observation)
            continue
        for _ in range(num_trials, number):
            study.add_trial(create_trial(state=TrialState.FAIL, system_attrs={ATTRIBUTE: {"abandoned": True}}))
        study.add_trial(_trial_of(observation, study))
        num_trials = max(num_trials, number) + 1
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if is_abandoned(trial, now) or (is_alone and not _is_of_another_host(trial)) or _owner_is_dead(trial):
            abandon(study, trial)


def _owner(trial: FrozenTrial) -> tuple[str, str]:
    """Return host and process of a trial's explorer; empty where it was killed while it chose the size."""
    host, _, process = trial.system_attrs.get(ATTRIBUTE, {}).get("owner", "").rpartition(":")
    return host, process


def _is_of_another_host(trial: FrozenTrial) -> bool:
    return _owner(trial)[0] not in ("", socket.gethostname())


def _owner_is_dead(trial: FrozenTrial) -> bool:
    host, process = _owner(trial)
    if host != socket.gethostname() or not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _trial_of(observation: Observation, study: optuna.Study) -> FrozenTrial:
    sizes = read_search_specification(study)
    size = observation.micro_batch_size
    state = STATES.get(observation.outcome, TrialState.FAIL)
    params = {PARAMETER: size}
    distributions: dict[str, BaseDistribution] = {
        PARAMETER: IntDistribution(min(size, sizes["smallest"]), max(size, sizes["largest"]))
    }
    if sizes.get("num_variants", 1) > 1:
        params[VARIANT] = observation.probe.variant
        distributions[VARIANT] = IntDistribution(0, sizes["num_variants"] - 1)
    return create_trial(
        state=state,
        value=observation.samples_per_s if observation.is_measured else None,
        params=params,
        distributions=distributions,
        user_attrs=_user_attributes(observation),
        system_attrs={ATTRIBUTE: _record(observation)},
    )


def lease(trial: optuna.Trial, probe: Probe, *, now: float, seconds: float = LEASE_S) -> None:
    """Claim the trial for this process; other explorers leave it alone until the lease ends."""
    owner = f"{socket.gethostname()}:{os.getpid()}"
    record: dict[str, Any] = {"lease_until": now + seconds, "owner": owner, "purpose": probe.purpose.value}
    trial.study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, record)


@contextmanager
def hold_lease(study: optuna.Study, trial: optuna.Trial, probe: Probe, *, seconds: float = LEASE_S) -> Iterator[None]:
    """Renew the trial's lease until the block, or this process, ends."""
    lease(trial, probe, now=time.time(), seconds=seconds)
    if isinstance(study._storage, InMemoryStorage):
        yield  # no other process sees it
        return
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(trial, probe, seconds, ended), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()


def _renew(trial: optuna.Trial, probe: Probe, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(seconds / RENEWALS):
        try:
            lease(trial, probe, now=time.time(), seconds=seconds)
        except Exception:  # a storage that is gone: `tell` after the probe raises, with its reason
            return


def tell(study: optuna.Study, trial: optuna.Trial | FrozenTrial, observation: Observation) -> None:
    """Finish a trial. Out of memory is `PRUNED`: a finished, informative outcome.

    A trial that another explorer has abandoned, or finished from the journal, is not finished twice.
    """
    try:
        for name, value in _user_attributes(observation).items():
            study._storage.set_trial_user_attr(trial._trial_id, name, value)
        study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, _record(observation))
        if observation.is_measured:
            study.tell(trial.number, observation.samples_per_s)
        else:
            study.tell(trial.number, state=STATES.get(observation.outcome, TrialState.FAIL))
    except (RuntimeError, ValueError):  # Optuna's, of a finished trial: the one or the other by who was first
        known = study.get_trials(deepcopy=False)[trial.number]
        if not known.state.is_finished():
            raise
        if known.system_attrs.get(ATTRIBUTE, {}).get("abandoned"):
            study.add_trial(_trial_of(observation, study))


def abandon(study: optuna.Study, trial: optuna.Trial | FrozenTrial) -> None:
    """Abandon a trial; it is no evidence."""
    try:
        study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, {"abandoned": True})
        study.tell(trial.number, state=TrialState.FAIL)
    except (RuntimeError, ValueError):
        if not study.get_trials(deepcopy=False)[trial.number].state.is_finished():
            raise


def publish(study: optuna.Study, best: Recommendation) -> None:
    """Store the recommendation with the study, whose best trial is merely the fastest single probe."""
    text = (
        f"micro_batch_size {best.micro_batch_size}: {best.relative_performance:.2f}x the speed of size "
        f"{best.base_micro_batch_size}, {format_rate(best.samples_per_s)} samples/s; "
        f"confidence {best.confidence} out of 100"
    )
    if study.user_attrs.get("recommendation") != text:
        study.set_user_attr("recommendation", text)


def _user_attributes(observation: Observation) -> dict[str, Any]:
    """Return the figures of a probe that a dashboard shows; unknown ones are left out."""
    is_measured = observation.is_measured
    shown = {
        "outcome": observation.outcome.value,
        "reason": observation.reason or None,
        "purpose": observation.probe.purpose.value,
        "compilation": observation.program_name,
        "pass_s": observation.pass_time_s if is_measured else None,
        "update_s": observation.update_time_s if observation.update_times_s else None,
        "peak_memory_mib": _mib(observation.peak_memory_bytes),
        "resident_memory_mib": _mib(observation.resident_memory_bytes),
        "compile_s": observation.compile_time_s or None,
        "took_s": observation.elapsed_s,
    }
    return {
        name: float(f"{value:.{SHOWN_DIGITS}g}") if isinstance(value, float) else value
        for name, value in shown.items()
        if value is not None
    }


def _mib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / 2**20


def _record(observation: Observation) -> dict[str, Any]:
    seen = {"num_replicas": observation.details["num_replicas"]} if "num_replicas" in observation.details else {}
    evidence = to_record(Evidence.from_observation(observation), nan_as_null=True)
    return {"number": observation.probe.number, "evidence": evidence} | seen
