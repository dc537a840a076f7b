"""What `cdc apply --plan` says in its last line, which people read first."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.cli.running.apply import _plan_lines

PROBLEM = {"what": "offsets were deleted", "hint": "cdc rebuild apply.yaml"}


def _copy(action: str) -> dict[str, Any]:
    where = {"table": "public.t", "store": "s", "action": action}
    return {**where, "steps": [], "why": None, "hint": None, "mode": "latest", "rebuild": None}


@pytest.mark.parametrize(
    ("actions", "problems", "said"),
    [
        (["make", "alter"], [], "it would start"),
        (["make", "refused"], [], "it would start, and set aside what is refused"),
        (["refused"], [], "it would not start"),
        (["make", "refused"], [PROBLEM], "it would not start"),
    ],
)
def test_the_last_line(actions: list[str], problems: list[dict[str, str]], said: str) -> None:
    """Exit code 1 stands for both: that it would not start, and that it would not with all copies."""
    starts = not problems and "refused" not in actions
    copies = [_copy(action) for action in actions]
    plan = {"copies": copies, "topics": [], "problems": problems, "checkpoint": None, "starts": starts}
    assert [*_plan_lines(plan)][-1] == said
