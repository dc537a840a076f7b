"""A new walsender is asked for at older servers alone, and by each who asks for one that begins later."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from cdc.model.errors import RetryableError
from connectors.postgres.slot import afresh
from snapshot.postgres import windows

LOG = "postgresql://h/d", "slot"


def catalog(version: int, end: int = 0) -> Any:
    return Mock(rows=Mock(return_value=[(version,)]), end=Mock(return_value=end))


@pytest.mark.parametrize("version", [140018, 150013, 160009, 170005, 180000, 190000])
def test_a_repaired_server_needs_none(version: int) -> None:
    afresh.await_new(catalog(version), LOG, over=lambda: True)
    assert not afresh.is_due(LOG, 2**63)


@pytest.mark.parametrize("version", [140000, 140017, 150012, 160008, 170004])
def test_one_that_begins_behind_the_call(version: int) -> None:
    """What has begun before the position is not it, and the log of another slot has nothing to do with it."""
    told = []

    def over() -> bool:
        told.append([afresh.is_due(LOG, 4095), afresh.is_due(LOG, 4096), afresh.is_due((LOG[0], "another"), 4096)])
        afresh.has_begun(LOG, 4095 if len(told) == 1 else 4096)
        return len(told) > 2

    afresh.await_new(catalog(version, 4096), LOG, over=over)
    assert told == [[False, True, False]] * 2
    assert not afresh.is_due(LOG, 2**63)


def test_one_that_is_not_waited_for_any_more() -> None:
    with pytest.raises(RetryableError, match="ended"):
        afresh.await_new(catalog(160002), LOG, over=lambda: True)
    afresh.has_begun(LOG, 2**63)


def test_tables_that_have_joined_together_need_one_walsender(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one for each table decodes all that the slot holds as often; a table that is read again may be another."""
    asked = Mock()
    monkeypatch.setattr(afresh, "await_new", asked)
    monkeypatch.setattr(windows, "await_older_transactions", Mock())
    reader: Any = windows.PostgresWindows(Mock())
    reader._open, reader._read = Mock(return_value=(Mock(), Mock())), Mock()
    for table, count in (("s.a", 1), ("s.b", 1), ("s.c", 1), ("s.b", 2), ("s.a", 2), ("s.c", 2), ("s.c", 3)):
        reader._under_a_view(Mock(qualified=table), Mock(), rows=10, first=True)
        reader._under_a_view(Mock(qualified=table), Mock(), rows=10, first=False)
        assert asked.call_count == count


def test_a_walsender_that_did_not_come_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(side_effect=[RetryableError("reading was ended"), None])
    monkeypatch.setattr(afresh, "await_new", asked)
    monkeypatch.setattr(windows, "await_older_transactions", Mock())
    reader: Any = windows.PostgresWindows(Mock())
    reader._open, reader._read = Mock(return_value=(Mock(), Mock())), Mock()
    with pytest.raises(RetryableError):
        reader._under_a_view(Mock(qualified="s.a"), Mock(), rows=10, first=True)
    reader._under_a_view(Mock(qualified="s.b"), Mock(), rows=10, first=True)
    assert asked.call_count == 2
