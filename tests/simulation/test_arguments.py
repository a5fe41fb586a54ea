"""What `make simulate` is asked for."""

import argparse

import pytest
from tests.simulation.__main__ import _seeds


def test_seeds_are_a_first_and_a_last_and_anything_else_is_refused_by_name() -> None:
    assert (_seeds("3-7"), _seeds("5")) == ((3, 7), (5, 5))
    for given in ("abc", "1-x", "-3"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{given}' is no FIRST-LAST such as 0-200"):
            _seeds(given)
