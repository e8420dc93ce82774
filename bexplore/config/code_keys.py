"""The one rule of `allow_code=False`: the keys of a file that can make this program run or import something.

A test of the suite, `test_code_keys.py`, lists every other key that takes a text, with the reason why it is only data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bexplore.config.document import Problems, dotted_path
from bexplore.config.document.reader import KeyPath, quote

HINT = "`allow_code=True` if you trust the file"
IMPORT_KEYS = ("model", "batch", "loss", "step", "loader", "samples_of")  # of `explore.workload`
# Launchers whose words are this program's own, and that start its own workers.
OWN_LAUNCHERS = ("none", "torchrun", "srun", "ray", "external")
# Backends that come with torch; others are looked up among the entry points of installed packages. Source:
# `lookup_backend` in torch/_dynamo/backends/registry.py.
OWN_BACKENDS = ("inductor", "eager", "aot_eager", "cudagraphs")
# Databases whose drivers this program installs or Python has. Others are loaded by name, as are SQLAlchemy's plugins
# and the libraries that options of a driver name (ODBC's DRIVER, libpq's `sslkey=engine:`).
OWN_STORAGES = ("sqlite", "postgresql", "postgresql+psycopg", "postgresql+psycopg2")
# Keys of a configuration of transformers that bring code of a repository. Sources: `resolve_trust_remote_code` in
# dynamic_module_utils.py; integrations/hub_kernels.py.
_REMOTE_KEYS = ("auto_map", "trust_remote_code", "custom_pipelines", "use_kernels", "kernel_config")
# Texts for people in real configurations: where it came from, labels, prompts. Nothing is read where they point.
_PROSE = ("_name_or_path", "name_or_path", "id2label", "label2id", "task_specific_params")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeKey:
    """A key that can make this program run or import something."""

    does: str  # a verb and its object
    is_meant: Callable[[Any], bool] | None = None  # whether a value does; None where each value that is not null does
    is_shown: bool = False  # whether a message may repeat the value, which cannot hold a secret

    def refuses(self, value: Any) -> bool:
        """Return whether a value is refused."""
        return value is not None and value != {} and (self.is_meant is None or self.is_meant(value))


def _is_foreign_storage(value: Any) -> bool:
    if not isinstance(value, str) or "://" not in value:
        return False  # a file, or a mistake that is refused as such
    return value.partition("://")[0].lower() not in OWN_STORAGES or "?" in value


def _brings_code(config: Any) -> bool:
    """Return whether a configuration of transformers, or one within it, names code or weights of a repository."""
    if isinstance(config, Mapping):
        named = ((key, value) for key, value in config.items() if key not in _PROSE)
        return any((key in _REMOTE_KEYS and bool(value)) or _brings_code(value) for key, value in named)
    if isinstance(config, list | tuple):
        return any(map(_brings_code, config))
    return isinstance(config, str) and ("/" in config or ":" in config)


CODE_KEYS: Mapping[KeyPath, CodeKey] = {
    **{("workload", key): CodeKey(does="imports code", is_shown=True) for key in IMPORT_KEYS},
    ("workload", "transformers", "config"): CodeKey(does="names code of a repository", is_meant=_brings_code),
    ("command",): CodeKey(does="starts a program"),
    ("env",): CodeKey(does="sets the environment of a program, which decides what it imports"),
    ("launcher",): CodeKey(
        does="starts a program", is_meant=lambda value: not isinstance(value, str) or value not in OWN_LAUNCHERS
    ),
    ("compile", "backend"): CodeKey(
        does="loads a plugin of the compiler", is_meant=lambda value: value not in OWN_BACKENDS, is_shown=True
    ),
    ("compile", "options"): CodeKey(does="names programs that the compiler starts"),
    ("storage",): CodeKey(does="loads a driver or a plugin of a database", is_meant=_is_foreign_storage),
}


def refuse_code(section: Mapping[str, Any], problems: Problems) -> None:
    """Note each key of the section `explore` that can run or import something; what it would run is not looked at."""
    for path, key in CODE_KEYS.items():
        value: Any = section
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if key.refuses(value):
            place, shown = ("explore", *path), f", {quote(value)}," if key.is_shown else ","
            problems.error(place, f"{dotted_path(place)} {key.does}{shown} and `allow_code=False` refuses that", HINT)


def refuse_usual_command(problems: Problems, place: KeyPath, family: str) -> None:
    """Note that a file of a family is explored by starting the family's own program."""
    problems.error(
        place, f"a file of {family} is explored by starting its program, and `allow_code=False` refuses that", HINT
    )
