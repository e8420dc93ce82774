from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bexplore.config import document
from bexplore.config.document import toml
from bexplore.errors import UserInputError

FILE = """\
# A job.
title = "it's # not a comment"  # but this is
[job]
  note = '''
[training]
batch = 3'''
[training]
lr = 3e-4 # small
local_batch_size = 8# tight
when = 1979-05-27 07:32:00Z
mesh = { data = 2, "a b".c = [1, 2,
  3] } # wide
[[data]]
name = "one"
weight.high = 0.5
[[data]]
name = "two"
[data.options]
shuffle = true
"""

WRONG = {
    "a tower of brackets": "a = " + "[" * 100_000,
    "a number without end": "a = " + "9" * 100_000,
    "a month of its own": "a = 2001-13-01",
    "a key twice": "a = 1\na = 2",
    "no value": "a =",
    "no key": "= 1",
    "a wrong escape in a key": '"\\q" = 1',
    "two on a line": "a = 1 b = 2",
    "a header that stays open": "[a",
    "a null character": "a = \x00",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_in_a_line_that_names_it(tmp_path, name):
    path = tmp_path / "job.toml"
    path.write_bytes(WRONG[name].encode())

    with pytest.raises(UserInputError) as raised:
        document.read(path)

    assert str(raised.value).startswith(f"{path}") and "\n" not in str(raised.value)
    with pytest.raises(UserInputError, match="key cannot be written"):
        toml.with_value(WRONG[name], ("new", "key"), 1, source=str(path))


def test_each_value_of_a_file_has_its_line(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(FILE)

    read = document.read(path)

    assert read.values == tomllib.loads(FILE)
    for line, place in (
        (2, ("title",)),
        (4, ("job", "note")),
        (8, ("training", "lr")),
        (9, ("training", "local_batch_size")),
        (11, ("training", "mesh", "a b", "c", 2)),
        (15, ("data", 0, "weight", "high")),
        (17, ("data", 1, "name")),
        (19, ("data", 1, "options", "shuffle")),
    ):
        assert read.where(place) == f"{path}:{line}", place


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (("training", "local_batch_size"), "local_batch_size = 8#", "local_batch_size = 16#"),
        (("job", "note"), "'''\n[training]\nbatch = 3'''", "16"),
        (("training", "mesh", "data"), "data = 2", "data = 16"),
        (("training", "mesh", "a b", "c", 2), "  3] }", "  16] }"),
        (("training", "mesh", "more"), "  3] }", "  3], more = 16}"),
        (("training", "steps"), "3] } # wide\n", "3] } # wide\nsteps = 16\n"),
        (("job", "steps"), "batch = 3'''\n", "batch = 3'''\n  steps = 16\n"),
        (("data", 0, "weight", "low"), "high = 0.5\n", "high = 0.5\nweight.low = 16\n"),
        (("data", 1, "options", "seed"), "shuffle = true\n", "shuffle = true\nseed = 16\n"),
        (("data", 0, "seed"), "high = 0.5\n", "high = 0.5\nseed = 16\n"),
        (("steps",), "# but this is\n", "# but this is\nsteps = 16\n\n"),
        (("a b", "steps"), "shuffle = true\n", 'shuffle = true\n\n["a b"]\nsteps = 16\n'),
    ],
)
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_value_is_replaced_or_added_and_every_other_character_stays(path, old, new, line_break):
    text, old, new = (one.replace("\n", line_break) for one in (FILE, old, new))
    assert text.count(old) == 1

    assert toml.with_value(text, path, 16, source="job.toml") == text.replace(old, new)


@pytest.mark.promise("a value that would change another one when it is written", "refused")
def test_a_value_that_would_change_another_is_refused():
    with pytest.raises(UserInputError, match="steps cannot be written"):
        toml.with_value("training = 3\n", ("training", "steps"), 16, source="job.toml")


@pytest.mark.parametrize("value", [16, True, 'a "quoted" \\ text\n\x7f\u00e9'])
def test_values_of_each_kind_are_written_to_an_empty_text(value):
    assert tomllib.loads(toml.with_value("", ("a", "b"), value, source="job.toml")) == {"a": {"b": value}}


def test_a_section_goes_with_its_tables_and_what_is_around_it_stays():
    section = "[explore]\nseed = 1\n[explore.memory]\nreserve = 2\n"
    training = "\n# Of the training.\n[training]\nlr"
    text = FILE.replace("[training]\nlr", f"{section}{training}").replace("[training]\nbatch", "[explore]\nbatch")

    assert toml.without_section(text, "explore", source="job.toml") == text.replace(section, "")
    assert toml.without_section(f"explore.seed = 1\n{FILE}", "explore", source="job.toml") == FILE


KEYS = st.one_of(st.sampled_from(["a", "b-1", "007"]), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


def text_of(value):
    """A text as TOML writes it: JSON's way, but for a character that JSON leaves bare."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text_of(key)} = {as_toml(inner)}" for key, inner in value.items()) + "}"
    return f"[ {' , '.join(map(as_toml, value))} ]" if isinstance(value, list) else text_of(value)


@settings(deadline=None)
@given(
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3),
)
def test_every_key_has_its_line_and_a_new_value_changes_that_line_alone(top, tables):
    tables = {key: table for key, table in tables.items() if key not in top}
    keys = {(key,): (f"{text_of(key)} = ", as_toml(value)) for key, value in top.items()}
    for name, table in tables.items():
        keys[name,] = (f"[{text_of(name)}] # {name.isascii()}", "")
        keys |= {(name, key): (f"  {text_of(key)}=", as_toml(value)) for key, value in table.items()}
    text = "".join(f"{key}{value}\n" for key, value in keys.values())

    values, positions = toml.read(text, "job.toml")

    assert values == top | tables
    assert {path: positions[path].line for path in keys} == {path: n for n, path in enumerate(keys, start=1)}
    for path in (path for path, (_, value) in keys.items() if value):
        changed = keys | {path: (keys[path][0], "16")}
        expected = "".join(f"{key}{value}\n" for key, value in changed.values())
        assert toml.with_value(text, path, 16, source="job.toml") == expected
