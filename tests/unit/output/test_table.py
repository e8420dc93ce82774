"""A table as lines of text, as Markdown and as HTML."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.output.table import Table

TABLE = Table(
    headings=("size", "samples/s", "what limits it"),
    rows=(("1", "90", "the processor"), ("16", "1,200", "the memory's bandwidth, by far")),
    is_number=(True, True, False),
    highlighted=1,
    mark="yours",
)


def test_numbers_are_aligned_right_and_words_left():
    assert TABLE.as_lines() == [
        "  size  samples/s  what limits it",
        "     1         90  the processor",
        "    16      1,200  the memory's bandwidth, by far  <- yours",
    ]


def test_words_wrap_below_themselves_at_the_width():
    assert dataclasses.replace(TABLE, mark="").as_lines(40)[2:] == [
        "    16      1,200  the memory's",
        "                   bandwidth, by far",
    ]


@pytest.mark.parametrize("width", [24, 40, 60, 100])
def test_columns_that_do_not_fit_go_below_beside_the_first_one(width):
    heads = tuple(f"column {number}" for number in range(9))
    wide = Table(headings=heads, rows=(tuple(f"{number}" * 8 for number in range(9)),), is_number=(True,) * 9)

    lines = wide.as_lines(width)

    assert max(map(len, lines)) <= width
    assert all(sum(head in line for line in lines) >= 1 for head in heads)
    starts = [line.split()[0] for line in lines if line and "column" not in line]
    assert set(starts) == {"0" * 8}


def test_a_shorter_row_takes_the_rest_of_its_line():
    table = Table(
        headings=("name", "a", "b"), rows=(("x", "1", "2"), ("y", "unknown: no blocks")), is_number=(False, True, True)
    )

    assert table.as_lines() == ["  name  a  b", "  x     1  2", "  y     unknown: no blocks"]


def test_remarks_stand_below_their_row():
    table = dataclasses.replace(TABLE, mark="", remarks=("", "was cold"))

    assert table.as_lines()[-1] == "    was cold"
    assert '<td role="cell" colspan="3">was cold</td>' in table.as_html("sizes")


def test_columns_without_a_known_value_are_left_out():
    table = Table(headings=("a", "b", "c"), rows=(("1", "-", ""), ("2", "3", "-")), is_number=(True, True, False))

    kept = table.without_empty_columns("-")

    assert (kept.headings, kept.rows, kept.is_number) == (("a", "b"), (("1", "-"), ("2", "3")), (True, True))


def test_markdown_has_a_rule_a_bold_row_and_no_bare_bars():
    lines = Table(
        headings=("size", "why"), rows=(("1", "a|b"), ("2", "")), is_number=(True, False), highlighted=0
    ).as_markdown()

    assert lines == ["| size | why |", "| ---: | --- |", "| **1** | **a\\|b** |", "| 2 |  |"]


def test_html_escapes_cells_and_carries_the_mark_in_a_column_of_its_own():
    page = dataclasses.replace(TABLE, rows=(("1", "2", "<script>"), ("3", "4", ""))).as_html('all "sizes"')

    assert "<script>" not in page
    assert 'aria-label="all &quot;sizes&quot;"' in page
    assert '<tr role="row" class="answer">' in page
    assert page.count(">yours</td>") == 1
