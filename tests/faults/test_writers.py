"""The soak's own writers: what one has prepared and lost is ended by another session, and the ledger tells how."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.conftest import MySQLDatabase
from tests.faults.mysql import MysqlWriter, prepared_by
from tests.faults.workload import Workload


class _Distributed(MysqlWriter):
    kinds: ClassVar = {"distributed": MysqlWriter.kinds["distributed"]}


def prepared(database: MySQLDatabase) -> set[str]:
    with database.connect() as connection, connection.cursor() as cursor:
        return prepared_by(cursor)


def test_a_session_lost_after_it_has_prepared(mysql_database: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to end it are taken, and none is left."""
    before = prepared(mysql_database)
    workload = Workload(_Distributed, mysql_database.url, seed=1, accounts=500, writers=1)
    workload.prepare()
    (writer,) = workload.writers

    def lose_it(_seconds: float | None = None) -> bool:
        mysql_database.execute(f"KILL {writer._connection.thread_id()}")
        return False

    monkeypatch.setattr(workload.over, "wait", lose_it)
    while writer.done.total() < 40:
        writer.transaction()
    assert prepared(mysql_database) == before
    ((ended,),) = mysql_database.rows("SELECT COUNT(*) FROM ledger WHERE id > 0")
    assert 3 < writer.done["committed"] <= ended < writer.done["outcome by ledger"]
