"""A table of text: aligned lines for a terminal, HTML for the report, Markdown for pull requests."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from html import escape

# Fewest columns, and the CSS class of such a table: its rows become cards below 740 pixels, below 600, or never.
CARDS = ((7, "many"), (5, "some"), (0, "few"))
GAP = "  "  # between columns, and before the first
NARROWEST = 20  # characters; a column of words is not wrapped to less


def stdout_width() -> int | None:
    """Return the columns of the terminal that lines are printed on; None for a file or a pipe: lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrap_words(text: str, width: int | None, *, first: str = "", indent: str = "") -> list[str]:
    """Return the lines of a text of at most `width` characters, cut between words; a longer word stays whole.

    Args:
        width: None for one line.
        first: What stands before the first line.
        indent: What stands before the others.
    """
    if width is None:
        return [f"{first}{text}"]
    width = max(width, len(indent) + NARROWEST)
    wrapper = textwrap.TextWrapper(
        width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text) or [first]


def markdown_cell(text: str) -> str:
    """Return a text as a cell of a Markdown table takes it."""
    return text.replace("|", "\\|").replace("\n", " ")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under headings, which name the unit where a whole column has one."""

    headings: tuple[str, ...]  # one per column; empty texts for none
    rows: tuple[tuple[str, ...], ...]  # one cell per column; the last cell of a shorter row takes the rest of its line
    is_number: tuple[bool, ...]  # whether a column is aligned right, one per column
    highlighted: int | None = None  # index of the row to highlight; None for none
    mark: str = ""  # what is written beside the highlighted row; empty for nothing
    remarks: tuple[str, ...] = ()  # a sentence below each row, or no sentences at all

    def without_empty_columns(self, unknown: str) -> Table:
        """Return the table without columns whose cells are all empty or unknown."""
        columns = range(len(self.headings))
        kept = [index for index in columns if any(row[index] not in ("", unknown) for row in self.rows)]
        return dataclasses.replace(
            self,
            headings=tuple(self.headings[index] for index in kept),
            is_number=tuple(self.is_number[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
        )

    def as_lines(self, width: int | None = None) -> list[str]:
        """Return the lines of the table.

        Where they are wider than `width`, words of the last column are wrapped, and columns of numbers that are too
        many go below the others, each time beside the first column.

        Args:
            width: Characters of a line; None for as many as it takes.
        """
        if not self.headings:
            return []
        widths = self._widths()
        shown = _fitting_columns(widths, width, is_wrapped=not self.is_number[-1])
        if len(shown) > 1:
            parts = [self._with_columns(columns).as_lines() for columns in shown]
            return [line for number, part in enumerate(parts) for line in ([""] if number else []) + part]
        lines = self._line(self.headings, widths, width) if any(self.headings) else []
        for index, row in enumerate(self.rows):
            lines += self._line(row, widths, width)
            if self.mark and index == self.highlighted:
                lines[-1] += f"{GAP}<- {self.mark}"
            if self.remarks and self.remarks[index]:
                lines.append(f"{2 * GAP}{self.remarks[index]}")
        return lines

    def as_markdown(self) -> list[str]:
        """Return the lines of a Markdown table, whose highlighted row is bold."""
        if self.mark and self.highlighted is not None:
            return self._with_mark().as_markdown()
        rules = ["---:" if is_number else "---" for is_number in self.is_number]
        lines = [_markdown_row(map(markdown_cell, self.headings)), _markdown_row(rules)]
        for index, row in enumerate(self.rows):
            bold = "**" if index == self.highlighted else ""
            lines.append(_markdown_row(markdown_cell(f"{bold}{text}{bold}" if text else text) for text in row))
        return lines

    def as_html(self, caption: str) -> str:
        """Return a table of HTML, without its style sheet."""
        if self.mark and self.highlighted is not None:
            return self._with_mark().as_html(caption)
        layout = next(name for fewest, name in CARDS if len(self.headings) >= fewest)
        classes = [' class="number"' if is_number else "" for is_number in self.is_number]
        head = "".join(
            f'<th scope="col" role="columnheader"{own}>{escape(name)}</th>'
            for name, own in zip(self.headings, classes, strict=True)
        )
        lines = [
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">',
            f'<table class="{layout}" role="table">',
            f"<caption>{escape(caption)}</caption>",
            f'<thead><tr role="row">{head}</tr></thead>',
            "<tbody>",
        ]
        for index, row in enumerate(self.rows):
            answer = ' class="answer"' if index == self.highlighted else ""
            cells = "".join(
                f'<td role="cell" data-name="{escape(name)}"{own}>{escape(cell)}</td>'
                for name, own, cell in zip(self.headings, classes, row, strict=True)
            )
            lines.append(f'<tr role="row"{answer}>{cells}</tr>')
            if self.remarks and self.remarks[index]:
                remark = f'<td role="cell" colspan="{len(self.headings)}">{escape(self.remarks[index])}</td>'
                lines.append(f'<tr role="row" class="remark">{remark}</tr>')
        return "\n".join([*lines, "</tbody></table></div>"])

    def _with_mark(self) -> Table:
        """Return the table with its mark in a last column, where no arrow can stand behind a line."""
        marks = [self.mark if index == self.highlighted else "" for index in range(len(self.rows))]
        return dataclasses.replace(
            self,
            headings=(*self.headings, ""),
            rows=tuple((*row, mark) for row, mark in zip(self.rows, marks, strict=True)),
            is_number=(*self.is_number, False),
            mark="",
        )

    def _widths(self) -> list[int]:
        rows = [self.headings, *(row for row in self.rows if len(row) == len(self.headings))]
        return [max(len(row[index]) for row in rows) for index in range(len(self.headings))]

    def _with_columns(self, columns: Sequence[int]) -> Table:
        return dataclasses.replace(
            self,
            headings=tuple(self.headings[index] for index in columns),
            is_number=tuple(self.is_number[index] for index in columns),
            rows=tuple(tuple(row[index] for index in columns if index < len(row)) for row in self.rows),
        )

    def _line(self, cells: Sequence[str], widths: Sequence[int], width: int | None) -> list[str]:
        last = len(cells) - 1
        is_words = last < len(self.headings) - 1 or not self.is_number[last]
        aligned = [
            f"{cell:>{own}}" if is_number else f"{cell:<{own}}"
            for cell, own, is_number in zip(cells, widths, self.is_number, strict=False)
        ]
        start = GAP + "".join(cell + GAP for cell in aligned[:-1])
        if not is_words:
            return [(start + aligned[-1]).rstrip()]
        room = None if width is None else max(width - len(start), NARROWEST)
        parts = [cells[-1]] if room is None or len(cells[-1]) <= room else textwrap.wrap(cells[-1], room)
        return [((start if number == 0 else " " * len(start)) + part).rstrip() for number, part in enumerate(parts)]


def _fitting_columns(widths: Sequence[int], width: int | None, *, is_wrapped: bool) -> list[list[int]]:
    """Return the columns that stand side by side in `width` characters, the first column in each part."""
    needed = [*widths[:-1], min(widths[-1], NARROWEST)] if is_wrapped else list(widths)
    parts = [[0]]
    for index in range(1, len(needed)):
        if width is not None and len(parts[-1]) > 1:
            taken = sum(needed[each] + len(GAP) for each in (*parts[-1], index))
            if taken > width:
                parts.append([0])
        parts[-1].append(index)
    return parts


def _markdown_row(cells: Iterator[str] | Sequence[str]) -> str:
    return "".join(["|", *(f" {cell} |" for cell in cells)])
