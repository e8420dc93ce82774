from __future__ import annotations

import pytest

from bexplore.config.document.values import MAX_CHARACTERS, Values, follow_references

VALUES = {
    "size": 8,
    "name": "size",
    "same": "${size}",
    "data": {"lengths": [128, 256], "longest": "${.lengths[1]}", "own": "${..size}"},
    "log": "runs/${name}_${data.lengths.0}",
    "inner": "${${name}}",
    "home": "${oc.env:BEXPLORE_TEST_HOME}",
    "absent": "${oc.env:BEXPLORE_TEST_NONE,7}",
    "selected": "${oc.select:none,9}",
    "nowhere": "${none}",
    "call": "${eval:1+1}",
    "circle": "${circle}",
    "open": "${size",
}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("same", 8),
        ("data.longest", 256),
        ("data.own", 8),
        ("log", "runs/size_128"),
        ("inner", 8),
        ("home", "/here"),
        ("absent", "7"),
        ("selected", "9"),
        ("nowhere", "${none}"),
        ("call", "${eval:1+1}"),
        ("circle", "${circle}"),
        ("open", "${size"),
    ],
)
def test_a_reference_means_what_it_leads_to_or_stays_as_it_is(key, meant, monkeypatch):
    monkeypatch.setenv("BEXPLORE_TEST_HOME", "/here")
    assert Values(VALUES).get(key) == meant


@pytest.mark.timeout(300)  # OmegaConf takes minutes for these
@pytest.mark.parametrize("doubled", ["${{k{0}}}${{k{0}}}", "${{k{0}}}"])
@pytest.mark.promise("references of a file that double or run in a circle", "left as they are, in bounded time")
def test_references_that_double_or_never_end_are_left_as_they_are(doubled):
    chain = {f"k{n}": doubled.format(n + 1) for n in range(300)} | {"k300": "x"}
    assert follow_references(chain["k0"], chain, ("k0",)) == chain["k0"]


@pytest.mark.promise("a reference to a text without end", "left as it is")
def test_a_long_text_is_left_as_it_is():
    values = {"long": "x" * MAX_CHARACTERS, "key": "${long}${long}"}
    assert follow_references(values["key"], values, ("key",)) == values["key"]
