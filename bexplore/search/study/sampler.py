"""Optuna's sampler interface over the posterior: the study's finished and running trials decide."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from bexplore.errors import UserInputError
from bexplore.search.evidence import Evidence
from bexplore.search.policy.decide import decide
from bexplore.search.policy.decision import Decision
from bexplore.search.posterior.joint import ONE_VARIANT, Variant
from bexplore.search.posterior.posterior import ENGINE_VERSION
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from bexplore.search.study import trials
from bexplore.search.study.storage import open_storage


class BexploreSampler(BaseSampler):
    """Chooses the probe that is worth most per second; a pure function of the study's trials.

    A fresh process on the same storage chooses exactly the same size. Parallel explorers see each other's trials in
    flight and choose other sizes. The value of a `COMPLETE` trial is samples per second, a `PRUNED` one ran out of
    memory, and a `FAIL`ed one failed for a reason of its own.

    Example:
        >>> space = Space.from_sizes([1, 2, 4, 8])
        >>> study = optuna.create_study(direction="maximize", sampler=BexploreSampler(space))
        >>> study.ask().suggest_int("micro_batch_size", 1, 8)
        1
    """

    def __init__(
        self,
        space: Space,
        settings: SearchSettings | None = None,
        *,
        variants: Sequence[Variant] = ONE_VARIANT,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.variants = tuple(variants)
        self.space = space
        self.settings = settings or SearchSettings()
        self._now = now
        self._decisions: dict[int, Decision] = {}
        self._given: tuple[int, int] | None = None
        self._last: tuple[object, Decision] | None = None

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Distributions of the size and, of a job with several, its variant; the sampler returns only candidates."""
        found: dict[str, BaseDistribution] = {trials.PARAMETER: IntDistribution(self.space.base, self.space.sizes[-1])}
        if len(self.variants) > 1:
            found[trials.VARIANT] = IntDistribution(0, len(self.variants) - 1)
        return found

    def ask(self, study: optuna.Study, size: int | None = None, variant: int = 0) -> optuna.Trial:
        """Begin a trial of a size; None for the sampler's choice."""
        self._given = None if size is None else (size, variant)
        try:
            return study.ask(self.distributions)
        finally:
            self._given = None

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of all parameters."""
        return self.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the size to probe next; where no probe is worth its cost, the recommended one."""
        if self._given is not None:
            return self._parameters(*self._given)
        decision = self.decide(study, asking=trial.number)
        self._decisions[trial.number] = decision
        if decision.stop_reason is None:
            return self._parameters(decision.micro_batch_size, decision.variant)
        best = decision.recommendation
        return self._parameters(best.micro_batch_size, best.variant) if best else self._parameters(self.space.base, 0)

    def _parameters(self, size: int, variant: int) -> dict[str, Any]:
        own = {trials.VARIANT: variant} if len(self.variants) > 1 else {}
        return {trials.PARAMETER: size} | own

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse any other parameter than the micro-batch size."""
        raise UserInputError(
            f"the study asks for {param_name!r} over {param_distribution}",
            hint=f"suggest {trials.PARAMETER!r} from {self.space.base} to {self.space.sizes[-1]}",
        )

    def decide(self, study: optuna.Study, *, asking: int | None = None, is_over: bool = False) -> Decision:
        """Decide on the next probe.

        Args:
            asking: Number of the trial that is being created, which is no evidence; None for none.
            is_over: As in `policy.decide.decide`.
        """
        evidence, num_unassigned = self._evidence(study, asking)
        key = (tuple(evidence), num_unassigned, is_over)
        if self._last is None or self._last[0] != key:
            decision = decide(
                self.space,
                evidence,
                self.settings,
                num_unassigned=num_unassigned,
                variants=self.variants,
                is_over=is_over,
            )
            self._last = (key, decision)
        return self._last[1]

    def read_decision(self, study: optuna.Study, number: int) -> Decision:
        """Return the decision behind a trial; with one candidate, Optuna does not call the sampler."""
        return self._decisions.pop(number, None) or self.decide(study, asking=number)

    def _evidence(self, study: optuna.Study, asking: int | None) -> tuple[list[Evidence], int]:
        evidence, num_unassigned = [], 0
        for trial in sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number):
            if trial.number == asking or trials.is_abandoned(trial, self._now()):
                continue
            if trial.state is TrialState.RUNNING and trials.PARAMETER not in trial.params:
                num_unassigned += asking is None or trial.number < asking
            elif trials.PARAMETER in trial.params:
                evidence.append(trials.read_evidence(trial))
        return evidence, num_unassigned


def open_study(
    sampler: BexploreSampler, *, storage: str | Path | BaseStorage | None = None, name: str = "bexplore"
) -> optuna.Study:
    """Create the study, or open the stored one.

    Raises:
        UserInputError: The stored study has another search specification (candidates, tolerance, seed, engine version).
    """
    study = optuna.create_study(
        storage=open_storage(storage), study_name=name, direction="maximize", load_if_exists=True, sampler=sampler
    )
    specification, stored = _search_specification(sampler), trials.read_search_specification(study)
    if not stored:
        trials.set_search_specification(study, specification)
        _name_the_value(study)
    elif stored != specification:
        changed = sorted(key for key in specification if stored.get(key) != specification[key])
        differences = ", ".join(f"{key} {stored.get(key)} there, {specification[key]} here" for key in changed)
        hint = "explore with `fresh=True`, or use another storage"
        if "largest" in changed:
            hint += "; explorers that share a study need the same candidates: set max, and the same memory_budget"
        raise UserInputError(f"the stored study {name!r} has another search specification: {differences}", hint=hint)
    return study


def _name_the_value(study: optuna.Study) -> None:
    """Name the value, which dashboards show at their axis instead of `Objective 0`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # stable in what it does since Optuna 3.4
        study.set_metric_names(["samples/s"])


def _search_specification(sampler: BexploreSampler) -> Mapping[str, Any]:
    sizes = sampler.space.sizes
    return {
        "smallest": sizes[0],
        "largest": sizes[-1],
        "num_candidates": len(sizes),
        "tolerance": sampler.settings.tolerance,
        "seed": sampler.settings.seed,
        "engine_version": ENGINE_VERSION,
        **({"num_variants": len(sampler.variants)} if len(sampler.variants) > 1 else {}),
    }
