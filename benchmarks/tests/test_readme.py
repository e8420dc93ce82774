"""README and docs have the generated parts that the code and the results give."""

from __future__ import annotations

import ast

import pytest

from benchmarks import readme, readme_promises

ON_PAGES = [(path, name, body) for path in readme.PAGES for name, body in readme.parts_of(path.read_text())]


@pytest.mark.parametrize(
    ("name", "body"), [one[1:] for one in ON_PAGES], ids=[f"{path.name}-{name}" for path, name, _ in ON_PAGES]
)
def test_a_generated_part_is_what_make_docs_writes(name, body):
    assert body == f"{readme.PARTS[name]()}\n"


def test_each_generated_part_stands_on_some_page():
    assert {name for _, name, _ in ON_PAGES} == readme.PARTS.keys()


def test_at_least_60_attacks_and_faults_are_listed_each_once():
    found = readme_promises.promises()
    attacks = [one.attack for one in found]

    assert len(found) >= 60
    assert [attack for attack in attacks if attacks.count(attack) > 1] == []
    assert all(len(one.attack) <= 100 and len(one.result) <= 100 for one in found)


@pytest.mark.parametrize(
    "marker", ["promise('one')", "promise('one', '')", "promise(NAME, 'b')", "promise('a', result='b')"]
)
def test_a_promise_that_is_not_two_plain_texts_is_an_error(marker):
    call = ast.parse(f"pytest.mark.{marker}", mode="eval").body

    with pytest.raises(ValueError, match="write promise"):
        readme_promises._texts(call, "a.py:1")
