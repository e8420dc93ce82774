"""Secrets by name, by form and by value; the key of digests."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.config.command import Command
from bexplore.config.load import load_config
from bexplore.errors import EngineError, UserInputError
from bexplore.host import secret_values
from bexplore.host.records import to_record
from bexplore.host.secret_values import (
    MASK,
    hidden,
    hidden_arguments,
    hidden_record,
    hidden_words,
    is_secret_name,
    keyed_digest,
    remember_given,
)
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.run.fingerprint import Fingerprint
from bexplore.run.run_directory import differences
from bexplore.search.study.storage import open_storage, storage_errors
from tests.unit.run.builders import NOW

SECRET_NAMES = """
    WANDB_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN OPENAI_API_KEY PGPASSWORD
    MYSQL_PWD GITHUB_TOKEN GH_PAT COMET_API_KEY NEPTUNE_API_TOKEN MLFLOW_TRACKING_PASSWORD CLEARML_API_SECRET_KEY
    AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_KEY SENTRY_DSN KAGGLE_KEY BEXPLORE_WORKER_KEY SLACK_WEBHOOK_URL
    hub_token hf-token wandb-key api_key apiKey password db.password auth_token hubToken client_secret token X-Api-Key
"""
PLAIN_NAMES = """
    pad_token eos_token max_tokens num_tokens tokenizer tokenizer_name image_token key primary_key text_key label-key
    OMP_NUM_THREADS PWD OLDPWD PYTHONPATH SSH_AUTH_SOCK batch_size pad_token_id author monkey keys hidden_size patience
    micro_batch_tokens path compatible max_new_tokens tokens_per_batch KEY
"""
SECRET = "hunter2-Zq81"
# What is written -> what is left of it.
TEXTS = {
    f"postgresql://me:{SECRET}@host/db": "postgresql://me:***@host/db",
    f"postgresql+psycopg://me:p@ss/{SECRET}@host:5432/db?x=1": "postgresql+psycopg://me:***@host:5432/db?x=1",
    f"postgresql://me@host/db?password={SECRET}&x=1": "postgresql://me@host/db?password=***&x=1",
    "postgresql://me@host/db": "postgresql://me@host/db",
    "http://host:80/path": "http://host:80/path",
    f"train --api-key {SECRET} --max-tokens 512": "train --api-key *** --max-tokens 512",
    f"curl -H 'Authorization: Bearer {SECRET}' x": "curl -H 'Authorization: ***' x",
    f"authorization=Basic {SECRET}": "authorization=***",
    f"WANDB_API_KEY={SECRET} python x": "WANDB_API_KEY=*** python x",
    f"--export=ALL,HF_TOKEN={SECRET},OMP=1": "--export=ALL,HF_TOKEN=***,OMP=1",
    f"bash -c \"export HF_TOKEN='{SECRET}'; python x\"": "bash -c \"export HF_TOKEN='***'; python x\"",
    f"Namespace(hub_token='{SECRET}', pad_token='</s>')": "Namespace(hub_token='***', pad_token='</s>')",
    f'{{"password": "{SECRET}"}}': '{"password": "***"}',
    "push with hf_abcdefghijklmnopqrstuv now": "push with *** now",
    "ghp_abcdefghijklmnopqrstuvwxyz0123": "***",
    "sk-proj-abcdefghijklmnop": "***",
    "AKIAABCDEFGHIJKLMNOP": "***",
    "eyJhbGciOiJI.eyJzdWIiOiIx.abc": "***",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----": "***",
    "unexpected token: name": "unexpected token: name",
    "token=5, --hub-token true": "token=5, --hub-token true",
    "--token {micro_batch_size}": "--token {micro_batch_size}",
    "": "",
}


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(secret_values, "_remembered", {})
    for name in [name for name in os.environ if is_secret_name(name)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_of_secrets_are_known(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN_NAMES.split())
def test_names_that_only_sound_like_secrets_are_none(name):
    assert not is_secret_name(name)


@pytest.mark.promise(
    "a password, token or header in a URL, an option, an assignment or a JSON text", "masked in what is written of it"
)
@pytest.mark.parametrize("text", TEXTS)
def test_secrets_of_a_text_are_masked_and_nothing_else(text):
    assert hidden(text) == TEXTS[text]
    assert hidden(TEXTS[text]) == TEXTS[text]


def test_the_value_behind_an_option_is_masked():
    words = ["train", "--api-key", SECRET, "--token={micro_batch_size}", "--seed", "3", "--hub-token", "--flag"]
    assert hidden_words(words) == ["train", "--api-key", MASK, *words[3:]]


def test_the_arguments_of_this_program_show_no_values_of_variables():
    given = ["explore", "--env", "A=b", "--env=C=d", "--set", 'explore.env={"E": "f"}', "--env", "G", "--seed", "3"]
    shown = ["explore", "--env", "A=***", "--env=C=***", "--set", "explore.env=***", "--env", "G", "--seed", "3"]
    assert hidden_arguments(given) == shown
    assert hidden_arguments(["--set=explore.env.A=b"]) == ["--set=explore.env=***"]


@pytest.mark.promise("a program prints a secret of its environment (W&B, HF keys)", "masked in journal, log and report")
def test_a_secret_of_the_environment_is_masked_wherever_it_occurs(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    assert hidden(f"login failed for {SECRET}!") == "login failed for ***!"
    probe = Probe(number=0, micro_batch_size=8, compilation=Compilation.EXACT)
    seen = Observation(
        probe=probe, outcome=Outcome.CRASHED, reason=SECRET, traceback_text=f"\n{SECRET}", warnings=(SECRET,)
    )
    assert SECRET not in json.dumps(to_record(seen))


@given(st.text(min_size=6, max_size=40).filter(lambda text: not secret_values._PLAIN.fullmatch(text)))
def test_a_remembered_value_is_masked_in_every_way_of_writing_it(value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret_values, "_remembered", {})
        remember_given({"explore": {"env": {"A_TOKEN": value}}, "hub": [{"api_key": value}]})
        for written in (json.dumps({"a": [value]}), repr([value]), f"<{value}>", f"a {shlex.quote(value)} b"):
            assert value not in hidden(written)
            assert hidden(written) != written


def test_records_are_masked_by_the_names_of_their_keys():
    record = {"a": {"hub_token": SECRET, "pad_token": "x"}, "b": [f"--api-key={SECRET}", 3], "passwords": ["ab"]}
    assert hidden_record(record) == {"a": {"hub_token": MASK, "pad_token": "x"}, "b": ["--api-key=***", 3]} | {
        "passwords": ["ab"]
    }


def test_the_key_of_digests_is_the_users_alone_and_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    secret_values._key.cache_clear()
    digest = keyed_digest("4")
    key = tmp_path / "own" / "bexplore" / "key"
    assert (stat.S_IMODE(key.stat().st_mode), stat.S_IMODE(key.parent.stat().st_mode)) == (0o600, 0o700)

    secret_values._key.cache_clear()
    assert keyed_digest("4") == digest != keyed_digest("5")
    key.unlink()
    secret_values._key.cache_clear()
    assert keyed_digest("4") != digest
    secret_values._key.cache_clear()


@pytest.mark.promise("the folder of the key of digests cannot be written", "the exploration works; nothing is compared")
def test_without_a_stored_key_digests_differ_between_processes(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    secret_values._key.cache_clear()
    assert len(keyed_digest("4")) == 16
    secret_values._key.cache_clear()


def meta(*overrides: str) -> dict:
    command = ["train", "--mbs", "{micro_batch_size}", "--out", "{output_dir}"]
    typed = [f"explore.command={json.dumps([*command, *[one for one in overrides if one.startswith('--')]])}"]
    config = load_config(None, overrides=[*typed, *(one for one in overrides if not one.startswith("--"))])
    return Fingerprint(config=config, folder_name="run").meta(NOW)


@pytest.mark.promise("a password of the storage, a token or a key is changed", "the same run and the same study")
@pytest.mark.parametrize(
    "text",
    [
        "explore.storage=postgresql://me:{}@host/db",
        "explore.storage=postgresql://me@host/db?password={}",
        'explore.env={{"WANDB_API_KEY": "{}"}}',
        'explore.env={{"DATA": "s3://me:{}@host/x"}}',
        "--api-key={}",
        "--header=Authorization: Bearer {}",
        "--data=https://me:{}@host/x",
    ],
)
def test_another_password_is_the_same_study(text):
    one, other = meta(text.format(SECRET)), meta(text.format("other-Xk27-value"))
    assert differences(one, other) == ()
    assert (one["study"], one["fingerprint"]) == (other["study"], other["fingerprint"])
    assert SECRET not in json.dumps(one)


def test_another_value_of_a_variable_is_another_job_and_neither_is_shown():
    one, other = meta('explore.env={"SOME_WAY": "first-value"}'), meta('explore.env={"SOME_WAY": "other-value"}')
    (told,) = differences(one, other)
    assert told.startswith("model.env.SOME_WAY: ")
    assert "first-value" not in json.dumps(one) + told and "other-value" not in told
    assert one["study"] != other["study"]


def test_an_old_run_with_a_password_is_compared_without_showing_it():
    one = meta("explore.storage=postgresql://me:x@host/db")
    old = one | {
        "search_specification": one["search_specification"] | {"storage": f"postgresql://me:{SECRET}@host/db2"}
    }
    assert SECRET not in "".join(differences(old, one))


def test_a_command_is_shown_with_masks_and_names():
    command = Command(
        argv=("train", "--token", SECRET, "--mbs", "{micro_batch_size}"),
        env={"A": SECRET, "BEXPLORE_MICRO_BATCH_SIZE": "{micro_batch_size}"},
    )
    shown = command.shown_with(micro_batch_size=8, accumulation=1, num_replicas=1)
    assert shown == "A=*** BEXPLORE_MICRO_BATCH_SIZE=8 train --token *** --mbs 8"
    assert command.shown == "train --token *** --mbs {micro_batch_size}"
    assert command.filled({"micro_batch_size": "8"})[0][2] == SECRET


@pytest.mark.promise("a storage that cannot be opened or fails", "its error shows the URL without the password")
@pytest.mark.parametrize("scheme", ["nothing", "postgresql+nothing", "mysql", "sqlite+nothing"])
def test_the_error_of_a_storage_does_not_show_its_password(scheme):
    with pytest.raises(UserInputError) as refused:
        open_storage(f"{scheme}://me:{SECRET}@host/db")
    assert SECRET not in refused.value.message + refused.value.hint
    with pytest.raises(EngineError) as broken, storage_errors():
        raise OSError(f"cannot connect to postgresql://me:{SECRET}@host/db")
    assert SECRET not in broken.value.message


@pytest.mark.promise("a mistake beside a secret in the file or on the command line", "the error does not repeat it")
@pytest.mark.parametrize(
    "override",
    [
        f'explore.env={{"A_TOKEN": ["{SECRET}"]}}',
        f"explore.env.A_TOKEN=[{SECRET}]",
        f"explore.env={SECRET}",
        f"explore.storage=[postgresql://me:{SECRET}@h/d]",
        f"explore.stroage=postgresql://me:{SECRET}@h/d",
        f'explore.command={{"--api-key": "{SECRET}"}}',
        f"explre.storage=postgresql://me:{SECRET}@h/d",
        f"postgresql://me:{SECRET}@h/d",
    ],
)
def test_an_error_does_not_repeat_what_may_be_a_secret(override, tmp_path: Path):
    command = 'explore.command=["train", "{micro_batch_size}", "{output_dir}"]'
    with pytest.raises(UserInputError) as refused:
        load_config(None, overrides=[command, override])
    assert SECRET not in hidden(refused.value.message + refused.value.hint)
