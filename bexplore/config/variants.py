"""Variants of a job: `explore.settings`, whose values are checked as the keys themselves are."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bexplore.config.document import Document, Override, Problems, dotted_path
from bexplore.config.document.reader import KeyPath, quote
from bexplore.errors import close_match
from bexplore.job import CompileSettings, Job, Mode

if TYPE_CHECKING:
    from bexplore.config.schema import ExploreSettings  # pydantic is behind it: runs and plans read variants, too

# Each variant is traced, and most are compiled and run: more would cost more than they save.
MAX_VARIANTS = 16
# Combinations that are looked at: many may be alike, or contradict themselves.
MAX_COMBINATIONS = 256
KEYS = (
    "activation_checkpointing",
    "activation_memory_budget",
    "precision",
    "compile.mode",
    "compile.enabled",
    "optimizer.fused",
    "optimizer.foreach",
)
AUTOMATIC: Mapping[str, tuple[Any, ...]] = {
    "activation_memory_budget": (1.0, 0.5, 0.2),
    "activation_checkpointing": ("none", "selective", "full"),
}
_SETTINGS: KeyPath = ("explore", "settings")
# Makes the job of a document, and notes what is wrong with it.
JobOf = Callable[[Problems], Job]
ARGUMENT = "workload.arguments."  # and the name of a keyword argument of the user's own callables


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVariant:
    """A job with one value for each key of `explore.settings`."""

    values: Mapping[str, Any]  # by dotted key of `explore`; without arguments that the file does not give
    job: Job
    name: str  # the values that are explored, in words


def find_key_path(key: str) -> KeyPath:
    """Return the path of a key of `explore.settings` in the file: a name of an argument may contain dots."""
    if key.startswith(ARGUMENT):
        return ("explore", "workload", "arguments", key.removeprefix(ARGUMENT))
    return ("explore", *key.split("."))


def has_setting(key: str, job: Job) -> bool:
    """Return whether a job has a value of a key: it may lack an argument of the user's own callables."""
    return not key.startswith(ARGUMENT) or key.removeprefix(ARGUMENT) in job.model.get("arguments", {})


def get_setting(key: str, job: Job) -> Any:
    """Return the value that a job has of a key of `explore.settings`, as the file would have it.

    Raises:
        KeyError: The key is an argument of the user's own callables that the job does not give.
    """
    if key.startswith(ARGUMENT):
        return job.model.get("arguments", {})[key.removeprefix(ARGUMENT)]
    return {
        "activation_checkpointing": job.activation_checkpointing,
        "activation_memory_budget": job.activation_memory_budget,
        "precision": job.precision.value,
        "compile.enabled": job.compile.enabled,
        "compile.mode": job.compile.mode or "default",
        "optimizer.fused": job.optimizer_arguments.get("fused"),
        "optimizer.foreach": job.optimizer_arguments.get("foreach"),
    }[key]


def name_settings(values: Mapping[str, Any]) -> str:
    """Return settings in words, such as `activation_checkpointing=selective, chunk=8`; empty for none."""
    return ", ".join(f"{key.removeprefix(ARGUMENT)}={_word(value)}" for key, value in values.items())


def changes_training(values: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings, in words, that train with other numbers than the file's own settings do.

    What an argument of the user's own callables changes is known to nobody here.
    """
    precision = values.get("precision")
    return () if precision == own.get("precision") else (f"precision {precision} instead of {own.get('precision')}",)


def _word(value: Any) -> str:
    words = {None: "default", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingAxis:
    """One key of `explore.settings` with the values to choose from, and where they stand."""

    key: str  # dotted, of the section `explore`
    values: tuple[Any, ...]
    path: KeyPath
    is_fixed: bool = False  # whether a single value stands there and no list: every variant has it

    def place(self, index: int) -> KeyPath:
        """Return the path of one of the values."""
        return self.path if self.is_fixed else (*self.path, index)


def read_axes(problems: Problems) -> tuple[SettingAxis, ...]:
    """Return the keys of `explore.settings` with their values; none where it is absent, wrong or `auto`.

    A single value is put where the key itself stands: the job is then read as if the file said so.
    """
    section = problems.document.get(_SETTINGS)
    if not isinstance(section, dict):
        return ()
    read = (_axis(problems, key, value, path) for key, value, path in _flat(section))
    axes = tuple(axis for axis in read if axis is not None)
    for axis in axes:
        if axis.is_fixed:
            _put(problems.document, axis, 0)
    return axes


def find_variants(
    problems: Problems, settings: ExploreSettings, axes: Sequence[SettingAxis], own: Job, job_of: JobOf
) -> tuple[JobVariant, ...]:
    """Return the variants of a job, its own settings first; none where there is nothing to choose from."""
    against = find_contradiction(own)
    if against is not None:
        key, rule, hint = against
        problems.error(find_key_path(key), rule, hint)
    for axis in axes:
        if not axis.is_fixed:
            _check_values(problems, axis, job_of)
    if problems.found:
        return ()
    variants = _combined(problems, _automatic(own) if settings.settings == "auto" else axes, own, job_of)
    if len(variants) < 2:
        return ()
    _check_other_settings(problems, settings)
    return variants


def find_contradiction(job: Job) -> tuple[str, str, str] | None:
    """Return key, rule and hint of a setting that contradicts another one of its job; None where none does."""
    if job.activation_memory_budget < 1.0 and not job.compile.enabled:
        return (
            "activation_memory_budget",
            "activation_memory_budget below 1 is the compiler's, and nothing is compiled",
            "remove it, or compile; explore.activation_checkpointing works without the compiler",
        )
    if job.optimizer_arguments.get("fused") and job.optimizer_arguments.get("foreach"):
        return "optimizer.fused", "fused and foreach exclude each other, in torch.optim too", "keep one of them"
    return None


def _flat(section: Mapping[str, Any]) -> Iterator[tuple[str, Any, KeyPath]]:

    def walk(key: str, value: Any, path: KeyPath) -> Iterator[tuple[str, Any, KeyPath]]:
        if not isinstance(value, dict) or key in KEYS or key.startswith(ARGUMENT):
            yield key, value, path
            return
        for name, inner in value.items():
            yield from walk(f"{key}.{name}", inner, (*path, name))

    for name, value in section.items():
        yield from walk(str(name), value, (*_SETTINGS, name))


def _axis(problems: Problems, key: str, value: Any, path: KeyPath) -> SettingAxis | None:
    if key not in KEYS and key.removeprefix(ARGUMENT) == key:
        near = close_match(key, [*KEYS, f"{ARGUMENT}NAME"])
        hint = f"did you mean {near}?" if near else f"known here: {', '.join(KEYS)}, {ARGUMENT}NAME"
        problems.error(path, f"unknown key {quote(key)} in {dotted_path(_SETTINGS)}", hint)
        return None
    workload = problems.document.get(("explore", "workload"))
    if key.startswith(ARGUMENT) and not (isinstance(workload, dict) and {"model", "step"} & workload.keys()):
        rule = f"{key} is an argument of your own code, and explore.workload names neither model nor step"
        problems.error(path, rule, "remove it")
        return None
    if value == []:
        problems.error(path, f"{key} has no value to choose from", "list some, or remove it")
        return None
    is_list = isinstance(value, list)
    axis = SettingAxis(key=key, values=tuple(value) if is_list else (value,), path=path, is_fixed=not is_list)
    for index, one in enumerate(axis.values):
        if key == "compile.enabled" and one == "both":
            rule = "compile.enabled: both compares two programs at the end, and is none of them"
            problems.error(axis.place(index), rule, "list true and false, or write explore.compile: both")
            return None
    return axis


def _put(document: Document, axis: SettingAxis, index: int) -> None:
    """Put a value where its key itself stands, so that messages about it name the line of the value."""
    path, compiling = find_key_path(axis.key), document.get(("explore", "compile"))
    if path[1] == "compile" and compiling is not None and not isinstance(compiling, dict):
        document.values["explore"]["compile"] = {"enabled": compiling}  # what `compile: true` is short for
    place = document.position(axis.place(index))
    document.put(path, Override(parts=(), value=copy.deepcopy(axis.values[index]), source=""))
    document.positions[path] = place


def _with(problems: Problems, values: Sequence[tuple[SettingAxis, int]]) -> Problems:
    changed = copy.deepcopy(problems.document)
    for axis, index in values:
        _put(changed, axis, index)
    return Problems(document=changed)


def _check_values(problems: Problems, axis: SettingAxis, job_of: JobOf) -> None:
    for index in range(len(axis.values)):
        alone = _with(problems, [(axis, index)])
        job_of(alone)
        problems.found.extend(one for one in alone.found if one not in problems.found)


def _automatic(own: Job) -> tuple[SettingAxis, ...]:
    """Return the setting that trades memory for speed in a job and leaves its training as it is."""
    is_compiled = own.compile.uses_inductor
    if own.mode is Mode.EVAL or ("step" in own.model and not is_compiled):
        return ()
    key = "activation_memory_budget" if is_compiled else "activation_checkpointing"
    return (SettingAxis(key=key, values=AUTOMATIC[key], path=_SETTINGS),)


def _combined(problems: Problems, axes: Sequence[SettingAxis], own: Job, job_of: JobOf) -> tuple[JobVariant, ...]:
    """Return a variant for each program that the values make, the file's own first."""
    listed = [axis for axis in axes if not axis.is_fixed]
    num_combinations = math.prod(len(axis.values) for axis in listed)
    if num_combinations > MAX_COMBINATIONS:
        _refuse(problems, listed, num_combinations)
        return ()
    programs = {_program(own): own}
    left_out: Counter[str] = Counter()
    for chosen in itertools.product(*(range(len(axis.values)) for axis in listed)):
        job = job_of(_with(problems, list(zip(listed, chosen, strict=True))))
        against = find_contradiction(job)
        if against is None:
            programs.setdefault(_program(job), job)
        else:
            left_out[against[1]] += 1
    if len(programs) > MAX_VARIANTS:
        _refuse(problems, listed, len(programs))
        return ()
    for rule, count in left_out.items():
        problems.warn(_SETTINGS, f"{count} of {num_combinations} combinations are left out: {rule}")
    if not left_out:
        _notice_without_effect(problems, listed, list(programs.values()))
    return tuple(_variant(job, axes) for job in programs.values())


def _program(job: Job) -> str:
    """Return a text that is the same for jobs whose settings make one program."""
    if not job.compile.enabled:
        job = dataclasses.replace(job, compile=CompileSettings(enabled=False))
    if job.mode is Mode.EVAL:
        job = dataclasses.replace(
            job, optimizer_arguments={}, activation_checkpointing="none", activation_memory_budget=1.0
        )
    return json.dumps(job.as_record(), sort_keys=True, default=str)


def _variant(job: Job, axes: Sequence[SettingAxis]) -> JobVariant:
    deciding = [axis for axis in axes if job.compile.enabled or axis.key != "compile.mode"]
    values = {axis.key: get_setting(axis.key, job) for axis in deciding if has_setting(axis.key, job)}
    # An argument that the file does not give has the default of the callable.
    name = name_settings({axis.key: values.get(axis.key) for axis in deciding if not axis.is_fixed})
    return JobVariant(values=values, job=job, name=name)


def _refuse(problems: Problems, listed: Sequence[SettingAxis], count: int) -> None:
    product = " x ".join(str(len(axis.values)) for axis in listed)
    longest = max(listed, key=lambda axis: len(axis.values))
    problems.error(
        _SETTINGS,
        f"explore.settings makes {count} variants of {product} values; {MAX_VARIANTS} are the most",
        f"shorten {longest.key}, which has {len(longest.values)} values; a single value without brackets fixes a key",
    )


def _notice_without_effect(problems: Problems, listed: Sequence[SettingAxis], jobs: Sequence[Job]) -> None:
    for axis in listed:
        made = {repr(get_setting(axis.key, job)) if has_setting(axis.key, job) else "" for job in jobs}
        if len(axis.values) > 1 and len(made) == 1:
            why = ", since an evaluation has no backward pass" if jobs[0].mode is Mode.EVAL else ""
            problems.warn(axis.path, f"{axis.key} changes nothing here{why}")


def _check_other_settings(problems: Problems, settings: ExploreSettings) -> None:
    if settings.launcher not in (None, "none"):
        problems.error(
            ("explore", "launcher"),
            "settings cannot be explored on all ranks yet",
            "remove launcher, and one rank shows which settings fit and pay; or remove explore.settings",
        )
