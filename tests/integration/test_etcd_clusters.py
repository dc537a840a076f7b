"""etcd's clusters: made again, restored, frozen, with logins, with TLS, of several members. Servers of its own."""

from __future__ import annotations

import shutil
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cdc.capture.control.commands
import cdc.capture.pipeline
import connectors.etcd.duplex
import connectors.etcd.gateway
import connectors.etcd.source
import connectors.etcd.watch
from cdc.capture.control.signals import Command
from cdc.config.findings import Level
from cdc.dev.servers import etcd as server
from cdc.dev.servers.process import Launch, Server, Settings
from cdc.model.errors import CdcError, GapError, OperatorError, RetryableError
from connectors.etcd import check
from tests.conftest import FULL, unavailable
from tests.etcd_cluster import Etcd, end_of, text
from tests.integration.certificates import Authority
from tests.integration.etcd_shop import EtcdShop


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and commands come at once."""
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(cdc.capture.control.commands, "COMMANDS_S", 0.0)


_CALM = {"heartbeat-interval": "100", "election-timeout": "1000"}
"""Of members that wait for each other, on a machine that has other work."""


def started(name: str, folder: Path, prepare: Callable[[Path], Launch] = server.prepare) -> Server:
    made = Server(name, folder, prepare)
    try:
        made.start()
    except CdcError as exc:
        unavailable("etcd", str(exc))
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Server]:
    """A cluster of one member, for one test."""
    made = started("etcd", tmp_path / "etcd")
    yield made
    made.stop()


@pytest.fixture
def shop(cluster: Server) -> EtcdShop:
    """A connector that has read and followed some keys."""
    shop = EtcdShop(cluster.url, root="/")
    for name in "abcd":
        shop.etcd.put(f"orders/{name}", name.encode())
    shop.run()
    shop.etcd.put("orders/a", b"new")
    shop.run()
    return shop


def _close_the_gap(shop: EtcdShop, said: str) -> None:
    with pytest.raises(GapError, match=said) as caught:
        shop.run()
    assert "--after-gap" in (caught.value.hint or "")
    (finding,) = [f for f in check.check(shop.config, shop.state()).findings if f.level is Level.ERROR]
    assert said in finding.what
    shop.ask(Command(after_gap=True, tables=()))
    shop.run()
    assert shop.fold() == shop.there()
    shop.etcd.delete_all("orders/")
    shop.run()
    assert shop.fold() == []


@pytest.mark.parametrize("written", [pytest.param(0, marks=pytest.mark.full), 40])
def test_a_cluster_that_was_made_again_is_another(
    shop: EtcdShop, cluster: Server, tmp_path: Path, written: int
) -> None:
    """At the same address it has the same id; its revision may be lower, or higher again."""
    identity = shop.state().identity
    cluster.stop()
    shutil.rmtree(tmp_path / "etcd" / "data")
    cluster.start()
    for number in range(written):
        shop.etcd.put(f"orders/{'bcde'[number % 4]}", b"other")
    _close_the_gap(shop, "another history" if written else "cluster behind the position")
    assert shop.state().identity == identity


@pytest.mark.full
@pytest.mark.parametrize("written", [0, 40])
def test_a_cluster_that_was_restored_is_another(shop: EtcdShop, cluster: Server, tmp_path: Path, written: int) -> None:
    """What was told since is taken back; also where it has been written to since, and elsewhere."""
    data = tmp_path / "etcd" / "data"
    cluster.stop()
    shutil.copytree(data, tmp_path / "backup")
    cluster.start()
    shop.etcd.put("orders/x", b"lost")
    shop.etcd.delete("orders/b")
    shop.run()
    cluster.stop()
    shutil.rmtree(data)
    (tmp_path / "backup").rename(data)
    cluster.start()
    for _ in range(written):
        shop.etcd.put("elsewhere", b"x")
    _close_the_gap(shop, "another history" if written else "cluster behind the position")


@pytest.mark.parametrize("how", ["put", pytest.param("delete", marks=pytest.mark.full)])
def test_what_a_restored_cluster_did_before_the_position_is_not_passed_over(
    shop: EtcdShop, cluster: Server, tmp_path: Path, how: str
) -> None:
    """Other keys alone had been written since the backup; now a captured one was, at a revision that was read.

    It is found where the file names one more table just then, too.
    """
    data = tmp_path / "etcd" / "data"
    cluster.stop()
    shutil.copytree(data, tmp_path / "backup")
    cluster.start()
    for _ in range(10):
        shop.etcd.put("elsewhere", b"x")
    shop.run()
    cluster.stop()
    shutil.rmtree(data)
    (tmp_path / "backup").rename(data)
    cluster.start()
    if how == "put":
        shop.etcd.put("orders/b", b"never told")
    else:
        shop.etcd.delete("orders/b")
    for _ in range(20):
        shop.etcd.put("elsewhere", b"y")
    if how == "put":
        shop.tables = ("s.orders", "s.items")
    _close_the_gap(shop, "a key that was written behind" if how == "put" else "has 3 keys in place of 4")


def test_another_cluster_is_refused(shop: EtcdShop, tmp_path: Path) -> None:
    """By its id, which is made of its members' addresses."""
    other = started("etcd", tmp_path / "other")
    shop.login = other.url
    try:
        with pytest.raises(OperatorError, match="another source: connector c stands at a position of cluster"):
            shop.run()
    finally:
        other.stop()


def test_a_restart_in_the_middle(shop: EtcdShop, cluster: Server) -> None:
    """By SIGKILL: nothing is lost, and nothing comes twice."""
    with shop.running() as running:
        for number in range(5 if FULL else 1):
            shop.etcd.put("orders/a", b"before %d" % number)
            running.eventually(lambda: shop.fold() == shop.there())
            cluster.kill()
            cluster.start()
            shop.etcd.commit({"orders/a": b"behind %d" % number, "orders/b": None if number % 2 else b"back"})
            running.eventually(lambda: shop.fold() == shop.there())
    assert running.raised is None
    told = [event["source"]["revision"] for event in shop.events() if event["op"] != "r"]
    assert told == sorted(told)
    assert len({(event["source"]["revision"], (event["after"] or event["before"])["key"]) for event in shop.events()
                if event["op"] != "r"}) == len(told)  # fmt: skip


def test_a_frozen_server_is_waited_for(shop: EtcdShop, cluster: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections stay open and say nothing; the connector can be stopped, and goes on when it is thawed."""
    monkeypatch.setattr(connectors.etcd.watch, "SILENT_S", 0.2)
    monkeypatch.setattr(connectors.etcd.gateway, "TIMEOUT_S", 0.2)
    shop.etcd.put("orders/a", b"before")
    with shop.running() as running:
        running.eventually(lambda: shop.fold() == shop.there())
        cluster.pause()
        try:
            with pytest.raises(RetryableError, match="it does not answer"):
                check.end(shop.config, shop.state())
        finally:
            cluster.resume()
        shop.etcd.put("orders/a", b"behind")
        running.eventually(lambda: shop.fold() == shop.there())
        cluster.pause()
    cluster.resume()
    assert running.raised is None


def _log_in(etcd: Etcd) -> str:
    return str(etcd.call("auth/authenticate", {"name": "root", "password": "r"})["token"])


def _with_logins(etcd: Etcd) -> None:
    """Root, and a user who may read nothing but the orders."""
    for name, password in (("root", "r"), ("capture", "p@ss")):
        etcd.call("auth/user/add", {"name": name, "password": password})
    etcd.call("auth/role/add", {"name": "reader"})
    prefix = etcd.key("orders/")
    permission = {"permType": "READ", "key": text(prefix), "range_end": text(end_of(prefix))}
    etcd.call("auth/role/grant", {"name": "reader", "perm": permission})
    etcd.call("auth/user/grant", {"user": "root", "role": "root"})
    etcd.call("auth/user/grant", {"user": "capture", "role": "reader"})
    etcd.call("auth/enable", {})


def test_with_logins(shop: EtcdShop, cluster: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user needs to read the prefixes alone; a token that has expired is had again; what is refused is told."""
    plain, where = cluster.url, cluster.url.removeprefix("etcd://")
    _with_logins(shop.etcd)
    root = Etcd(plain, root="/")
    token = _log_in(root)

    def put(value: bytes) -> None:
        root.call("kv/put", {"key": text(b"/orders/a"), "value": text(value)}, token=token)

    with pytest.raises(OperatorError, match="user name is empty") as caught:
        shop.run()
    assert "etcd://user" in (caught.value.hint or "")
    shop.login = f"etcd://capture:wrong@{where}"
    with pytest.raises(OperatorError, match="authentication failed") as caught:
        shop.run()
    assert "wrong" not in str(caught.value)
    shop.login = f"etcd://capture:p%40ss@{where}"
    put(b"with a login")
    shop.run()
    assert shop.fold()[0]["value"] == "with a login"
    with shop.running() as running:
        put(b"once more")
        running.eventually(lambda: shop.fold()[0]["value"] == "once more")
        cluster.kill()  # which forgets its tokens
        cluster.start()
        token = _log_in(root)
        put(b"with another token")
        running.eventually(lambda: shop.fold()[0]["value"] == "with another token")
        root.call("auth/role/add", {"name": "other"}, token=token)  # tokens are of an older revision of rights now
        token = _log_in(root)
        put(b"after rights were changed")
        running.eventually(lambda: shop.fold()[0]["value"] == "after rights were changed")
    assert running.raised is None
    shop.tables = ("s.orders", "s.secret")
    with pytest.raises(OperatorError, match="permission denied") as caught:
        shop.run()
    assert "grant-permission" in (caught.value.hint or "")
    errors = [f for f in check.check(shop.config, shop.state()).findings if f.level is Level.ERROR]
    assert [f.about for f in errors] == ["table s.secret"]
    prefix = shop.etcd.key("secret/")
    of = {"key": text(prefix), "range_end": text(end_of(prefix))}
    root.call("auth/role/grant", {"name": "reader", "perm": {"permType": "READ", **of}}, token=_log_in(root))
    monkeypatch.setattr(connectors.etcd.source, "_ALIVE_S", 0.1)
    with shop.running() as running:
        running.eventually(lambda: len(shop.state().tables) == 2 and not shop.state().reading)
        root.call("auth/role/revoke", {"role": "reader", **of}, token=_log_in(root))
        running.eventually(lambda: running.raised is not None)
    assert "permission denied" in str(running.raised), "of the second one, though it is the first that is asked for"


def test_logins_that_are_asked_for_from_now_on(shop: EtcdShop, cluster: Server) -> None:
    """A connector that knows its login goes on; it ended, with the hint to give it one."""
    shop.etcd.put("orders/a", b"before")
    shop.login = f"etcd://capture:p%40ss@{cluster.url.removeprefix('etcd://')}"
    shop.run()
    with shop.running() as running:
        shop.etcd.put("orders/a", b"now")
        running.eventually(lambda: shop.fold()[0]["value"] == "now")
        _with_logins(shop.etcd)
        root = Etcd(cluster.url, root="/")
        root.call("kv/put", {"key": text(b"/orders/a"), "value": text(b"since")}, token=_log_in(root))
        running.eventually(lambda: shop.fold()[0]["value"] == "since")
    assert running.raised is None


def test_with_tls(tmp_path: Path) -> None:
    """The server's certificate is checked by its name; a client's is shown where one is asked for."""
    authority = Authority(tmp_path / "tls")
    pem = authority.certificate("localhost")
    files = {
        "cert-file": str(pem),
        "key-file": str(pem),
        "trusted-ca-file": str(authority.ca),
        "client-cert-auth": "true",
    }
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(pem)

    def prepare(folder: Path) -> Launch:
        port = Settings(folder).port("port")
        here = f"https://localhost:{port}"
        made = server.prepare(folder, options={**files, "listen-client-urls": f"https://127.0.0.1:{port}",
                                               "advertise-client-urls": here})  # fmt: skip

        def ready(_pid: int) -> bool:
            with suppress(OSError), urllib.request.urlopen(f"{here}/health", context=context, timeout=5) as answer:
                return bool(answer.status == 200)
            return False

        return replace(made, ready=ready, url=f"etcd://localhost:{port}")

    made = started("etcd", tmp_path / "etcd", prepare)
    try:
        shop = EtcdShop(made.url, root="/")
        shop.login = f"{made.url}?ssl_ca={authority.ca}&ssl_cert={pem}"
        shop.run()
        assert shop.state().offset["revision"] == 1
        shop.run()
        for url, said in (
            (f"{made.url}?ssl_mode=verify_identity", "certificate"),
            (f"{made.url.replace('localhost', '127.0.0.1')}?ssl_ca={authority.ca}&ssl_cert={pem}", "127.0.0.1"),
            (f"{made.url}?ssl_ca={tmp_path}/none.pem", "ssl_ca, ssl_cert and ssl_key cannot be used"),
        ):
            shop.login = url
            with pytest.raises(OperatorError, match=said):
                shop.run()
        shop.login = made.url
        with pytest.raises(RetryableError, match="it closes the connection") as caught:
            shop.run()
        assert "ssl_mode=verify_identity" in (caught.value.hint or "")
    finally:
        made.stop()


@pytest.mark.full
def test_members_that_fail_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three members, of which the one that is followed is killed, frozen, and started again."""
    monkeypatch.setattr(connectors.etcd.watch, "SILENT_S", 1.0)
    monkeypatch.setattr(connectors.etcd.gateway, "TIMEOUT_S", 1.0)
    folders = [tmp_path / f"m{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
    peers = ",".join(f"{f.name}=http://127.0.0.1:{Settings(f).port('peer_port')}" for f in folders)

    def prepare(folder: Path) -> Launch:
        return server.prepare(folder, options={"name": folder.name, "initial-cluster": peers, **_CALM})

    members = [Server(folder.name, folder, prepare) for folder in folders]
    starting = [threading.Thread(target=member.start) for member in members]
    try:
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        hosts = [member.url.removeprefix("etcd://") for member in members]
        shop = EtcdShop(f"etcd://{','.join(hosts)}", root="/")
        away: dict[str, Any] = {}

        def put(value: bytes) -> None:
            """By a member that is there."""
            host = next(host for host in hosts if host != away.get("host"))
            Etcd(f"etcd://{host}", root="/").put("orders/a", value)

        def followed(value: str) -> bool:
            return [row["value"] for row in shop.fold()] == [value]

        put(b"0")
        shop.run()
        with shop.running() as running:
            for number, member in enumerate([*members, *members], start=1):
                away["host"] = member.url.removeprefix("etcd://")
                stop, again = (
                    (member.kill, partial(member.start)) if number % 2 else (member.pause, partial(member.resume))
                )
                stop()
                for _ in range(600):
                    with suppress(OSError):  # there is no leader yet
                        put(b"%d" % number)
                        break
                running.eventually(lambda value=str(number): followed(value))
                again()
        assert running.raised is None
        told = [event["source"]["revision"] for event in shop.events() if event["op"] != "r"]
        assert told == sorted(set(told))
    finally:
        for member in members:
            member.resume()
            member.stop()
