"""A file of the binlog that was damaged while the connector was stopped: a gap with its name, which can be closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.mysql_servers import own_server
from tests.integration.mysql_work import connector_of, same

DAMAGES = {
    "garbled": "the log cannot be read behind ",
    "cut": "binlog damaged: ",
    "written over": "binlog damaged: ",
    "removed": "binlog damaged: ",
}


@pytest.mark.full  # without a server: `test_an_event_that_is_garbled_is_a_gap`, `tests/unit/test_mysql_continuity.py`
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_a_gap_that_can_be_closed(
    kind: str, how: str, kafka: str, prefix: str, tmp_path: Path
) -> None:
    with own_server(kind, tmp_path) as own:
        database = own.database
        database.execute("CREATE TABLE a (id INT PRIMARY KEY, v TEXT)", "INSERT INTO a VALUES (1, 'x')")
        connector = connector_of(tmp_path, prefix, database, kafka)
        connector.catch_up()
        ((file, *_),) = database.rows("SHOW BINARY LOGS")[-1:]
        database.execute(
            *("INSERT INTO a VALUES (2, REPEAT('y', 3000))", "INSERT INTO a VALUES (3, 'z')", "FLUSH BINARY LOGS"),
            "INSERT INTO a VALUES (4, 'z')",
        )
        events = database.rows(f"SHOW BINLOG EVENTS IN '{file}'")
        begin, end = next((at, to) for _, at, _, _, to, _ in events if int(to) - int(at) > 3000)
        path = tmp_path / "data" / str(file)
        if how != "removed":  # by hand, to have room, while the server runs
            own.server.stop()
        raw = bytearray(path.read_bytes())
        match how:
            case "garbled":
                raw[begin + 200] ^= 1
            case "cut":
                del raw[begin + 100 :]
            case _:
                raw[begin:end] = bytes(end - begin)
        path.write_bytes(raw)
        if how == "removed":
            path.unlink()
        else:
            own.start()

        run = connector.here("run", "FILE", "--until-caught-up")
        may_pass = how in ("garbled", "removed")  # what was garbled on its way is read well next time
        assert run.returncode == (1 if may_pass else 4)
        assert f"error: {DAMAGES[how]}" in run.stderr
        assert "--after-gap" in run.stderr
        asked = connector.here("snapshot", "start", "FILE", "--after-gap")
        assert asked.returncode == 0, asked.stderr
        database.execute("INSERT INTO a VALUES (5, 'z')", "DELETE FROM a WHERE id = 1")
        connector.catch_up()
        same(connector, database, "a")
