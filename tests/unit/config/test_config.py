from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest

from bexplore.config.config import Config, ExploreSettings, RequestKind, SizeRequest
from bexplore.config.document import Document, Problems
from bexplore.config.document.reader import YamlReader
from bexplore.config.json_schema import make_schema
from bexplore.config.load import load_config
from bexplore.config.schema import EFFORTS, read_settings
from bexplore.errors import UserInputError
from bexplore.host.records import from_record
from bexplore.job import Job, Mode, Precision, TorchSettings
from bexplore.run.fingerprint import Fingerprint, search_settings

GIB = 2**30


def settings(text: str = "", **options) -> ExploreSettings:
    """The section written as YAML; raises if anything is wrong with it."""
    reader = YamlReader("job.yaml")
    values = reader.read(f"explore:\n{text}" if text else "{}")
    problems = Problems(document=Document(path=Path("job.yaml"), values=values, positions=reader.positions))
    read = read_settings(values.get("explore"), problems, **options)
    problems.raise_if_any()
    return read


def refusal(text: str, **options) -> str:
    with pytest.raises(UserInputError) as refused:
        settings(text, **options)
    return f"{refused.value.message} | {refused.value.hint}"


def config(**fields) -> Config:
    defaults = {
        "path": Path("job.yaml"),
        "layout": "test",
        "mode": Mode.TRAIN,
        "request": SizeRequest(kind=RequestKind.EXPLORE),
        "batch_size": 240,
        "num_replicas": 2,
        "model_dir": "model_dir",
        "job": Job(workload="decoder"),
        "settings": ExploreSettings.model_validate({}),
    }
    return Config(**(defaults | fields))


def test_every_setting_has_a_default_and_a_doc_line():
    for name, field in ExploreSettings.model_fields.items():
        assert not field.is_required(), name
        assert field.description, name


def test_without_a_section_the_defaults_hold():
    defaults = settings()
    assert (defaults.max_probes, defaults.target_confidence, defaults.tolerance) == (16, 90, 0.02)
    assert (defaults.device, defaults.seed, defaults.candidates, defaults.divisibility) == ("auto", 0, "all", "strict")


@pytest.mark.parametrize("word", EFFORTS)
def test_the_word_for_effort_sets_what_is_not_given(word):
    read = settings(f"  effort: {word}\n  max_probes: 3")
    assert read.max_probes == 3
    assert read.passes_per_probe == EFFORTS[word].passes_per_probe
    assert read.target_confidence == EFFORTS[word].target_confidence


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [
        ("auto", None),
        ("12GiB", 12 * GIB),
        ("0.5", 40 * GIB),
        ("50%", 40 * GIB),
        ("1", 80 * GIB),
        ("2147483648", 2 * GIB),
    ],
)
def test_a_memory_budget_is_a_size_or_a_share_of_the_device(written, num_bytes):
    assert settings(f"  memory_budget: {written}").memory_budget_bytes(80 * GIB) == num_bytes


@pytest.mark.parametrize("written", ["12", "0", "-1", "true", "none", "200%", ".nan", ".inf", "[]", "12 parsecs"])
def test_a_memory_budget_that_holds_nothing_is_refused(written):
    assert "job.yaml:2: explore.memory_budget" in refusal(f"  memory_budget: {written}")


def test_the_reserve_of_replicas_may_be_nothing():
    assert settings("  replica_reserve: 0").replica_reserve_bytes == 0
    assert settings("  replica_reserve: 1GiB").replica_reserve_bytes == GIB
    assert settings().replica_reserve_bytes is None


def test_durations_are_seconds_or_text():
    read = settings("  time_budget: 10min\n  probe_time_limit: null\n  training_time: 3d")
    assert (read.time_budget_s, read.probe_time_limit_s, read.training_time_s) == (600, None, 259_200)
    assert settings().training_time_s is None


def test_candidates_are_a_rule_or_a_sorted_list():
    assert settings("  candidates: powers_of_two").candidates == "powers_of_two"
    assert settings("  candidates: [8, 2, 8]").candidates == (2, 8)


@pytest.mark.parametrize("written", ["primes", "[]", "[0]", "[1, two]", "[true]", "7"])
def test_candidates_that_are_neither_are_refused(written):
    assert "must be one of all, powers_of_two, divisors, even, or a list" in refusal(f"  candidates: {written}")


def test_settings_of_torch_have_its_own_names_and_values():
    section = settings("  torch: {float32_matmul_precision: high, cudnn_benchmark: true}").torch
    assert (section.float32_matmul_precision, section.cudnn_benchmark) == ("high", True)
    assert settings().torch.model_dump() == {"float32_matmul_precision": None, "cudnn_benchmark": None}
    assert "must be highest, high or medium" in refusal("  torch: {float32_matmul_precision: tf32}")
    assert 'did you mean "cudnn_benchmark"?' in refusal("  torch: {cudnn_benchmarks: true}")


def test_settings_of_torch_make_another_program():
    plain = Job(workload="decoder")
    fast = dataclasses.replace(plain, torch=TorchSettings(float32_matmul_precision="high"))
    assert fast.fingerprint() != plain.fingerprint()
    assert from_record(Job, fast.as_record()) == fast


def test_compile_is_a_truth_value_for_short():
    assert settings("  compile: false").compile.enabled is False
    assert settings("  compile: both").compile.enabled == "both"
    assert "must be true, false or both" in refusal("  compile: {enabled: perhaps}")
    assert settings("  compile: {mode: max-autotune, fullgraph: true}").compile.mode == "max-autotune"
    assert "exclude each other" in refusal("  compile: {mode: default, options: {x: 1}}")
    assert 'explore.compile must be true, false, both or a mapping, not "auto"' in refusal("  compile: auto")


@pytest.mark.parametrize(("word", "meant"), [("off", False), ("no", False), ("on", True), ("Yes", True)])
def test_truth_values_are_also_the_words_of_yaml_1_1(word, meant):
    read = settings(f"  compile: {word}\n  activation_checkpointing: {word}\n  keep_batch_size: {word}")
    assert read.compile.enabled is settings(f"  compile: {{enabled: {word}}}").compile.enabled is meant
    assert read.activation_checkpointing == ("full" if meant else "none")
    assert read.keep_batch_size is meant
    assert settings(f"  optimizer: {{fused: {word}}}").optimizer.fused is meant


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  tolerence: 1", 'unknown key "tolerence" in explore | did you mean "tolerance"?'),
        ("  compile: {backand: x}", 'unknown key "backand" in explore.compile | did you mean "backend"?'),
        ("  xyz: 1", "known here: effort"),
        ("  tolerance: 1", "explore.tolerance must be below 1, not 1"),
        ("  tolerance: .nan", "explore.tolerance must be a finite number"),
        ("  max_probes: 0", "explore.max_probes must be at least 1, not 0"),
        ("  max_probes: 8.5", "explore.max_probes must be a whole number, not 8.5"),
        ("  max_probes: '8 '", 'explore.max_probes must be a whole number, not "8 "'),
        ("  max_probes: 1e9", "explore.max_probes must be a whole number"),
        ("  max_probes: true", "explore.max_probes must be a whole number, not true"),
        ("  max_probes: null", "explore.max_probes must be a whole number, not null"),
        ("  target_confidence: 100", "explore.target_confidence must be below 100"),
        ("  effort: quik", "explore.effort must be quick, normal or thorough, not \"quik\" | did you mean quick?"),
        ("  precision: fp16", 'explore.precision must be one of float32,'),
        ("  precision: float16", "did you mean autocast_float16?"),
        ("  precision: bf16", "did you mean bfloat16?"),
        ("  target_confidence: 0.9", "target_confidence must be out of 100, not 0.9 out of 1 | did you mean 90?"),
        ("  target_confidence: 95%", 'target_confidence must be a number, not "95%" | type 95'),
        ("  tolerance: 2", "explore.tolerance must be below 1, not 2 | did you mean 0.02, 2 %?"),
        ("  tolerance: 2%", "did you mean 0.02?"),
        ("  memory_budget: 80", 'memory_budget: 80 has no unit | did you mean "80GiB", or 0.8'),
        ("  memory_budget: '0.8'", "type 0.8 without quotes"),
        ("  memory_budget: 4096", '4096 is 4096 bytes, which hold nothing | did you mean "4096MiB"?'),
        ("  replica_reserve: 2", '2 is 2 bytes, which hold nothing | did you mean "2GiB"?'),
        ("  replica_reserve: 0.1", "a reserve is a size, such as 2GiB, not a fraction"),
        ("  time_budget: 0.5", 'too short for any stage | did you mean "0.5h" or "0.5min"?'),
        ("  probe_time_limit: 10ms", "ms are milliseconds"),
        ("  stage_time_floor: 0.1", "explore.stage_time_floor: 0.1 s is too short"),
        ("  candidates: power_of_two", "did you mean powers_of_two?"),
        ("  device: 3", "explore.device must be a text, not 3"),
        ("  training_time: weeks", '"weeks" is not a duration'),
        ("  time_budget: soon", '"soon" is not a duration'),
        ("  min: 9\n  max: 3", "min 9 is above max 3"),
        ("  seed: -1", "explore.seed must be at least 0"),
        ("  workload: 3", "explore.workload must be a mapping"),
        ("  workload: {}", "needs exactly one of transformers, model, step; given: none of them"),
        ("  workload: {model: 'a:b', step: 'a:b', batch: 'a:b'}", "given: model and step"),
        ("  workload: {model: 'a:b'}", "model needs batch"),
        ("  workload: {model: a.b, batch: 'a:b'}", "must be an import path"),
        ("  workload: {step: 'a:b', loss: 'a:b'}", "batch and loss go with model"),
        ("  workload: {step: 'a:b', optimizer: {name: SGD}}", "step brings its own optimizers"),
        ("  workload: {transformers: {task: causal_lm}}", "explore.workload.transformers.model_type is missing"),
        ("  workload: {transformers: {task: lm, model_type: gpt2}}", "explore.workload.transformers.task must be"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_told_with_rule_value_and_hint(text, expected):
    assert expected in refusal(text)


def test_few_seconds_without_a_unit_are_taken_and_told():
    reader = YamlReader("job.yaml")
    values = reader.read("explore:\n  time_budget: 10\n  probe_time_limit: 90\n  training_time: 12\n")
    problems = Problems(document=Document(path=Path("job.yaml"), values=values, positions=reader.positions))

    assert read_settings(values["explore"], problems).time_budget_s == 10
    assert problems.warnings == [
        "job.yaml:2: time_budget 10 without a unit is taken as seconds; write 10min for minutes",
        "job.yaml:4: training_time 12 without a unit is taken as seconds; write 12h for hours",
    ]


def test_each_mistake_of_the_section_has_its_line():
    told = refusal("  tolerance: 7\n  seed: x\n  workload:\n    model: 'a:b'\n    batsh: 'a:b'")
    assert "3 problems" in told
    assert [f"job.yaml:{line}:" in told for line in (2, 3, 4, 6)] == [True, True, False, True]


def test_a_section_that_is_no_mapping_is_refused():
    assert "explore must be a mapping of settings, not 5" in refusal("  5")


def test_the_bounds_of_the_request_and_of_the_section_both_hold():
    request = SizeRequest(kind=RequestKind.EXPLORE, minimum=2, maximum=64)
    both = config(request=request, settings=settings("  min: 4\n  max: 100"))
    assert (both.minimum, both.maximum) == (4, 64)
    assert (config().minimum, config().maximum) == (1, None)


def test_auto_is_limited_to_divisors():
    automatic = config(request=SizeRequest(kind=RequestKind.AUTO), settings=settings("  candidates: all"))
    assert automatic.candidates == "divisors"
    assert config().candidates == "all"


def test_the_replica_batch_follows_the_rule():
    assert config(batch_size=240).replica_batch_size == 120
    assert config(batch_size=673).replica_batch_size is None
    assert config(batch_size=673, settings=settings("  divisibility: even")).replica_batch_size == 337
    assert config(batch_size=None).replica_batch_size is None


def test_a_training_takes_as_long_as_said_else_its_samples_else_ten_hours():
    steps = config(max_steps=100)  # of 240 samples on 2 replicas
    said = config(max_steps=100, settings=settings("  training_time: 2h"))
    for training, expected in (
        (steps, (36_000.0, 12_000)),
        (said, (7200.0, None)),
        (config(), (36_000.0, None)),
        (config(max_steps=100, batch_size=None), (36_000.0, None)),
    ):
        found = search_settings(training)
        assert (found.training_time_s, found.training_samples) == expected


def test_another_training_time_is_another_question_and_other_steps_are_not():
    def search_specification(**fields) -> dict:
        return Fingerprint(config=config(**fields), folder_name="job").search_specification()

    assert search_specification(settings=settings("  training_time: 2h")) != search_specification()
    assert (
        search_specification(max_steps=100)
        == search_specification(max_steps=200, batch_size=480)
        == search_specification()
    )


def test_float16_becomes_bfloat16_off_cuda_and_says_so():
    half = config(job=Job(workload="decoder", precision=Precision.AUTOCAST_FLOAT16))
    on_host, on_gpu = half.on_device("cpu"), half.on_device("cuda:1")
    assert (on_host.job.device, on_host.job.precision) == ("cpu", Precision.AUTOCAST_BFLOAT16)
    assert "bfloat16 is used on cpu" in on_host.warnings[0]
    assert (on_gpu.job.device, on_gpu.job.precision, on_gpu.warnings) == ("cuda:1", Precision.AUTOCAST_FLOAT16, ())


def test_only_explore_and_auto_search():
    assert [SizeRequest(kind=kind).is_search for kind in RequestKind] == [True, True, False, False]


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().batch_size = 3


SCHEMA_ACCEPTS = [
    {"train_input": {"batch_size": 8, "micro_batch_size": size}}
    for size in (8, "explore", "auto", None, "none", {"explore": {"min": 1}}, {"explore": {}})
] + [{"explore": {"training_time": time}} for time in (None, 3600, "3d")]
SCHEMA_REFUSES = [
    {"train_input": {"micro_batch_size": "fast"}},
    {"train_input": {"micro_batch_size": 0}},
    {"eval_input": {"micro_batch_size": {"explore": {"mn": 1}}}},
    {"explore": {"tolerence": 1}},
    {"explore": {"max_probes": "8"}},
    {"trainer": {"init": {"callbacks": [{"ScopedTrainFlags": {"csx.performance.micro_batch_size": "x"}}]}}},
]


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(make_schema())
    assert json.loads(json.dumps(make_schema())) == make_schema()


@pytest.mark.parametrize("values", SCHEMA_ACCEPTS)
def test_the_schema_takes_what_the_reader_takes(values):
    jsonschema.validate(values, make_schema())


@pytest.mark.parametrize("values", SCHEMA_REFUSES)
def test_the_schema_refuses_what_the_reader_refuses(values):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, make_schema())


def test_the_schema_describes_every_setting():
    described = make_schema()["properties"]["explore"]["properties"]
    assert set(described) == {field.alias or name for name, field in ExploreSettings.model_fields.items()}
    assert all(setting.get("description") for setting in described.values())


@pytest.mark.parametrize("size", ["0", "-1", "1e9", ".nan", "true", '"8 "', "[8]", "{explore: {min: 0}}", "1000000001"])
def test_a_size_that_is_none_is_refused_with_its_line(tmp_path, size):
    path = tmp_path / "job.yaml"
    path.write_text(f"train_input:\n  batch_size: 8\n  micro_batch_size: {size}\nmodel: {{}}\n")

    with pytest.raises(UserInputError, match=r"job\.yaml:3: .*(micro_batch_size|min must)"):
        load_config(path)
