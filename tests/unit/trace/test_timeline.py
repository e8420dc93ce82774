"""Quantities as polynomials of the size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bexplore.trace.timeline import Polynomial


def test_polynomials_multiply():
    assert Polynomial(1, 2) * Polynomial(3, 4) == Polynomial(3, 10, 8)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 1000))
def test_a_polynomial_is_found_from_its_values(constant, linear, quadratic):
    expected = Polynomial(constant, linear, quadratic)
    found = Polynomial.interpolate(lambda size: int(expected(size)), 61)
    assert found(997) == pytest.approx(expected(997), rel=1e-12)
