"""What each push runs of a test's parameters, and what `make test-all` runs besides.

Each push has one witness of each law: on the server, the store, the engine that is used most, or where it is most
likely to break. Second witnesses of the same law are `full`: other parameters of one test by `some_each_push`, whole
tests by the marker, with the test that is left in its place as the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

Value = TypeVar("Value")


def some_each_push(values: Iterable[Value], *kept: Value) -> list[Any]:
    """For `pytest.mark.parametrize`: all of `values`, of which `make test` takes those that are named."""
    given = list(values)
    missing = [value for value in kept if value not in given]
    if missing or not kept:
        raise ValueError(f"{missing or 'none'} of {given} is kept")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.full) for value in given]
