"""TLS of MySQL and MariaDB, by the servers' own: with it everything works, and nobody else is believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.canary import CANARY
from tests.integration.certificates import Authority
from tests.integration.connector import Connector
from tests.integration.mysql_servers import OwnServer, own_server
from tests.integration.mysql_work import connector_of, same
from tests.integration.running import Running, eventually

COMMANDS = (("run", "FILE", "--until-caught-up"), ("check", "FILE"))


@dataclass(frozen=True)
class Secured:
    """A server whose certificate is for localhost, by `ours`; `theirs` has signed nothing here."""

    server: OwnServer
    ours: Authority
    theirs: Authority

    def reached(self, connector: Connector, host: str, **options: object) -> None:
        """The connector's url with this host and these options."""
        plain = connector.environment["TEST_DATABASE_URL"].partition("?")[0]
        login, _, place = plain.rpartition("@")
        asked = "&".join(f"{name}={value}" for name, value in {"ssl_mode": "verify_identity", **options}.items())
        connector.environment["TEST_DATABASE_URL"] = f"{login}@{host}:{place.partition(':')[2]}?{asked}"

    @staticmethod
    def default(connector: Connector) -> None:
        """The connector's url without options: on this machine TLS where the server has it."""
        connector.environment["TEST_DATABASE_URL"] = connector.environment["TEST_DATABASE_URL"].partition("?")[0]


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp(request.param)
    ours, theirs = Authority(folder / "ours"), Authority(folder / "theirs")
    both = str(ours.certificate("localhost"))
    options = {"ssl_ca": str(ours.ca), "ssl_cert": both, "ssl_key": both}
    with own_server(request.param, folder / "server", **options) as server:
        server.database.execute("CREATE TABLE t (id INT PRIMARY KEY, v MEDIUMTEXT)", "INSERT INTO t VALUES (1, 'x')")
        yield Secured(server, ours, theirs)


def test_the_certificate_that_matches(secured: Secured, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Catalog, snapshot and log by TLS, which the server asks for; also events longer than a record of it."""
    database = secured.server.database
    connector = connector_of(tmp_path, prefix, database, kafka, "t")
    database.execute("ALTER USER cdc_capture_dev@'%' REQUIRE SSL")
    secured.reached(connector, "localhost", ssl_ca=secured.ours.ca)
    with Running(connector) as running:
        running.await_line("following the log")
        database.execute("INSERT INTO t VALUES (2, REPEAT('y', 500000))", "UPDATE t SET v = 'z' WHERE id = 1")
        eventually(lambda: len(connector.records("dev.t")) == 3, "what was written")
    same(connector, database, "t")
    for command in (("check", "FILE"), ("status", "FILE")):
        done = connector.here(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    secured.default(connector)  # which the user must be encrypted for, and is
    connector.catch_up()


def test_a_server_that_is_not_believed(secured: Secured, kafka: str, prefix: str, tmp_path: Path) -> None:
    """By no command; what is wrong is said with what to do about it, and the password is not."""
    connector = connector_of(tmp_path, prefix, secured.server.database, kafka, "t")
    ours, theirs, missing = secured.ours.ca, secured.theirs.ca, tmp_path / "missing.pem"
    for host, options, reason, hint in (
        ("127.0.0.1", {"ssl_ca": ours}, "not valid for '127.0.0.1'", "the name that the server's certificate is for"),
        ("localhost", {"ssl_ca": theirs}, "certificate", "?ssl_ca="),
        ("localhost", {}, "certificate", "?ssl_ca="),
        ("localhost", {"ssl_ca": missing}, str(missing), "PEM"),
        ("localhost", {"ssl_ca": connector.file}, str(connector.file), "PEM"),
    ):
        secured.reached(connector, host, **options)
        for command in COMMANDS:
            done = connector.here(*command)
            said = done.stdout + done.stderr
            assert done.returncode == 1, said
            assert reason in said
            assert hint in said
            assert CANARY not in said
            assert "Traceback" not in said
            assert "trying again" not in said
    secured.reached(connector, "127.0.0.1", ssl_ca=ours, ssl_mode="verify_ca")
    connector.catch_up()


@pytest.mark.full  # test_a_server_that_is_not_believed
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_server_without_tls(kind: str, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Nothing is sent to it that was to be encrypted."""
    off = {"tls_version": ""} if kind == "mysql" else {"ssl": "OFF"}
    with own_server(kind, tmp_path / "server", **off) as server:
        server.database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        connector = connector_of(tmp_path, prefix, server.database, kafka, "t")
        Secured.default(connector)
        connector.catch_up()
        connector.environment["TEST_DATABASE_URL"] += "?ssl_mode=required"
        for command in COMMANDS:
            done = connector.here(*command)
            said = done.stdout + done.stderr
            assert done.returncode == 1, said
            assert "no trusted TLS connection" in said
            assert "switch TLS on at the server" in said
            assert CANARY not in said
