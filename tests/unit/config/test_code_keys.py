"""`--no-code`: every key of the configuration that can run or import something is known, and refused in one line."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from bexplore.config.code_keys import CODE_KEYS
from bexplore.config.dialects.families import FAMILIES
from bexplore.config.load import load_config
from bexplore.config.schema import _SECTIONS
from bexplore.errors import UserInputError

# Every other key that takes a text, a list of texts or any value: why it is data. A new key of the schema belongs here
# or into `CODE_KEYS`.
DATA = {
    "compile.mode": "a key of torch's own table of modes",
    "candidates": "a rule's name or numbers",
    "memory_budget": "a size",
    "replica_reserve": "a size",
    "device": "a name that torch.device parses",
    "device_name": "a name in a table of devices",
    "checkpointed_modules": "patterns of names of modules",
    "settings": "values of keys that are checked as the keys themselves; none of them is a code key",
    "dialect": "a name in a table of families; what a family starts is refused",
    "rendezvous": "an address to listen at",
    "parallelism.blocks": "patterns of names of modules",
    "lengths.file": "numbers in a text, JSON or .npy, read without pickle",
    "lengths.column": "the name of a column of that file",
    "lengths.quantiles": "numbers by percent",
    "lengths.argument": "the name of a keyword of code that is refused",
    "workload.transformers.model_type": "a key of the library's own table",
    "workload.arguments": "arguments of code that is refused",
    "workload.optimizer.name": "a name in a table of torch.optim's own classes",
    "workload.optimizer.arguments": "keywords that the class names",
    "compile.enabled": "a word",
}
BASE = {
    "train_input": {"batch_size": 8, "micro_batch_size": "explore"},
    "model": {"name": "gpt2", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2}
    | {"max_position_embeddings": 16},
}
GPT2 = {"task": "causal_lm", "model_type": "gpt2"}
# What each code key is refused with, dotted: the sections that go with it, and a value.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("workload.model", {"workload": {"model": "m:a", "batch": "m:b"}}),
    ("workload.batch", {"workload": {"model": "m:a", "batch": "m:b"}}),
    ("workload.loss", {"workload": {"model": "m:a", "batch": "m:b", "loss": "m:c"}}),
    ("workload.step", {"workload": {"step": "m:a"}}),
    ("workload.loader", {"workload": {"step": "m:a", "loader": "m:b"}}),
    ("workload.samples_of", {"workload": {"step": "m:a", "samples_of": "m:b"}}),
    *(
        ("workload.transformers.config", {"workload": {"transformers": GPT2 | {"config": config}}})
        for config in (
            {"auto_map": {"AutoModelForCausalLM": "evil--modeling.Model"}},
            {"trust_remote_code": True},
            {"attn_implementation": "kernels-community/evil"},
            {"_attn_implementation": "someone/kernel:layer"},
            {"text_config": {"auto_map": {"AutoConfig": "x.Y"}}},
            {"backbone": "hf-hub:someone/model"},
            {"parts": [{"architecture": "someone/model"}]},
        )
    ),
    ("command", {"command": "python train.py {micro_batch_size} {output_dir}"}),
    ("command", {"command": ["touch", "ran"], "env": {"A": "b"}}),
    ("env", {"env": {"PYTHONPATH": "here"}}),
    ("launcher", {"launcher": "mpirun -n {num_ranks} {worker}"}),
    ("launcher", {"launcher": "sh -c 'touch ran'"}),
    ("launcher", {"launcher": "Torchrun"}),
    ("launcher", {"launcher": ["touch", "ran"]}),
    ("compile.backend", {"compile": {"backend": "evil_backend"}}),
    ("compile.options", {"compile": {"options": {"cpp.cxx": ["/tmp/evil"]}}}),
    *(
        ("storage", {"storage": url})
        for url in (
            "mssql+pyodbc://h/d?driver=/tmp/evil.so",
            "evil://host/db",
            "sqlite+evil:///a.db",
            "postgresql://h/d?plugin=evil",
            "postgresql://h/d?sslkey=engine:evil",
            "POSTGRESQL+evil://h/d",
        )
    ),
]
TAKEN = [
    {"workload": {"transformers": GPT2 | {"config": {"n_layer": 2, "_name_or_path": "openai/gpt2"}}}},
    {"workload": {"transformers": GPT2 | {"config": {"id2label": {"0": "cat / dog"}, "attn_implementation": "sdpa"}}}},
    {"launcher": "torchrun", "parallelism": {"data_parallel_replicate_degree": 1}},
    {"compile": {"backend": "eager"}},
    {"compile": True, "env": {}},
    {"storage": "sqlite:///study.db"},
    {"storage": "postgresql://me@host/db"},
]


def texts(annotation: Any) -> bool:
    """Whether a type takes a text or any value: not only numbers, flags, closed sets of words and sections."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return texts(arguments[0])
    if origin in (Union, types.UnionType, list, tuple):
        return any(texts(one) for one in arguments if one is not Ellipsis)
    if origin is Literal or annotation in (int, float, bool, type(None)):
        return False
    return not (isinstance(annotation, type) and issubclass(annotation, BaseModel))


def written(folder: Path, explore: dict[str, Any], **sections: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(json.dumps(BASE | sections | {"explore": explore}))
    return path


def test_every_key_of_the_schema_that_takes_a_text_is_classified():
    keys = {
        ".".join((*path, field.alias or name))
        for path, section in _SECTIONS.items()
        for name, field in section.model_fields.items()
        if texts(field.annotation) or (*path, name) in CODE_KEYS
    }
    code = {".".join(path) for path in CODE_KEYS}
    assert keys == code | set(DATA)
    assert not code & set(DATA)


def test_every_code_key_is_tried():
    assert {key for key, _ in REFUSED} == {".".join(path) for path in CODE_KEYS}


@pytest.mark.promise(
    "a file that names code (workload, command, env, launcher, compiler plugin, driver), with --no-code",
    "refused in one line; nothing is started or imported",
)
@pytest.mark.parametrize(("key", "explore"), REFUSED, ids=[f"{key}-{i}" for i, (key, _) in enumerate(REFUSED)])
def test_no_code_refuses_each_key_that_runs_or_imports(key, explore, tmp_path):
    with pytest.raises(UserInputError) as caught:
        load_config(written(tmp_path, explore), allow_code=False)
    refusals = [
        line for line in caught.value.message.splitlines() if line.endswith("and `allow_code=False` refuses that")
    ]
    assert len([line for line in refusals if f"explore.{key} " in line]) == 1


@pytest.mark.parametrize("key", ["command", "storage", "launcher", "workload.step"])
def test_no_code_refuses_what_an_override_names_in_one_line(key, tmp_path):
    values = {"command": "[touch, ran]", "storage": "evil://me:hunter2@h/d", "launcher": "touch {worker}"}
    with pytest.raises(UserInputError) as caught:
        load_config(written(tmp_path, {}), overrides=[f"explore.{key}={values.get(key, 'm:step')}"], allow_code=False)
    assert "\n" not in caught.value.message
    assert "hunter2" not in caught.value.message


@pytest.mark.promise("a file of a known family (axolotl, torchtitan ...), with --no-code", "its command is refused")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_code_refuses_the_usual_command_of_each_family(family, tmp_path):
    path = tmp_path / "job.yaml"
    sections: dict[str, Any] = {}
    *parents, last = FAMILIES[family].micro_batch_size[0].split(".")
    inner = sections
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = "explore"
    path.write_text(json.dumps(sections))
    with pytest.raises(UserInputError) as caught:
        load_config(path, overrides=[f"explore.dialect={family}"], allow_code=False)
    assert "is explored by starting its program, and `allow_code=False` refuses that" in caught.value.message


@pytest.mark.parametrize("explore", TAKEN, ids=str)
def test_no_code_takes_what_is_data(explore, tmp_path):
    load_config(written(tmp_path, explore), allow_code=False)
