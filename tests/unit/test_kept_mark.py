"""A copy's mark, whole or damaged. No server."""

from __future__ import annotations

import pytest

from spark_apply.model.completeness import Complete, Mark
from spark_apply.model.kept_mark import kept_mark

WHOLE = Mark({0: 7}, Complete("shop", "00000001.0000000000000014.00000000", None, 1), "id", 2)


def test_a_whole_mark_is_read() -> None:
    assert kept_mark(WHOLE.to_json(), "a copy") == WHOLE
    assert kept_mark(WHOLE.to_json().encode(), "a copy") == WHOLE


@pytest.mark.parametrize(
    "text",
    [WHOLE.to_json()[:-9], b"", b"\xff", "null", "[]", "{}", '{"ends": 3, "complete": null}', '{"ends": {"a": 1}}'],
)
def test_a_damaged_one_is_none_and_is_told(text: str | bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert kept_mark(text, "index shop.public.orders") is None
    assert caplog.messages == ["index shop.public.orders: its mark is damaged, so how far it is, is not known"]
