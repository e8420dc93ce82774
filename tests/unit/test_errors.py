"""Texts of errors as they are shown."""

from __future__ import annotations

import pytest

from bexplore.errors import shorten


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short enough", "short enough"),
        ("memory is allocated by PyTorch, and more", "memory is allocated by ..."),
        ("x" * 40, "x" * 26 + " ..."),
        ("a " + "x" * 40, "a " + "x" * 24 + " ..."),
    ],
)
def test_a_long_text_is_cut_between_its_words(text, shown):
    assert shorten(text, 30) == shown
