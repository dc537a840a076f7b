"""Ways to a server that libpq has beside a host in the URL, and servers that are not up yet at a first start."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

from cdc.dev.servers import postgres as dev_postgres
from cdc.dev.servers.process import Server, Settings
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, same
from tests.pushes import some_each_push

DEAD: Final = "the port of a host that does not answer"


def _free_port() -> int:
    """One that nobody listens on."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("way", some_each_push(["?service=", "PGSERVICE", "a service of the system", DEAD], DEAD))
def test_a_database_by_another_way(way: str, postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Snapshot, stream, `cdc check` and `cdc status` all go there: by SQL and by the replication connection."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], as_owner=True)
    there = urlsplit(postgres18.url)
    parts = {"host": there.hostname, "port": there.port, "dbname": postgres18.name, "user": there.username,
             "password": unquote(there.password or "")}  # fmt: skip
    services = "[elsewhere]\nhost=db.example\n\n[shop]\n" + "".join(f"{key}={of}\n" for key, of in parts.items())
    file = tmp_path / ("pg_service.conf" if "system" in way else "services")
    file.write_text(services)
    url = "postgresql:///"
    if "system" in way:
        connector.environment |= {"PGSYSCONFDIR": str(tmp_path), "PGSERVICEFILE": str(tmp_path / "none")}
    else:
        connector.environment["PGSERVICEFILE"] = str(file)
    if way == "PGSERVICE":
        connector.environment["PGSERVICE"] = "shop"
    elif way == DEAD:
        login, _, _ = there.netloc.rpartition("@")
        url = f"postgresql://{login}@127.0.0.1:{_free_port()},{there.hostname}:{there.port}/{postgres18.name}"
    else:
        url += "?service=shop"
    connector.environment["TEST_DATABASE_URL"] = url
    connector.environment |= {"PGTZ": "Asia/Tokyo", "PGDATESTYLE": "German", "PGCLIENTENCODING": "LATIN1"}  # of a shell
    checked = connector.here("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    connector.catch_up()
    postgres18.execute("INSERT INTO t VALUES (3, 'c')", "DELETE FROM t WHERE id = 1")
    connector.catch_up()
    same(connector, postgres18, "public.t")
    status = json.loads(connector.here("status", "FILE", "--json").stdout)
    assert status["slot"]["name"] == f"cdc_{prefix}"


@pytest.mark.full  # test_a_server_that_is_not_up_yet_is_waited_for_if_asked_to
def test_a_first_start_waits_for_a_database_that_is_not_up(kafka: str, prefix: str, tmp_path: Path) -> None:
    """With `--wait`, from the first attempt on; without it the start ends at once. Nothing is made meanwhile."""
    server = Server("late", tmp_path / "late", lambda folder: dev_postgres.prepare(folder, major=18))
    try:
        database = Database(server.start(), "postgres")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        server.stop()
        assert Settings(tmp_path / "late").port("port") == urlsplit(database.url).port
        connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], as_owner=True)
        hasty = connector.here("run", "FILE", "--until-caught-up")
        assert hasty.returncode == 1
        assert "trying again" not in hasty.stderr
        with Running(connector, "--wait", "2m", "--until-caught-up") as running:
            running.await_line("trying again in", times=2)
            server.start()
            assert running.ended() == 0, running.stderr
        same(connector, database, "public.t")
    finally:
        server.stop()
