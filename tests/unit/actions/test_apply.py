"""The chosen size in the user's own file: the number and nothing else."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.actions.apply import BatchSizeRule, paste, plan_edit, write_edit
from bexplore.cli.options import Common
from bexplore.config.config import Config
from bexplore.config.document.reader import YamlReader
from bexplore.config.document.writer import with_value, without_section
from bexplore.config.load import load_config
from bexplore.errors import UserInputError
from bexplore.job import digest_code
from bexplore.run import run_directory
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECTIONS = """\
# The job of the week.
train_input:
    batch_size: 24   # global
    micro_batch_size: explore    # find the fastest
    'use_worker_cache':   True
model: {name: "gpt2", vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}

runconfig:
    num_csx: 2
    model_dir: weekly
explore: {memory_budget: 1GiB, max: 16}
"""
TRAINER = """\
trainer:
  init:
    model: {name: gpt2, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 2,
            max_position_embeddings: 16}
    model_dir: weekly
    callbacks:
      - ScopedTrainFlags:
          csx.performance.micro_batch_size:
            explore:      # bounds
              min: 2
              max: 16     # what fits
      - Checkpoint: {}
  fit:
    train_dataloader: {batch_size: 24}
"""


def job_file(folder: Path, text: str = SECTIONS) -> Path:
    path = folder / "job.yaml"
    path.write_bytes(text.encode())
    return path


def finished_run(
    path: Path, size: int | None = 6, keeps: int | None = 4, config: Config | None = None, variant: int = 0
) -> Run:
    """A run on disk as `explore` would leave it for the file as it is now."""
    config = config or load_config(path)
    variants = [{"settings": dict(one.values), "job": one.job.as_record()} for one in config.variants]
    meta = {
        "job": config.job.as_record(),
        "variants": variants,
        "environment": {"code": digest_code(config.job), "processor": "another machine's"},
        "search_specification": {
            "minimum": config.minimum,
            "maximum": config.maximum,
            "candidates": config.candidates,
            "memory_budget": config.settings.memory_budget,
            "num_replicas": config.num_replicas,
        },
    }
    run = run_directory.create_run(run_directory.model_directory(config.mode, config.model_dir), meta=meta, now=NOW)
    result = {"base_micro_batch_size": 1, "relative_performance": 1.5, "confidence": 91}
    second = {"micro_batch_size": keeps, "relative_performance": 1.4, "confidence": 92, "samples_per_s": 390.0}
    second |= {"free_micro_batch_size": size or 1, "over_recommended": 0.97, "accumulation_steps": 1}
    record = result | {"micro_batch_size": size, "keeps_batch_size": second if keeps else None}
    record |= {"variant": variant, "settings": variants[variant]["settings"] if variants else {}}
    run.write_result(RunResult.from_record(record))
    return run


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def applied(path: Path, rule: BatchSizeRule | None = None) -> str:
    write_edit(plan_edit(load_config(path), batch_size=rule))
    return path.read_bytes().decode()


def test_only_the_value_of_the_key_changes(tmp_path):
    path = job_file(tmp_path)
    finished_run(path)

    assert applied(path) == SECTIONS.replace("micro_batch_size: explore ", "micro_batch_size: 6 ")


def test_a_block_below_the_key_leaves_with_its_lines_and_the_rest_stays(tmp_path):
    path = job_file(tmp_path, TRAINER)
    finished_run(path)

    head, _, tail = TRAINER.partition("\n            explore:")
    assert applied(path) == f"{head} 6{tail[tail.index(chr(10) + '      - Checkpoint') :]}"


def test_windows_line_ends_a_byte_order_mark_and_no_last_line_end_are_kept(tmp_path):
    text = "\ufeff" + SECTIONS.replace("\n", "\r\n").removesuffix("\r\n")
    path = job_file(tmp_path, text)
    finished_run(path)

    assert applied(path) == text.replace("micro_batch_size: explore ", "micro_batch_size: 6 ")


def test_an_absent_key_is_added_beside_the_batch_size(tmp_path):
    text = SECTIONS.replace("    micro_batch_size: explore    # find the fastest\n", "")
    text = text.replace("train_input:\n", "train_input:\n    data_dir: here\n")
    path = job_file(tmp_path, text)
    finished_run(path)

    assert applied(path) == text.replace("    batch_size: 24", "    micro_batch_size: 6\n    batch_size: 24")


def test_a_value_that_other_keys_share_is_not_touched(tmp_path):
    text = SECTIONS.replace("micro_batch_size: explore", "micro_batch_size: &size explore")
    path = job_file(tmp_path, text + "eval_input: {batch_size: 24, micro_batch_size: *size}\n")
    finished_run(path)
    before = path.read_bytes()

    with pytest.raises(UserInputError, match="shares its value with other keys"):
        plan_edit(load_config(path))
    assert path.read_bytes() == before


@given(comment=st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp"))), size=st.integers(1, 10**6))
def test_whatever_a_comment_holds_it_is_kept(comment, size):
    text = f"a: # {comment}\n  b: {{c: explore}} # {comment}\n# {comment}\nd: é\n"
    changed = with_value(text, ("a", "b", "c"), size, source="job.yaml")

    assert changed == text.replace("{c: explore}", f"{{c: {size}}}", 1) or "{c: explore}" in comment


def test_a_job_that_changed_since_is_refused_with_what_changed(tmp_path):
    path = job_file(tmp_path)
    finished_run(path)
    path.write_text(path.read_text().replace("hidden_size: 32", "hidden_size: 64"))

    with pytest.raises(UserInputError, match=r"(?s)has changed since.*hidden_size: 32 -> 64") as refused:
        plan_edit(load_config(path))
    # In front: behind a typed command it would be the command's own.
    assert refused.value.hint == f"bexplore explore {path}, or write it anyway: bexplore apply --force {path}"
    assert plan_edit(load_config(path), force=True).file.after != path.read_bytes()


def test_code_that_changed_since_is_named(tmp_path):
    (tmp_path / "own.py").write_text("def model(): ...")
    (tmp_path / "data.py").write_text("def batch(n): ...")
    path = job_file(
        tmp_path, SECTIONS.replace("explore: {", "explore: {workload: {model: 'own:model', batch: 'data:batch'}, ")
    )
    finished_run(path)
    (tmp_path / "data.py").write_text("def batch(n): return n")

    with pytest.raises(UserInputError, match=r"\n  code.data.py: \w{16} -> \w{16}$"):
        plan_edit(load_config(path))


FLAG = "csx.performance.micro_batch_size"
TRAINER_INIT = "trainer:\n  init:\n    model_dir: weekly\n    model: {name: gpt2, vocab_size: 64, hidden_size: 32, "
TRAINER_INIT += "num_hidden_layers: 2, num_heads: 2, max_position_embeddings: 16}\n"
TRAINER_FIT = "  fit:\n    train_dataloader: {batch_size: 24}\n"
NEW_CALLBACK = f"- ScopedTrainFlags:\n        {FLAG}: 6\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", None),  # no callbacks at all: they are made, with what else stands in `init` as it is
        ("    callbacks:   # none yet\n", f"    callbacks: [{{ScopedTrainFlags: {{{FLAG}: 6}}}}]   # none yet\n"),
        ("    callbacks: []\n", f"    callbacks: [{{ScopedTrainFlags: {{{FLAG}: 6}}}}]\n"),
        ("    callbacks: null # why\n", f"    callbacks: [{{ScopedTrainFlags: {{{FLAG}: 6}}}}] # why\n"),
        (
            "    callbacks: [{Checkpoint: {}}]\n",
            f"    callbacks: [{{Checkpoint: {{}}}}, {{ScopedTrainFlags: {{{FLAG}: 6}}}}]\n",
        ),
        (
            "    callbacks:\n    - Checkpoint: {}  # first\n    # last\n",
            f"    callbacks:\n    - Checkpoint: {{}}  # first\n    {NEW_CALLBACK}    # last\n",
        ),
        (
            "    callbacks:\n      - ScopedTrainFlags:\n          csx.x: 2\n",
            f"    callbacks:\n      - ScopedTrainFlags:\n          {FLAG}: 6\n          csx.x: 2\n",
        ),
        (
            "    callbacks:\n      - ScopedTrainFlags:\n      - Checkpoint: {}\n",
            f"    callbacks:\n      - ScopedTrainFlags: {{{FLAG}: 6}}\n      - Checkpoint: {{}}\n",
        ),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_flag_of_a_trainer_without_it_is_written_where_its_layout_wants_it(tmp_path, before, after, newline):
    text = (TRAINER_INIT + before + TRAINER_FIT).replace("\n", newline)
    path = job_file(tmp_path, text)
    finished_run(path)

    changed = applied(path)

    if after is None:
        new = f"callbacks:\n      - ScopedTrainFlags:\n          {FLAG}: 6\n    "
        assert changed == text.replace("    model_dir", f"    {new}model_dir".replace("\n", newline))
    else:
        assert changed == (TRAINER_INIT + after + TRAINER_FIT).replace("\n", newline)
    assert load_config(path).request.value == 6


@pytest.mark.parametrize(
    "text",
    [
        SECTIONS,
        SECTIONS.replace("    micro_batch_size: explore    # find the fastest\n", ""),
        TRAINER,
        TRAINER_INIT + TRAINER_FIT,
        TRAINER_INIT + "    callbacks:\n      - Checkpoint: {}\n" + TRAINER_FIT,
    ],
)
def test_what_is_to_be_pasted_is_yaml_and_asks_for_the_size_where_it_is_pasted(tmp_path, text):
    path = job_file(tmp_path, text)
    pasted = paste(load_config(path), 6)

    values = YamlReader("paste").read(pasted)
    place = re.search("# under (.*)", pasted)[1].split(".")
    leaf = "csx.performance.micro_batch_size" if "trainer" in text else "micro_batch_size"
    assert pasted.splitlines()[-1].partition("  #")[0].strip() == f"{leaf}: 6"
    assert YamlReader("file").read(text)[place[0]] is not None
    assert isinstance(values, dict | list)


def test_bounds_that_changed_since_are_refused_too(tmp_path):
    path = job_file(tmp_path)
    finished_run(path)
    path.write_text(path.read_text().replace("max: 16", "max: 4"))

    with pytest.raises(UserInputError, match="maximum: 16 -> 4"):
        plan_edit(load_config(path))


def test_a_comment_or_another_effort_is_no_change(tmp_path):
    path = job_file(tmp_path)
    finished_run(path)
    path.write_text("# new\n" + path.read_text().replace("max: 16", "max: 16, effort: thorough, seed: 0"))

    assert plan_edit(load_config(path)).file.after != plan_edit(load_config(path)).file.before


def test_a_run_without_a_recommendation_cannot_be_applied(tmp_path):
    path = job_file(tmp_path)
    finished_run(path, size=None)

    with pytest.raises(UserInputError, match="no recommendation"):
        plan_edit(load_config(path))


def test_without_a_run_it_says_what_to_type(tmp_path):
    path = job_file(tmp_path)

    with pytest.raises(UserInputError) as refused:
        plan_edit(load_config(path))
    assert f"bexplore explore {path}" in refused.value.hint


def test_a_batch_size_that_does_not_go_with_the_size_is_never_changed_unasked(tmp_path):
    path = job_file(tmp_path)
    finished_run(path, size=5)

    with pytest.raises(UserInputError, match="batch_size 24 is not valid with micro_batch_size 5") as refused:
        plan_edit(load_config(path))
    assert f"bexplore apply {path} --keep-batch-size (writes micro_batch_size 4, 0.97x" in refused.value.hint
    assert f"bexplore apply {path} --change-batch-size (writes micro_batch_size 5, batch_size 20)" in refused.value.hint
    assert applied(path, BatchSizeRule.KEEP) == SECTIONS.replace("size: explore ", "size: 4 ")
    path.write_text(SECTIONS)
    changed = SECTIONS.replace("size: explore ", "size: 5 ").replace("batch_size: 24 ", "batch_size: 20 ")
    assert applied(path, BatchSizeRule.CHANGE) == changed


@pytest.mark.parametrize("keeps", [5, None])
def test_a_size_that_kept_another_batch_size_is_not_written(tmp_path, keeps):
    path = job_file(tmp_path)
    finished_run(path, size=7, keeps=keeps)

    with pytest.raises(UserInputError, match="no size that was run keeps batch_size 24") as refused:
        applied(path, BatchSizeRule.KEEP)
    assert refused.value.hint.startswith(f"bexplore explore {path}")
    assert path.read_text() == SECTIONS


def test_where_the_answer_keeps_the_batch_size_there_is_nothing_to_choose(tmp_path):
    path = job_file(tmp_path)
    finished_run(path, size=6)

    for rule in (None, *BatchSizeRule):
        path.write_text(SECTIONS)
        assert applied(path, rule) == SECTIONS.replace("size: explore ", "size: 6 ")


@pytest.mark.promise("the file changes while `apply` asks", "it is not overwritten")
def test_a_file_that_changes_while_the_user_is_asked_is_not_overwritten(tmp_path):
    path = job_file(tmp_path)
    finished_run(path)
    edit = plan_edit(load_config(path))
    path.write_text(path.read_text() + "# a thought\n")

    with pytest.raises(UserInputError, match="changed meanwhile"):
        write_edit(edit)
    assert path.read_text().endswith("# a thought\n")


def test_a_link_stays_a_link_the_mode_stays_and_nothing_else_is_left(tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    path = job_file(folder)
    path.chmod(0o640)
    link = tmp_path / "job.yaml"
    link.symlink_to(path)
    finished_run(link)

    applied(link)

    assert link.is_symlink()
    assert "micro_batch_size: 6" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    "values",
    [
        {"train_input": {"batch_size": 24}, "model": {}},
        {"trainer": {"init": {"model_dir": "weekly"}, "fit": {"train_dataloader": {"batch_size": 24}}}},
        {"trainer": {"init": {"callbacks": []}, "fit": {"train_dataloader": {"batch_size": 24}}}},
        {"trainer": {"init": {"callbacks": [{"Checkpoint": {}}]}, "fit": {"train_dataloader": {"batch_size": 24}}}},
    ],
)
def test_a_file_of_json_stays_json(tmp_path, values):
    values = {**values, "explore": {"workload": {"step": "own:step"}}}
    for text in (json.dumps(values), json.dumps(values, indent=2)):
        path = job_file(tmp_path, text)
        finished_run(path, size=6, keeps=6)

        changed, pasted = applied(path), paste(load_config(path), 6)

        path.write_text(json.dumps(json.loads(changed)))
        assert load_config(path).request.value == 6
        assert json.loads(f"[{pasted.partition('#')[0]}]" if pasted[0] == "{" else f"{{{pasted.partition('#')[0]}}}")


def test_what_is_to_be_typed_for_either_answer_names_the_options_too(tmp_path):
    path = job_file(tmp_path)
    config = dataclasses.replace(load_config(path), options=("--model-dir", "two words"), model_dir="two words")
    finished_run(path, size=7, config=config)

    with pytest.raises(UserInputError) as refused:
        plan_edit(config)

    assert f"bexplore apply {path} --model-dir 'two words' --keep-batch-size" in refused.value.hint


@pytest.mark.promise("a password in the storage's URL", "`apply` does not repeat it")
def test_a_password_in_the_url_of_a_storage_is_not_repeated(tmp_path):
    overrides = ("explore.storage=postgresql://me:secret@host/db", "explore.seed=3")
    common = Common(as_json=False, overrides=overrides, model_dir=None, allow_code=True, mode=None, verbosity=0)

    assert common.load(path := job_file(tmp_path)).typed == f"{path} --set explore.seed=3"


FAMILY = """\
model_name_or_path: m  # of mine
dataset_name: d
packing: true
per_device_train_batch_size: explore
gradient_accumulation_steps: 2

explore:
  replica_batch_size: 12  # of one step
  max_probes: 5
# the end
output_dir: o
"""


def test_the_section_of_a_packages_file_stays_with_a_note_unless_it_is_dropped(tmp_path):
    path = tmp_path / "trl.yaml"
    path.write_text(FAMILY)
    config = load_config(path)
    finished_run(path, config=config)
    written = FAMILY.replace("size: explore", "size: 6")

    stays, dropped = plan_edit(config), plan_edit(config, drop_section=True)

    assert (stays.file.after.decode(), stays.keeps_section) == (written, True)
    start, end = written.index("explore:\n"), written.index("# the end")
    assert (dropped.file.after.decode(), dropped.keeps_section) == (written[:start] + written[end:], False)
    assert "-  replica_batch_size: 12" in dropped.diff


def test_a_section_whose_values_stand_elsewhere_too_is_not_dropped(tmp_path):
    path = tmp_path / "trl.yaml"
    path.write_text(FAMILY.replace("max_probes: 5", "max_probes: &five 5") + "seed: *five\n")

    with pytest.raises(UserInputError, match="the section explore cannot be removed alone"):
        without_section(path.read_text(), "explore", source=str(path))


TRL = "model_name_or_path: m\ndataset_name: d\npacking: true\nper_device_train_batch_size: explore\n"
LITGPT = "devices: 2\nout_dir: o\ntrain:\n  save_interval: 9\n  micro_batch_size: explore\n  global_batch_size: 24\n"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (  # the section gives it
            f"{TRL}gradient_accumulation_steps: 3\nexplore:\n  replica_batch_size: 12\n",
            {
                "explore": "5",
                "gradient_accumulation_steps: 3": "gradient_accumulation_steps: 2",
                "size: 12": "size: 10",
            },
        ),
        (
            f"{TRL}gradient_accumulation_steps: 3\nexplore:\n  global_batch_size: 24\n  replicas: 2\n",
            {
                "explore": "5",
                "gradient_accumulation_steps: 3": "gradient_accumulation_steps: 2",
                "size: 24": "size: 20",
            },
        ),
        (LITGPT, {"explore": "5", "global_batch_size: 24": "global_batch_size: 20"}),  # the family's own key
    ],
)
def test_a_changed_global_batch_of_a_packages_file_is_written_wherever_the_file_gives_it(tmp_path, text, written):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    config = load_config(path)
    run = finished_run(path, config=config)
    result = {"base_micro_batch_size": 1, "relative_performance": 1.5, "confidence": 91, "micro_batch_size": 5}
    run.write_result(RunResult.from_record(result | {"num_replicas": 2}))

    edit = plan_edit(config, batch_size=BatchSizeRule.CHANGE)

    for old, new in written.items():
        text = text.replace(old, new, 1)
    assert edit.file.after.decode() == text
    assert edit.batch_size_change == (24, 20)


# Further files of the same training

DEEPSPEED = """{
  "train_micro_batch_size_per_gpu": 3,   "gradient_accumulation_steps": "auto",
  "train_batch_size": 24,
  "zero_optimization": {"stage": 2}
}
"""


def explored_by_trl(folder: Path, size: int) -> Config:
    """A file of TRL on two replicas with a global batch of 24, and a run of it that found a size."""
    path = folder / "job.yaml"
    path.write_text(f"{TRL}gradient_accumulation_steps: 3\nexplore:\n  global_batch_size: 24\n  replicas: 2\n")
    config = load_config(path)
    result = {"base_micro_batch_size": 1, "relative_performance": 1.5, "confidence": 91, "micro_batch_size": size}
    finished_run(path, config=config).write_result(RunResult.from_record(result | {"num_replicas": 2}))
    return config


def test_a_further_file_gets_the_same_numbers_and_keeps_what_its_family_derives(tmp_path):
    config, further = explored_by_trl(tmp_path, 6), tmp_path / "ds.json"
    further.write_text(DEEPSPEED)

    edit = plan_edit(config, also=[further])
    assert further.read_text() == DEEPSPEED  # nothing before it is agreed
    assert edit.diff.count("+++ ") == 2
    write_edit(edit)

    assert further.read_text() == DEEPSPEED.replace('gpu": 3', 'gpu": 6')
    assert "gradient_accumulation_steps: 2" in (tmp_path / "job.yaml").read_text()


@pytest.mark.parametrize("derived", ["-1", "null", '"auto"', '"by the launcher"'])
def test_a_number_of_a_further_file_that_is_derived_stays_as_it_is(tmp_path, derived):
    config, further = explored_by_trl(tmp_path, 6), tmp_path / "ds.json"
    text = DEEPSPEED.replace('"auto"', derived)
    further.write_text(text)

    write_edit(plan_edit(config, also=[further]))

    assert further.read_text() == text.replace('gpu": 3', 'gpu": 6')


def test_a_global_batch_in_a_further_file_changes_with_the_size(tmp_path):
    config, further = explored_by_trl(tmp_path, 5), tmp_path / "ds.json"
    further.write_text(DEEPSPEED)

    write_edit(plan_edit(config, batch_size=BatchSizeRule.CHANGE, also=[further]))

    assert further.read_text() == DEEPSPEED.replace('gpu": 3', 'gpu": 5').replace("24", "20")


def test_a_further_file_without_a_number_of_a_batch_is_refused_and_nothing_is_written(tmp_path):
    config, further = explored_by_trl(tmp_path, 6), tmp_path / "data.yml"
    further.write_text("data_path: somewhere\n")
    before = (tmp_path / "job.yaml").read_text()

    with pytest.raises(UserInputError, match="no number of a batch") as error:
        plan_edit(config, also=[further])

    assert error.value.hint
    assert (tmp_path / "job.yaml").read_text() == before


def test_the_configuration_itself_is_no_further_file(tmp_path):
    config = explored_by_trl(tmp_path, 6)
    with pytest.raises(UserInputError, match="is the configuration itself"):
        plan_edit(config, also=[tmp_path / "job.yaml"])


@pytest.mark.promise("one of several files of `apply` changes meanwhile", "no file is written")
def test_where_a_further_file_changed_meanwhile_no_file_is_written(tmp_path):
    config, further = explored_by_trl(tmp_path, 6), tmp_path / "ds.json"
    further.write_text(DEEPSPEED)
    before = (tmp_path / "job.yaml").read_text()
    edit = plan_edit(config, also=[further])
    further.write_text(DEEPSPEED.replace("24", "48"))

    with pytest.raises(UserInputError, match="changed meanwhile"):
        write_edit(edit)

    assert (tmp_path / "job.yaml").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


# Settings that were explored together with the size

KEYS = (
    "activation_checkpointing: [none, full]",
    "precision: [float32, bfloat16]",
    "compile.mode: [default, max-autotune]",
)
LISTS = f"{{{', '.join(KEYS)}}}"
WITH_SETTINGS = SECTIONS.replace(
    "explore: {memory_budget: 1GiB, max: 16}",
    f"""\
explore:
    max: 16          # samples
    activation_checkpointing: none   # so far
    settings: {LISTS}""",
)


def variant_of(path: Path, **settings) -> int:
    wanted = {key.replace("__", "."): value for key, value in settings.items()}
    return [dict(one.values) for one in load_config(path).variants].index(wanted)


def test_the_settings_of_the_answer_are_written_with_the_size_and_nothing_else_changes(tmp_path):
    path = job_file(tmp_path, WITH_SETTINGS)
    chosen = variant_of(path, activation_checkpointing="full", precision="bfloat16", compile__mode="default")
    finished_run(path, variant=chosen)

    edit = plan_edit(load_config(path))

    assert edit.settings == {"activation_checkpointing": "full", "precision": "bfloat16"}
    assert edit.file.after.decode() == (
        WITH_SETTINGS.replace("micro_batch_size: explore ", "micro_batch_size: 6 ")
        .replace("activation_checkpointing: none ", "activation_checkpointing: full ")
        .replace("    settings: {", "    precision: bfloat16\n    settings: {")
    )


def test_the_files_own_settings_leave_everything_but_the_size(tmp_path):
    path = job_file(tmp_path, WITH_SETTINGS)
    finished_run(path)

    assert applied(path) == WITH_SETTINGS.replace("micro_batch_size: explore ", "micro_batch_size: 6 ")


def test_what_was_applied_is_the_explored_job_and_applying_again_changes_nothing(tmp_path):
    path = job_file(tmp_path, WITH_SETTINGS)
    chosen = variant_of(path, activation_checkpointing="full", precision="float32", compile__mode="max-autotune")
    finished_run(path, variant=chosen)
    job = load_config(path).variants[chosen].job

    first = applied(path)

    assert applied(path) == first
    assert load_config(path).job == job


def test_a_job_that_has_changed_otherwise_is_refused_with_its_change(tmp_path):
    path = job_file(tmp_path, WITH_SETTINGS)
    chosen = variant_of(path, activation_checkpointing="full", precision="float32", compile__mode="default")
    finished_run(path, variant=chosen)
    path.write_text(path.read_text().replace("num_heads: 2", "num_heads: 4").replace(": none ", ": full "))

    with pytest.raises(UserInputError, match=r"model\.num_heads: 2 -> 4") as refused:
        plan_edit(load_config(path))

    assert "activation_checkpointing" not in refused.value.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("true", '{"enabled": true, "mode": "max-autotune"}'),
        ("both", '{"enabled": "both", "mode": "max-autotune"}'),
        ("{fullgraph: true}", "{mode: max-autotune, fullgraph: true}"),
    ],
)
def test_a_setting_of_the_compiler_is_written_where_compile_is_short_for_one(tmp_path, before, after):
    text = WITH_SETTINGS.replace("    max: 16 ", f"    compile: {before}\n    max: 16 ")
    path = job_file(tmp_path, text)
    chosen = variant_of(path, activation_checkpointing="none", precision="float32", compile__mode="max-autotune")
    finished_run(path, variant=chosen)

    assert f"    compile: {after}\n" in applied(path)


def test_a_variant_that_is_not_compiled_is_written_as_compile_is(tmp_path):
    text = WITH_SETTINGS.replace(LISTS, "{compile.enabled: [true, false]}").replace(
        "    max: 16 ", "    compile: true\n    max: 16 "
    )
    path = job_file(tmp_path, text)
    finished_run(path, variant=variant_of(path, compile__enabled=False))

    assert "    compile: false\n" in applied(path)


def test_arguments_of_own_code_are_written_where_they_stand(tmp_path):
    workload = "{model: m:a, batch: m:b, arguments: {width: 8}}"
    lists = "{workload.arguments.chunk: [4], workload.arguments.window: [[7, 7]]}"
    text = WITH_SETTINGS.replace(f"settings: {LISTS}", f"settings: {lists}\n    workload: {workload}")
    path = job_file(tmp_path, text)
    finished_run(path, variant=1)

    applied(path)

    assert load_config(path).job.model["arguments"] == {"width": 8, "chunk": 4, "window": [7, 7]}


@pytest.mark.parametrize(
    ("text", "pasted"),
    [
        ('bs = "explore"\n', "bs = 6"),
        ('[training]\nbatch_size = "explore"\n', "batch_size = 6  # under [training]"),
        ('[training]\n"batch size" = "explore"\n', '"batch size" = 6  # under [training]'),
    ],
)
def test_what_is_to_be_pasted_into_toml_is_toml(tmp_path, text, pasted):
    path = tmp_path / "job.toml"
    path.write_text(text)
    config = load_config(path, overrides=['explore.command=["train", "{config}", "{output_dir}"]'])

    assert paste(config, 6) == pasted
    assert list(tomllib.loads(pasted).values()) == [6]


@pytest.mark.parametrize(
    ("text", "overrides", "pasted"),
    [
        (
            f"{TRL}gradient_accumulation_steps: 4\nexplore:\n  replica_batch_size: 12\n",
            [],
            ["per_device_train_batch_size: 6", "gradient_accumulation_steps: 2"],
        ),
        (
            f"{TRL}gradient_accumulation_steps: 2\nexplore:\n  replica_batch_size: 12\n",
            [],
            ["per_device_train_batch_size: 6"],
        ),
        (
            "data:\n  bs: explore\naccum_grad: 4\n",
            ["accum_grad={accumulation}", "explore.replica_batch_size=12"],
            ["bs: 6  # under data", "accum_grad: 2"],
        ),
    ],
)
def test_the_lines_to_paste_hold_the_accumulation_where_it_changes(tmp_path, text, overrides, pasted):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    typed = [] if text.startswith(TRL) else ['explore.command=["train", "{config}", "{output_dir}"]']
    config = load_config(path, overrides=[*typed, *overrides])

    assert paste(config, 6).splitlines() == pasted


def test_the_lines_to_paste_hold_the_settings_and_their_place(tmp_path):
    path = job_file(tmp_path, WITH_SETTINGS)
    settings = {"activation_checkpointing": "full", "precision": "float32", "compile.mode": "max-autotune"}

    assert paste(load_config(path), 6, settings).splitlines() == [
        "micro_batch_size: 6  # under train_input",
        "activation_checkpointing: full  # under explore",
        "compile:  # under explore",
        "  mode: max-autotune",
    ]
