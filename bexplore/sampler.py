"""Optuna's door: a sampler over the belief, the study, its storage, and leases on probes in flight."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from bexplore.errors import UserInputError
from bexplore.evidence import Evidence
from bexplore.policy import Decision, decide
from bexplore.posterior import ENGINE_VERSION
from bexplore.probe import Observation, Outcome, Probe
from bexplore.recommendation import SearchSettings
from bexplore.space import MemoryPrior, Space

PARAMETER = "micro_batch_size"
ATTRIBUTE = "bexplore"
LEASE_S = 3600.0  # a probe in flight that says nothing is given up after this long
ASKING_S = 60.0  # an asker that has not chosen after this long is dead
STATES = {Outcome.MEASURED: TrialState.COMPLETE, Outcome.OUT_OF_MEMORY: TrialState.PRUNED}  # any other outcome: FAIL


class BexploreSampler(BaseSampler):
    """Chooses the probe that is worth most per second; a pure function of the study's trials.

    A fresh process on the same storage asks for exactly the same size. Parallel askers see each other's trials in
    flight and look elsewhere. A trial that is `COMPLETE` has samples per second as its value, a `PRUNED` one ran out of
    memory, and a `FAIL`ed one failed for a reason of its own.

    Example:
        >>> space = Space.of([1, 2, 4, 8])
        >>> study = optuna.create_study(direction="maximize", sampler=BexploreSampler(space))
        >>> study.ask().suggest_int("micro_batch_size", 1, 8)
        1
    """

    def __init__(
        self,
        space: Space,
        settings: SearchSettings | None = None,
        *,
        memory: MemoryPrior | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.space = space
        self.settings = settings or SearchSettings()
        self.memory = memory
        self._now = now
        self._decisions: dict[int, Decision] = {}
        self._last: tuple[object, Decision] | None = None

    @property
    def distribution(self) -> IntDistribution:
        """Of the one parameter; the sampler returns only candidates."""
        return IntDistribution(self.space.base, self.space.sizes[-1])

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The micro-batch size and nothing else."""
        return {PARAMETER: self.distribution}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The size to probe next; where nothing is worth a probe any more, the recommended one again."""
        decision = self.decide(study, asking=trial.number)
        self._decisions[trial.number] = decision
        if decision.stop_reason is None:
            return {PARAMETER: decision.micro_batch_size}
        best = decision.recommendation
        return {PARAMETER: best.micro_batch_size if best else self.space.base}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: only the micro-batch size within the candidates is searched.

        Raises:
            UserInputError: Always.
        """
        raise UserInputError(
            f"the study asks for {param_name!r} over {param_distribution}",
            hint=f"suggest {PARAMETER!r} from {self.space.base} to {self.space.sizes[-1]}",
        )

    def decide(self, study: optuna.Study, *, asking: int | None = None) -> Decision:
        """What the sampler would do now.

        Args:
            study: Its finished and running trials are the evidence.
            asking: Number of the trial that asks, which is no evidence; None where none does.
        """
        evidence, num_unassigned = self._evidence(study, asking)
        key = (tuple(evidence), num_unassigned)
        if self._last is None or self._last[0] != key:
            decision = decide(self.space, evidence, self.settings, memory=self.memory, num_unassigned=num_unassigned)
            self._last = (key, decision)
        return self._last[1]

    def decision_of(self, study: optuna.Study, number: int) -> Decision:
        """The decision behind a trial; Optuna does not ask the sampler where there is only one candidate."""
        return self._decisions.pop(number, None) or self.decide(study, asking=number)

    def _evidence(self, study: optuna.Study, asking: int | None) -> tuple[list[Evidence], int]:
        evidence, num_unassigned = [], 0
        for trial in sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number):
            if trial.number == asking or is_abandoned(trial, self._now()):
                continue
            if trial.state is TrialState.RUNNING and PARAMETER not in trial.params:
                num_unassigned += asking is None or trial.number < asking
            elif PARAMETER in trial.params:
                evidence.append(evidence_of(trial))
        return evidence, num_unassigned


def evidence_of(trial: FrozenTrial) -> Evidence:
    """The evidence in a trial that has a size, written by bexplore or by anybody else."""
    record = trial.user_attrs.get(ATTRIBUTE, {}).get("evidence")
    if record is not None and trial.state.is_finished():
        return Evidence.from_dict(record)
    size = int(trial.params[PARAMETER])
    if trial.state is TrialState.COMPLETE:
        value = trial.value or math.nan
        if not value > 0 or math.isinf(value):
            return Evidence(micro_batch_size=size, outcome=Outcome.NOT_FINITE, reason=f"value {trial.value}")
        return Evidence(micro_batch_size=size, outcome=Outcome.MEASURED, log_throughput=math.log(value))
    if trial.state is TrialState.PRUNED:
        return Evidence(micro_batch_size=size, outcome=Outcome.OUT_OF_MEMORY)
    return Evidence(micro_batch_size=size, outcome=Outcome.CRASHED if trial.state is TrialState.FAIL else None)


def is_abandoned(trial: FrozenTrial, now: float) -> bool:
    """Whether nobody works on the trial any more: it is no evidence."""
    record = trial.user_attrs.get(ATTRIBUTE, {})
    if record.get("abandoned"):
        return True
    if trial.state.is_finished():
        return False
    started = trial.datetime_start.timestamp() if trial.datetime_start else now
    limit = LEASE_S if PARAMETER in trial.params else ASKING_S
    return now > record.get("lease_until", started + limit)


def open_storage(storage: str | Path | BaseStorage | None) -> BaseStorage | None:
    """Open a storage: a database URL, a file for Optuna's journal, an open storage, or None for memory.

    Raises:
        UserInputError: The URL cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if storage is None or isinstance(storage, BaseStorage):
        return storage
    if "://" not in str(storage):
        Path(storage).parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(storage)))
    try:
        return RDBStorage(str(storage))
    except Exception as error:  # drivers of any database raise what they like
        raise UserInputError(
            f"cannot open the storage {storage}: {error}", hint="check the URL, or leave --storage out"
        ) from error


def open_study(
    sampler: BexploreSampler, *, storage: str | Path | BaseStorage | None = None, name: str = "bexplore"
) -> optuna.Study:
    """Create the study, or go on with the stored one.

    Raises:
        UserInputError: The stored study asks another question (other candidates, tolerance, seed or engine version).
    """
    study = optuna.create_study(
        storage=open_storage(storage), study_name=name, direction="maximize", load_if_exists=True, sampler=sampler
    )
    question = _question(sampler)
    stored = study.user_attrs.get(ATTRIBUTE)
    if stored is None:
        study.set_user_attr(ATTRIBUTE, question)
    elif stored != question:
        changed = sorted(key for key in question if stored.get(key) != question[key])
        raise UserInputError(
            f"the stored study {name!r} asks another question: {', '.join(changed)} differ",
            hint="explore with --fresh, or use another storage",
        )
    return study


def rebuild(study: optuna.Study, history: Sequence[Observation], *, now: float) -> None:
    """Make the study tell what the journal tells: finish, add, and give up trials where they differ.

    Args:
        study: Trials in flight of dead processes are given up, those of other hosts when their lease ends.
        history: Every finished observation of the journal, in order.
        now: Unix time.
    """
    trials = study.get_trials(deepcopy=False)
    told = {trial.user_attrs.get(ATTRIBUTE, {}).get("number") for trial in trials if trial.state.is_finished()}
    num_trials = len(trials)
    for observation in sorted(history, key=lambda observation: observation.probe.number):
        number = observation.probe.number
        if number in told:
            continue
        if number < num_trials and not trials[number].state.is_finished():
            _finish_stored(study, trials[number], observation)
            continue
        for _ in range(num_trials, number):
            study.add_trial(create_trial(state=TrialState.FAIL, user_attrs={ATTRIBUTE: {"abandoned": True}}))
        study.add_trial(_trial_of(observation, study))
        num_trials = max(num_trials, number) + 1
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if is_abandoned(trial, now) or _owner_is_dead(trial):
            abandon(study, trial)


def _owner_is_dead(trial: FrozenTrial) -> bool:
    host, _, process = trial.user_attrs.get(ATTRIBUTE, {}).get("owner", "").rpartition(":")
    if host != socket.gethostname() or not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _finish_stored(study: optuna.Study, known: FrozenTrial, observation: Observation) -> None:
    storage = study._storage
    storage.set_trial_user_attr(known._trial_id, ATTRIBUTE, _record(observation))
    _tell(study, known.number, observation)


def _trial_of(observation: Observation, study: optuna.Study) -> FrozenTrial:
    sizes = study.user_attrs[ATTRIBUTE]
    size = observation.micro_batch_size
    state = STATES.get(observation.outcome, TrialState.FAIL)
    return create_trial(
        state=state,
        value=observation.samples_per_s if observation.is_measured else None,
        params={PARAMETER: size},
        distributions={PARAMETER: IntDistribution(min(size, sizes["smallest"]), max(size, sizes["largest"]))},
        user_attrs={ATTRIBUTE: _record(observation)},
    )


def lease(trial: optuna.Trial, probe: Probe, *, now: float, seconds: float = LEASE_S) -> None:
    """Say that somebody works on the trial; others leave it alone until the lease ends."""
    owner = f"{socket.gethostname()}:{os.getpid()}"
    trial.set_user_attr(ATTRIBUTE, {"lease_until": now + seconds, "owner": owner, "purpose": probe.purpose.value})


def tell(study: optuna.Study, trial: optuna.Trial, observation: Observation) -> None:
    """Tell the study how a probe ended. Out of memory is `PRUNED`: a finished, informative outcome."""
    trial.set_user_attr(ATTRIBUTE, _record(observation))
    _tell(study, trial.number, observation)


def _tell(study: optuna.Study, number: int, observation: Observation) -> None:
    if observation.is_measured:
        study.tell(number, observation.samples_per_s)
    else:
        study.tell(number, state=STATES.get(observation.outcome, TrialState.FAIL))


def abandon(study: optuna.Study, trial: optuna.Trial | FrozenTrial) -> None:
    """Give up a trial that nobody will finish; it is no evidence."""
    study._storage.set_trial_user_attr(trial._trial_id, ATTRIBUTE, {"abandoned": True})
    study.tell(trial.number, state=TrialState.FAIL)


def _record(observation: Observation) -> dict[str, Any]:
    return {"number": observation.probe.number, "evidence": Evidence.of(observation).as_dict()}


def _question(sampler: BexploreSampler) -> Mapping[str, Any]:
    sizes = sampler.space.sizes
    return {
        "smallest": sizes[0],
        "largest": sizes[-1],
        "num_candidates": len(sizes),
        "tolerance": sampler.settings.tolerance,
        "seed": sampler.settings.seed,
        "engine_version": ENGINE_VERSION,
    }
