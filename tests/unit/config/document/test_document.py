from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bexplore.config import document
from bexplore.config.document import Document, Override, Problems
from bexplore.config.document.reader import YamlReader, resolve_plain
from bexplore.config.document.writer import with_value
from bexplore.errors import UserInputError

LAYERS_OF_ALIASES = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9))
HOSTILE = {
    "alias bomb": "l0: &l0 [x, x]\n" + LAYERS_OF_ALIASES,
    "an alias of itself": "a: &a [*a]",
    "an alias of nothing": "a: *b",
    "deep lists": "a: " + "[" * 60_000,
    "deep mappings": "{a: " * 30_000,
    "deep dashes": "- " * 60_000,
    "a quarter of a million values": "a: [" + "1," * 250_000 + "]",
    "a number without end": "a: " + "9" * 100_000,
    "a tab": "a:\n\tb: 1",
    "an open quotation": 'a: "x',
    "an open list": "a: [1, 2",
    "two documents": "a: 1\n---\nb: 2",
    "sizes that differ": "batch_size: 1\nb: 2\nbatch_size: 3",
    "a list as a key": "? [1, 2]\n: 3",
    "a null character": "a: \x00",
    "nothing": "",
    "only comments": "# a\n# b\n",
    "a list at the top": "- a",
    "a text at the top": "just words",
    "a lone bracket": "}",
    "percent signs": "%" * 1000,
    "colons": ":" * 100_000,
    "exclamation marks": "!" * 100_000,
    "a merge of a number": "a:\n  <<: 3",
}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "job.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(folder: Path, content: str | bytes) -> Document:
    return document.read(written(folder, content))


@pytest.mark.promise(
    "billions of aliases, deep nesting, tags of Python objects and the like in a file",
    "one error on one line; nothing is built",
)
@pytest.mark.timeout(300)  # unbounded, some of these take hours
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_error_on_one_line(tmp_path, name):
    path = written(tmp_path, HOSTILE[name])
    with pytest.raises(UserInputError) as refused:
        document.read(path)
    assert str(path) in refused.value.message
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 300 + len(str(path))


@pytest.mark.promise("a configuration of 100 MB", "refused unread")
def test_a_file_of_a_hundred_megabytes_is_refused_unread(tmp_path):
    path = tmp_path / "job.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserInputError, match="larger than 2 MiB"):
        document.read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024  # KiB


@pytest.mark.promise("a binary file as configuration", "refused with its name")
@pytest.mark.parametrize("content", [bytes(range(256)), b"\xff\xfe\x00", b"a: \xc3"])
def test_a_binary_file_is_refused(tmp_path, content):
    with pytest.raises(UserInputError, match="not text: byte"):
        read(tmp_path, content)


@pytest.mark.promise("a folder or a missing file as a configuration", "one error")
def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(UserInputError, match="there is no file"):
        document.read(tmp_path / "none.yaml")
    with pytest.raises(UserInputError, match="is a folder"):
        document.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "hint"), [("a: 1\nb: 2\nc: ]\n", 3, ""), ("a:\n\tb: 1", 2, "indent with spaces")]
)
def test_a_syntax_error_is_told_with_its_line_and_a_tab_with_a_hint(tmp_path, text, line, hint):
    with pytest.raises(UserInputError, match=rf"job\.yaml:{line}: not YAML") as refused:
        read(tmp_path, text)
    assert hint in refused.value.hint


def test_a_key_that_stands_twice_with_the_same_value_is_a_warning(tmp_path):
    seen = read(tmp_path, "a: 1\nb: {c: 2}\na: 1\n")
    assert seen.values == {"a": 1, "b": {"c": 2}}
    assert seen.warnings == [f'{tmp_path}/job.yaml:3: the key "a" stands twice, with the same value']


@pytest.mark.promise("a key of ours that stands twice, of which people see one", "an error with both lines")
@pytest.mark.parametrize("key", ["explore", "batch_size", "train_batch_size"])
def test_a_key_of_ours_with_two_values_names_both_lines(tmp_path, key):
    both = rf'job\.yaml:3: the key "{key}" stands twice, with 1 \(line 1\) and 2'
    with pytest.raises(UserInputError, match=both):
        read(tmp_path, f"{key}: 1\nb: 0\n{key}: 2\n")


def test_of_another_programs_key_with_two_values_the_last_counts(tmp_path):
    seen = read(tmp_path, "lr: 1\nb: 0\nlr: 2\n")
    assert seen.values == {"lr": 2, "b": 0}
    assert seen.warnings == [
        f'{tmp_path}/job.yaml:3: the key "lr" stands twice, with 1 (line 1) and 2: the last one counts'
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: !ref <b>", "!ref <b>"),
        ("a: !new:torch.nn.Linear\n  n: !apply:os.system [ls]", {"n": ["ls"]}),
        ("a: !!python/tuple [1, 2]", [1, 2]),
        ("a: !!python/object/apply:os.system [ls]", ["ls"]),
        ("a: !include other.yaml", "!include other.yaml"),
    ],
)
def test_a_tag_stays_for_the_program_and_makes_nothing(tmp_path, text, value):
    assert read(tmp_path, text).values == {"a": value}
    changed = with_value(f"{text}\nsize: 1  # mine\n", ("size",), 8, source="job.yaml")
    assert changed == f"{text}\nsize: 8  # mine\n"


@pytest.mark.parametrize("suffix", [".cfg", ".ini", ".conf"])
def test_a_file_of_any_format_is_read_where_it_holds_yaml(tmp_path, suffix):
    path = tmp_path / f"job{suffix}"
    path.write_text("train:\n  batch_size: 4\n")
    assert document.read(path).values == {"train": {"batch_size": 4}}
    for text in ("[train]\nbatch_size: 4\n", "batch_size = 4\n"):
        path.write_text(text)
        with pytest.raises(UserInputError, match="not YAML, JSON or TOML"):
            document.read(path)


COMMENTED = """{
  // of mine, with a \\"quote\\" and a // second one
  "size": 4, /* several
  lines */ "url": "http://a//b /* no comment */",
  "list": [1, 2,],
}
"""


def test_json_with_comments_and_last_commas_is_read_and_written(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(COMMENTED)

    assert document.read(path).values == {"size": 4, "url": "http://a//b /* no comment */", "list": [1, 2]}
    assert with_value(COMMENTED, ("size",), "explore", source="job.json") == COMMENTED.replace("4", '"explore"')


@pytest.mark.parametrize("word", ["Explore", "EXPLORE"])
def test_the_word_at_a_size_may_be_written_in_any_case(tmp_path, word):
    assert read(tmp_path, f"batch_size: {word}\nname: {word}\n").values == {"batch_size": "explore", "name": word}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-3", -3),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        ("1e-5", 1e-5),
        ("1.0e9", 1e9),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("none", "none"),
        ("yes", "yes"),
        ("on", "on"),
        ("1.2.3", "1.2.3"),
        ("tRUE", "tRUE"),
        ("1:30", "1:30"),
        ("-", "-"),
    ],
)
def test_plain_words_mean_what_yaml_1_2_says(text, value):
    found = resolve_plain(text)
    assert found == value
    assert type(found) is type(value)


def test_infinity_and_not_a_number_are_numbers():
    assert resolve_plain(".inf") == float("inf")
    assert resolve_plain("-.INF") == float("-inf")
    assert resolve_plain(".nan") != resolve_plain(".nan")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: '8'\nb: !!str 8\nc: \"null\"\nd: |\n  8\n", {"a": "8", "b": "8", "c": "null", "d": "8\n"}),
        ('{"a": [1, {"b": null}], "c": true}', {"a": [1, {"b": None}], "c": True}),
    ],
)
def test_quotes_and_tags_decide_the_type_and_json_is_read_too(tmp_path, text, values):
    assert read(tmp_path, text).values == values


def test_each_key_knows_its_line_and_each_value_its_place(tmp_path):
    text = "# comment\na:\n    b: 12   # twelve\n    c:\n      - x\n      - d: 5\n\n# end\n"
    seen = read(tmp_path, text)
    assert [seen.position(path).line for path in (("a",), ("a", "b"), ("a", "c", 1), ("a", "c", 1, "d"))] == [
        2,
        3,
        6,
        6,
    ]
    spans = {path: seen.position(path) for path in (("a", "b"), ("a", "c"))}
    assert {path: text[slice(*place.span)] for path, place in spans.items()} == {
        ("a", "b"): "12",
        ("a", "c"): "- x\n      - d: 5",
    }
    assert text[slice(*spans["a", "c"].key_span)] == "c"


def test_what_is_missing_is_placed_at_the_nearest_thing_around_it(tmp_path):
    seen = read(tmp_path, "x: 1\na:\n  b: 2\n")
    assert seen.where(("a", "z", "y")) == f"{seen.path}:2"
    assert seen.where(("q",)) == str(seen.path)


def test_aliases_and_merges_are_followed_with_their_lines(tmp_path):
    seen = read(tmp_path, "a: &a\n  x: 1\n  y: 2\nb: *a\nc:\n  <<: *a\n  y: 3\nd:\n  <<: [*a, {z: 4}]\n")
    assert seen.values["b"] == {"x": 1, "y": 2}
    assert seen.values["c"] == {"x": 1, "y": 3}
    assert seen.values["d"] == {"x": 1, "y": 2, "z": 4}
    assert [seen.position(path).line for path in (("b", "x"), ("c", "x"), ("c", "y"), ("d", "z"))] == [2, 2, 7, 9]


def test_setting_one_place_of_an_alias_leaves_the_other(tmp_path):
    seen = read(tmp_path, "a: &a {x: 1}\nb: *a\n")
    seen.apply_override(Override.parse("b.x=2"))
    assert seen.values == {"a": {"x": 1}, "b": {"x": 2}}


CALLBACKS = "init:\n  callbacks:\n  - Flags: {csx.speed.size: 4}\n  - Other: {}\n"


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("init.x=3", ("init", "x"), 3),
        ("new.section.key=[1, 2]", ("new", "section", "key"), [1, 2]),
        ("init.callbacks.Flags.csx.speed.size=explore", ("init", "callbacks", 0, "Flags", "csx.speed.size"), "explore"),
        ("init.callbacks.Other.csx.a.b=1", ("init", "callbacks", 1, "Other", "csx.a.b"), 1),
        ("init.callbacks.New.csx.a.b=1", ("init", "callbacks", 2, "New", "csx.a.b"), 1),
        ("init.callbacks.1.Other={k: v}", ("init", "callbacks", 1, "Other"), {"k": "v"}),
        ("init.callbacks.0=null", ("init", "callbacks", 0), None),
        ("other.callbacks.New.k=1", ("other", "callbacks", 0, "New", "k"), 1),
        ("init.x=", ("init", "x"), None),
        ("init.x=a=b", ("init", "x"), "a=b"),
        ("init.x={output_dir}", ("init", "x"), "{output_dir}"),
        ("init.x={output_dir}/run", ("init", "x"), "{output_dir}/run"),
    ],
)
def test_an_override_finds_its_place(tmp_path, text, path, value):
    seen = read(tmp_path, CALLBACKS)
    seen.apply_override(Override.parse(text))
    assert seen.get(path) == value
    assert seen.has(path)
    assert seen.where(path) == f"--set {text}"
    if text.startswith("init.callbacks.Flags"):  # the rest of the file stays
        assert seen.values == {"init": {"callbacks": [{"Flags": {"csx.speed.size": value}}, {"Other": {}}]}}


@pytest.mark.parametrize("text", ["", "=", "a", ".a=1", "a..b=1", "=3", "a=[", "a.b=1", "l.7=1", "l.x=1", "a=!!x y"])
def test_an_override_that_cannot_be_is_refused(tmp_path, text):
    seen = read(tmp_path, "a: 5\nl: [1, 2]\n")
    with pytest.raises(UserInputError, match="--set"):
        seen.apply_override(Override.parse(text))


@pytest.mark.promise("an override of thousands of levels", "refused at the depth of a file")
def test_an_override_goes_no_deeper_than_a_file_may():
    assert len(Override.parse(".".join("a" * 64) + "=1").parts) == 64
    with pytest.raises(UserInputError, match="65 levels of keys; 64 are the most"):
        Override.parse(".".join("a" * 65) + "=1")


def test_a_new_key_beside_one_that_looks_like_it_is_a_warning(tmp_path):
    seen = read(tmp_path, "train_input:\n  batch_size: 4\n")
    seen.apply_override(Override.parse("train_input.batchsize=8"))
    assert seen.warnings == [
        '--set train_input.batchsize=8: "batchsize" is new in train_input; did you mean "batch_size"?'
    ]


def test_all_problems_are_listed_in_the_order_of_the_file(tmp_path):
    problems = Problems(document=read(tmp_path, "a: 1\nb: 2\nc: 3\n"))
    problems.error(("c",), "third")
    problems.error(("a",), "first", "type 5")
    problems.error(("a",), "first", "type 5")
    with pytest.raises(UserInputError) as refused:
        problems.raise_if_any()
    path = tmp_path / "job.yaml"
    assert refused.value.message.splitlines() == [
        f"2 problems in {path}",
        f"  {path}:1: first",
        "      type 5",
        f"  {path}:3: third",
    ]


def test_one_problem_keeps_its_hint_apart(tmp_path):
    problems = Problems(document=read(tmp_path, "a: 1\n"))
    problems.raise_if_any()  # without problems nothing is raised
    problems.error(("a",), "wrong", "type 5")
    with pytest.raises(UserInputError) as refused:
        problems.raise_if_any()
    assert (refused.value.message, refused.value.hint) == (f"{tmp_path}/job.yaml:1: wrong", "type 5")


@pytest.mark.promise("any text as YAML (property test)", "a value or one error")
@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("a1:-[]{},&*!|>'\"%@`#?~ \n\t."), max_size=60))
def test_any_text_is_a_value_or_one_error(text):
    try:
        YamlReader("job.yaml").read(text)
    except UserInputError as error:
        assert error.message.startswith("job.yaml")


@pytest.mark.promise("any text behind `--set` (property test)", "read or refused")
@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_override_text_is_read_or_refused(text):
    try:
        Override.parse(text)
    except UserInputError as error:
        assert "--set" in error.message


def test_an_override_of_one_reading_is_not_in_the_next(tmp_path):
    first = read(tmp_path, "a:\n  b: 1\n")
    first.apply_override(Override.parse("a.b=2"))

    second = read(tmp_path, "a:\n  b: 1\n")

    assert (first.values, second.values) == ({"a": {"b": 2}}, {"a": {"b": 1}})
    assert second.where(("a", "b")).endswith(":2")


@pytest.mark.promise(
    "control sequences of a terminal, or endless words, in a value", "escaped and cut in every message"
)
@pytest.mark.parametrize("word", ["\x1b[2J", "\u202e", "\u2028", "\ufeff", "\ud800", "x" * 5_000])
def test_a_message_holds_nothing_that_a_terminal_obeys_and_has_an_end(tmp_path, word):
    problems = Problems(document=read(tmp_path, "a: 1\n"))
    problems.error(("a",), f"a is {word}", f"type {word}")
    problems.warn(("a",), f"a is {word}")

    with pytest.raises(UserInputError) as raised:
        problems.raise_if_any()

    for text in (str(raised.value), raised.value.message, raised.value.hint, *problems.warnings):
        assert text.isprintable() and text.isascii()
        assert len(text) < 1_100


def test_a_message_keeps_its_lines_and_every_alphabet():
    error = UserInputError("größer als 模型\n  zwei", hint="a\nb")
    assert (error.message, error.hint) == ("größer als 模型\n  zwei", "a\nb")


def test_a_value_below_its_key_stays_there():
    text = "lr:\n  0.1\nsize:  # mine\n    4\nend: 1\n"

    assert with_value(text, ("size",), 8, source="job.yaml") == text.replace("    4", "    8")


JSON_OF_PEOPLE = """// of people
{
\t/* two
\tlines */
\t"url": "http://a.b/*c*/", // d
\t"size": "old", /* e */
\t"list": [1, 2,],
}
"""


def test_json_below_comments_is_written_as_json():
    changed = with_value(JSON_OF_PEOPLE, ("size",), "word", source="job.json")
    assert changed == JSON_OF_PEOPLE.replace('"old"', '"word"')
    changed = with_value(JSON_OF_PEOPLE, ("new",), 8, source="job.json")
    assert changed == JSON_OF_PEOPLE.replace('"url"', '"new": 8, "url"')


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a:\nb: 1\n", 'a: "x/y"\nb: 1\n'),
        ("a: # set me\nb: 1\n", 'a: "x/y" # set me\nb: 1\n'),
        ("b: 1\na:", 'b: 1\na: "x/y"'),
        ("a: ~\nb: 1\n", 'a: "x/y"\nb: 1\n'),
        ("# c\n{a: 1}\n", '# c\n{a: "x/y"}\n'),
    ],
)
def test_an_empty_value_is_filled_in_with_a_text(text, changed):
    assert with_value(text, ("a",), "x/y", source="job.yaml") == changed


def test_what_stood_below_a_key_that_stands_again_is_gone(tmp_path):
    text = "a: {x: 1, y: 1}\na: {x: 2}\n"
    seen = read(tmp_path, text)
    assert seen.values == {"a": {"x": 2}}
    assert ("a", "y") not in seen.positions
    assert with_value(text, ("a", "y"), 3, source="job.yaml") == "a: {x: 1, y: 1}\na: {y: 3, x: 2}\n"


@pytest.mark.timeout(300)  # looked for from every sign, the end takes hours
@pytest.mark.parametrize("open_signs", ["/*", '\\"', ', "'])
def test_what_is_open_to_the_end_of_json_is_read_once(tmp_path, open_signs):
    path = tmp_path / "job.json"
    path.write_text('{"a": 1} ' + open_signs * 500_001)
    with pytest.raises(UserInputError, match="not YAML"):
        document.read(path)
