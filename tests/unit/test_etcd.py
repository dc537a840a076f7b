"""etcd without a server: addresses, messages, chunks, the order of what watchers send, what is refused."""

from __future__ import annotations

import json
import random
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import connectors.etcd.backlog
import connectors.etcd.duplex
import connectors.etcd.watch
from cdc.config.source_config import KeyedTable, KeyPrefix, SourceConfig
from cdc.model.change import UNCHANGED, Op
from cdc.model.errors import CdcError, ConfigError, GapError, LoginError, OperatorError, ProtocolError, RetryableError
from connectors.etcd.address import Endpoint, address, weakness
from connectors.etcd.backlog import Backlog
from connectors.etcd.duplex import Chunks, Duplex
from connectors.etcd.gateway import CompactedError, FutureError, Gateway, refusal, refuse_version
from connectors.etcd.messages import Event, KeyValue, end_of, first_of
from connectors.etcd.place import Place
from connectors.etcd.tables import captured, change
from connectors.etcd.watch import Watch


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_a_range_has_exactly_the_keys_of_its_prefix(prefix: bytes, key: bytes) -> None:
    """A key is never empty; a range's end of one zero byte is behind all keys."""
    if key:
        end = end_of(prefix)
        assert (first_of(prefix) <= key and (end == b"\0" or key < end)) == key.startswith(prefix)


ADDRESSES = {
    "etcd://h": ("h:2379", "", "verify_identity"),
    "etcd://h:1,i:2/": ("h:1, i:2", "", "verify_identity"),
    "etcd://u:p%40s%2Cs@h": ("h:2379", "u", "verify_identity"),
    "etcd://localhost,127.0.0.1:1,[::1]:2": ("localhost:2379, 127.0.0.1:1, [::1]:2", "", "disabled"),
    "etcd://localhost?ssl_ca=/x": ("localhost:2379", "", "verify_identity"),
    "etcd://h?ssl_mode=verify-ca": ("h:2379", "", "verify_ca"),
    "etcd://h?ssl_mode=disabled": ("h:2379", "", "disabled"),
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_address(url: str) -> None:
    """TLS where the network is left, unless it is said otherwise."""
    found = address(url)
    assert (found.named, found.user, found.ssl_mode) == ADDRESSES[url]
    assert found.password in ("", "p@s,s")
    assert "p@s" not in repr(found)
    local = found.named.startswith("localhost")
    assert (weakness(found) is None) == (local or found.ssl_mode == "verify_identity")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://h:2379", "not the URL of an etcd cluster"), ("etcd://", "cannot be parsed"),
        ("etcd://h:0", "cannot be parsed"), ("etcd://::1:2379", "cannot be parsed"),
        ("etcd://h:x", "cannot be parsed"), ("etcd://u:p@ss@h", "cannot be parsed"),
        ("etcd://u:p/s@h/x", "cannot be parsed"), ("etcd://:p@h", "cannot be parsed"),
        ("etcd://h,,i", "cannot be parsed"), ("etcd://h?tls=1", "options that are not known: tls"),
        ("etcd://h?ssl_mode=maybe", "ssl_mode=maybe is not known"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        address(url)
    assert "p@ss" not in str(caught.value)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ((KeyedTable(table="s.a", prefix="/a"), KeyedTable(table="s.b", prefix="/ab")), "overlap"),
        ((KeyedTable(table="s.a", prefix=""), KeyedTable(table="s.b", prefix="/b")), "overlap"),
        ((KeyedTable(table="s.a", prefix="/a"), KeyedTable(table="s.b", prefix="/a")), "overlap"),
        ((KeyedTable(table="s.a", prefix="/a"), KeyedTable(table="s.a", prefix="/b")), "given twice"),
        (("s.a",), "has no prefix"), (("s.*",), "has no prefix"),
        ((KeyedTable(table="s.a", prefix="/a"), "!s.b"), "has no prefix"),
        ((KeyedTable(table="s.a", key=("key",)),), "has no prefix"),
    ],
)  # fmt: skip
def test_tables_that_are_no_prefixes_are_refused(items: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        SourceConfig(type="etcd", url="etcd://h", tables=items)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("version", "ok"),
    [("3.5.16", True), ("3.5.13", True), ("3.5.12", False), ("3.4.31", True), ("3.4.30", False), ("3.3.99", False),
     ("3.6.0-rc.1", True), ("4.0.0", True), ("", False), ("2.3.8", False)],
)  # fmt: skip
def test_members_that_name_their_progress_too_early_are_refused(version: str, ok: bool) -> None:
    assert (not list(refuse_version(version))) is ok


REFUSALS: list[tuple[int, str, type[CdcError], str]] = [
    (11, "etcdserver: mvcc: required revision has been compacted", CompactedError, ""),
    (11, "etcdserver: mvcc: required revision is a future revision", FutureError, ""),
    (7, "etcdserver: permission denied", OperatorError, "grant-permission u read PREFIX"),
    (16, "etcdserver: invalid auth token", OperatorError, "etcd://user"),
    (3, "etcdserver: authentication failed, invalid user ID or password", LoginError, "etcdctl user get"),
    (14, "etcdserver: request timed out", RetryableError, "nothing is lost"),
    (9, "etcdserver: corrupt cluster", OperatorError, "cdc check"),
]


@pytest.mark.parametrize(("code", "said", "class_", "hint"), REFUSALS)
def test_a_refusal_says_who_acts(code: int, said: str, class_: type[CdcError], hint: str) -> None:
    error = refusal({"code": code, "message": said}, "reading keys", Endpoint("h", 1), "u")
    assert type(error) is class_
    assert error.message == f"reading keys: etcd at h:1: {said}"
    assert hint in (error.hint or "")


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda line: b"\n" not in line), max_size=6), st.randoms())
def test_lines_come_out_however_a_body_is_cut(lines: list[bytes], at: random.Random) -> None:
    """Chunks do not end where lines do, and what is received not where chunks do."""
    body, whole = b"".join(line + b"\n" for line in lines), b""
    while body:
        size = at.randint(1, len(body))
        whole, body = whole + b"%x\r\n%b\r\n" % (size, body[:size]), body[size:]
    whole += b"0\r\n\r\n"
    chunks, found = Chunks(), []
    while whole:
        size = at.randint(1, len(whole))
        found += chunks.feed(whole[:size])
        whole = whole[size:]
    assert found == lines


def test_foreign_bytes_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        Chunks().feed(b"no size\r\n")
    with pytest.raises(ProtocolError):
        KeyValue.of({"key": "x"})
    with pytest.raises(ProtocolError):
        KeyValue.of({"version": "x"})


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), max_size=40), st.booleans(), st.randoms())
def test_a_backlog_gives_each_revision_once_and_in_order(
    events: list[tuple[int, int]], to_file: bool, at: random.Random
) -> None:
    """Whatever watcher is ahead; what one watcher has sent of a revision stays in its order."""
    connectors.etcd.backlog.IN_MEMORY, before = 0 if to_file else 16 << 20, connectors.etcd.backlog.IN_MEMORY
    try:
        backlog, given_ = Backlog(), []
        queues = [sorted(revision for revision, watcher in events if watcher == of) for of in range(3)]
        confirmed = 0
        while any(queues):
            watcher = at.choice([of for of, queue in enumerate(queues) if queue])
            backlog.add(queues[watcher].pop(0), watcher, {"number": backlog.count})
            reached = min((queue[0] - 1 for queue in queues if queue), default=6)
            if at.random() < 0.3 and reached > confirmed:
                confirmed = reached
                given_ += _given(backlog, confirmed)
        given_ += _given(backlog, 6)
        assert backlog.is_empty
    finally:
        connectors.etcd.backlog.IN_MEMORY = before
    assert [revision for revision, _ in given_] == sorted({revision for revision, _ in events})
    told = [(revision, watcher) for revision, group in given_ for watcher, _ in group]
    assert sorted(told) == sorted(events)
    for _, group in given_:
        for of in range(3):
            numbers = [number for watcher, number in group if watcher == of]
            assert numbers == sorted(numbers)


def _given(backlog: Backlog, upto: int) -> list[tuple[int, list[tuple[int, int]]]]:
    found = []
    for whole in backlog.upto(upto):
        events = [(watcher, event["number"]) for watcher, event in whole.events]
        assert len(events) == whole.rows
        found.append((whole.revision, events))
    return found


def _b64(value: bytes) -> str:
    return b64encode(value).decode()


def test_changes_of_events() -> None:
    """A key that is made is a create; where etcd has compacted what was before, a delete has the key alone."""
    (one,) = captured({"s.t": KeyPrefix(prefix="/t/", text=True)})
    new = {"key": _b64(b"/t/a"), "value": _b64(b"x"), "version": "1", "create_revision": "7", "mod_revision": "7"}
    old = {**new, "version": "3", "mod_revision": "9", "lease": "12"}
    made = change(Event.of({"kv": new}), one.table, 7)
    assert (made.op, made.before, made.after) == (Op.CREATE, None, (b"/t/a", b"x", b"1", b"7", b"7", None))
    put = change(Event.of({"kv": old, "prev_kv": new}), one.table, 9)
    assert (put.op, put.before, put.after) == (Op.UPDATE, made.after, (b"/t/a", b"x", b"3", b"7", b"9", b"12"))
    gone = {"type": "DELETE", "kv": {"key": new["key"], "mod_revision": "10"}}
    assert change(Event.of({**gone, "prev_kv": old}), one.table, 10).before == put.after
    assert change(Event.of(gone), one.table, 10).before == (b"/t/a", *(UNCHANGED,) * 5)


@given(st.builds(Place, st.integers(0), st.integers(0), st.none() | st.binary(min_size=1), st.text("ab 1"),
                 st.integers(0), st.integers(0), st.text("0f")))  # fmt: skip
def test_a_place_is_read_as_it_was_kept(place: Place) -> None:
    kept = json.loads(json.dumps(place.offset()))
    assert Place.of(kept) == (place if place.key is not None else Place(**{**_fields(place), "mark": "absent"}))


def _fields(place: Place) -> dict[str, Any]:
    return {name: getattr(place, name) for name in Place.__dataclass_fields__}


class Script:
    """A server's side of a watch: what it answers, as `Duplex` would have read it."""

    endpoint = Endpoint("h", 1)

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def receive(self, _wait_s: float) -> list[dict[str, Any]]:
        return [self.answers.pop(0)] if self.answers else []

    def close(self) -> None:
        pass


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Watch, Backlog, Script]]:
    def watching(*answers: dict[str, Any]) -> tuple[Watch, Backlog, Script]:
        script, backlog = Script(*answers), Backlog()
        monkeypatch.setattr(connectors.etcd.watch, "Duplex", lambda *_: script)
        tables = captured({name: KeyPrefix(prefix=f"/{name}/", text=True) for name in ("s.a", "s.b")})
        return Watch(Gateway(address("etcd://localhost")), tables, 4, backlog), backlog, script

    return watching


def _sent(watcher: int, *revisions: int, **more: Any) -> dict[str, Any]:
    events = [{"kv": {"key": _b64(b"k"), "mod_revision": str(revision)}} for revision in revisions]
    return {"header": {"revision": "99"}, "watch_id": str(watcher), "events": events, **more}


def test_what_was_sent_is_confirmed_by_all_watchers_or_by_the_server(
    watching: Callable[..., tuple[Watch, Backlog, Script]],
) -> None:
    """A header's revision says nothing; fragments are not the whole; what comes twice is there once."""
    watch, backlog, script = watching(
        {"watch_id": "1", "created": True, "header": {"revision": "99"}}, _sent(1, 5, 6), _sent(2, 7, fragment=True),
        _sent(1, 6, 9), _sent(2, 7), {"watch_id": "-1", "header": {"revision": "8"}}, _sent(2, 20),
    )  # fmt: skip
    assert [each["create_request"]["start_revision"] for each in script.sent] == [5, 5]
    confirmed = []
    while watch.read(0):
        confirmed.append(watch.confirmed)
    assert confirmed == [4, 4, 4, 4, 7, 8, 9]
    assert [(whole.revision, whole.rows) for whole in backlog.upto(99)] == [(5, 1), (6, 1), (7, 2), (9, 1), (20, 1)]


def test_what_comes_behind_the_server_s_word_is_a_gap(
    watching: Callable[..., tuple[Watch, Backlog, Script]],
) -> None:
    """The position may have moved past it: it is never passed over."""
    watch, _, _ = watching({"watch_id": "-1", "header": {"revision": "8"}}, _sent(1, 8))
    assert watch.read(0)
    with pytest.raises(GapError, match=r"history out of order: .* revision 8 after"):
        watch.read(0)


@pytest.mark.parametrize(
    ("answer", "class_", "said"),
    [
        ({"compact_revision": "7"}, GapError, "history compacted: the cluster has compacted revision 4"),
        ({"cancel_reason": "rpc error: code = PermissionDenied desc = etcdserver: permission denied"}, OperatorError,
         "has ended the watch: etcdserver: permission denied"),
        ({"cancel_reason": "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"}, RetryableError,
         "invalid auth token"),
        ({}, RetryableError, "it gave no reason"),
    ],
)  # fmt: skip
def test_a_watch_that_is_cancelled_says_why(
    watching: Callable[..., tuple[Watch, Backlog, Script]], answer: dict[str, Any], class_: type[CdcError], said: str
) -> None:
    watch, _, _ = watching({"watch_id": "1", "canceled": True, **answer})
    with pytest.raises(class_, match=said) as caught:
        watch.read(0)
    assert caught.value.hint


def test_a_member_that_says_nothing_or_stays_behind_is_left(
    watching: Callable[..., tuple[Watch, Backlog, Script]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is frozen, or cut off from the others: a watch would wait for ever."""
    monkeypatch.setattr(connectors.etcd.watch, "SILENT_S", -1.0)
    watch, _, _ = watching()
    with pytest.raises(RetryableError, match="does not answer any more"):
        watch.read(0)
    watch.require_progress(4)
    with pytest.raises(RetryableError, match="stays at revision 4, and the cluster is at 5"):
        watch.require_progress(5)


@pytest.fixture
def scripted() -> Iterator[Callable[[bytes], Gateway]]:
    """A server that says something to each who connects, and then nothing more."""
    listening = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve(answer: bytes) -> Gateway:
        def run() -> None:
            connection, _ = listening.accept()
            kept.append(connection)
            connection.sendall(answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        kept_threads.append(thread)
        return Gateway(address(f"etcd://127.0.0.1:{listening.getsockname()[1]}"))

    kept_threads: list[threading.Thread] = []
    yield serve
    for thread in kept_threads:
        thread.join()
    for each in (*kept, listening):
        each.close()


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "class_", "said"),
    [
        (b"", OperatorError, "does not begin to answer"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", RetryableError, "it answers 404"),
        (b'HTTP/1.1 400 Bad\r\n\r\n{"code":7,"message":"permission denied"}', OperatorError, "permission denied"),
        (HEAD + b'31\r\n{"error":{"grpc_code":14,"message":"no leader"}}\n\r\n', RetryableError, "no leader"),
        (HEAD + b"3\r\nxx\n\r\n", ProtocolError, "no JSON"),
    ],
)  # fmt: skip
def test_a_watch_that_is_refused_says_why(
    scripted: Callable[[bytes], Gateway],
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    class_: type[CdcError],
    said: str,
) -> None:
    """A proxy that keeps requests back, another server, a reason before and in the stream."""
    monkeypatch.setattr(connectors.etcd.duplex, "TIMEOUT_S", 0.2)
    gateway = scripted(answer)
    stream = Duplex(gateway, "/v3/watch")
    with pytest.raises(class_, match=said):
        _all(stream)
    stream.close()
    gateway.close()


def _all(stream: Duplex) -> None:
    for _ in range(100):
        stream.receive(0.05)
