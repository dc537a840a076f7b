"""Values that PostgreSQL leaves out of updates, of a topic that takes longer to read than the server waits."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import FULL, Database
from tests.integration.connector import Connector
from tests.integration.running import same

ROWS = 100_000 if FULL else 5_000
DOC = "(SELECT string_agg(md5(id || '{0}' || x), '') FROM generate_series(1, 100) x)"  # 3,200 characters


def test_left_out_values_after_a_restart(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The source is asked, or the topic read, which takes longer than the server waits for a sign of life.

    A savepoint has an id of its own, and a transaction may write a row twice: only the topic can tell what was left
    out. The session goes on all the same, and every event has the value of its time.
    """
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, doc text)",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT id, 0, {DOC.format('first')} FROM generate_series(1, {ROWS}) id",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    docs = {key: row["doc"] for key, row in connector.fold("public.t").items()}
    postgres18.execute(f"ALTER ROLE cdc_capture_{postgres18.name} SET wal_sender_timeout = '500ms'")
    for changes in (
        ["UPDATE t SET n = 1 WHERE id = 5"],
        ["SAVEPOINT a", "UPDATE t SET n = 2 WHERE id = 6", "RELEASE a"],
        ["UPDATE t SET n = 3 WHERE id = 7", f"UPDATE t SET doc = {DOC.format('second')} WHERE id = 7"],
        ["UPDATE t SET n = 4 WHERE id = 8", "DELETE FROM t WHERE id = 8", "INSERT INTO t VALUES (8, 4, 'another')"],
    ):
        postgres18.execute(f"BEGIN; {'; '.join(changes)}; COMMIT")
        said = connector.catch_up()
        assert "trying again" not in said
    same(connector, postgres18, "public.t")
    updates = [event["after"] for event in connector.events("public.t") if event["op"] == "u"]
    assert [row["n"] for row in updates] == [1, 2, 3, 3, 4]
    for row in (updates[0], updates[1], updates[2], updates[4]):
        assert row["doc"] == docs[b'{"id":%d}' % row["id"]]
