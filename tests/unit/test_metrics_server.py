"""The address of metrics and health: what it answers, to whom, and that nobody who asks can hurt the rest."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import cdc.telemetry.listening
from cdc.config.config import ConnectorConfig, load_connector
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.machine.temporary_files import TemporaryDatabase
from cdc.model.errors import ConfigError, OperatorError, RetryableError
from cdc.model.meter import Commit, RunState
from cdc.model.state import Phase, State
from cdc.telemetry import connector_meter, health, metrics
from cdc.telemetry.connector_meter import ConnectorMeter
from cdc.telemetry.figures import Tables
from cdc.telemetry.listening import Answering
from cdc.telemetry.server import MetricsServer

CONFIG = ConnectorConfig(
    name="shop",
    source=SourceConfig(type="postgres", url="postgresql://u:s3cret@h/d", tables=("public.*",)),
    sink=KafkaConfig(bootstrap_servers="k:1", topic_prefix="shop"),
)
STATE = State(
    connector="shop", identity={}, phase=Phase.STREAM, epoch=1, offset={"lsn": "0/1"}, commit=1, tables=("public.t",)
)


def committed(meter: ConnectorMeter, **more: Any) -> None:
    given: dict[str, Any] = {
        "state": STATE, "events": {("public.t", "c"): 3}, "transactions": [], "records": 4, "size_bytes": 100,
        "took_s": 0.02, "epochs": 1,
    }  # fmt: skip
    meter.committed(Commit(**{**given, **more}))


@pytest.fixture
def meter() -> ConnectorMeter:
    return ConnectorMeter(CONFIG)


@pytest.fixture
def server(meter: ConnectorMeter) -> Iterator[MetricsServer]:
    with MetricsServer(("127.0.0.1", 0), meter.figures.registry, meter) as made:
        yield made


def ask(
    server: MetricsServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def samples(server: MetricsServer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What is scraped, by name and labels but `connector`, which every one has."""
    found = {}
    for family in parse_text(ask(server, "/metrics")[1]):
        for sample in family.samples:
            assert sample.labels["connector"] == "shop", sample
            rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "connector"))
            found[sample.name, rest] = sample.value
    return found


def test_both_formats_hold_every_metric(server: MetricsServer, meter: ConnectorMeter) -> None:
    """By `Accept`; a version that is none gets the text."""
    committed(meter, transactions=[time.time_ns() // 10**6])
    status, text, headers = ask(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    told = {family.name for family in parse_text(text)}
    expected = {m.name.removesuffix("_total") if m.kind == "counter" else m.name for m in metrics.CONNECTOR}
    assert told == expected
    openmetrics = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    status, text, headers = ask(server, "/metrics", Accept=openmetrics)
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(text)} == expected
    assert ask(server, "/metrics", Accept="application/openmetrics-text; version=new")[0] == 200
    for accept, kind in (
        ("application/openmetrics-text;q=0", "text/plain"),
        ("text/plain, application/openmetrics-text;q=0.5", "text/plain"),
        ("Application/OpenMetrics-Text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3", "application/openm"),
        ("application/openmetrics-text;q=much", "text/plain"),
        ("*/*", "text/plain"),
        ("", "text/plain"),
    ):
        assert ask(server, "/metrics", Accept=accept)[2]["Content-Type"].startswith(kind), accept


def test_figures_are_what_was_told(server: MetricsServer, meter: ConnectorMeter) -> None:
    now_ms = time.time_ns() // 10**6
    meter.becomes(RunState.STREAMING)
    meter.opened(replace(STATE, source_ms=now_ms - 60_000), lambda: (7, 70))
    committed(meter, transactions=[now_ms - 400, now_ms - 40_000])
    committed(meter, state=replace(STATE, dead_letters=5, rereads=2), events={("public.t", "c"): 1, ("", "m"): 2})
    meter.aborted()
    meter.retries(RetryableError("row value MARY"))
    meter.fails(RetryableError("row value MARY"))
    found = samples(server)
    for name, labels, value in (
        ("cdc_source_events_total", {"table": "public.t", "op": "c"}, 4),
        ("cdc_source_events_total", {"table": "", "op": "m"}, 2),
        ("cdc_source_transactions_total", {}, 2),
        ("cdc_source_delay_seconds_count", {}, 2),
        ("cdc_source_delay_seconds_bucket", {"le": "0.25"}, 0),
        ("cdc_source_delay_seconds_bucket", {"le": "1.0"}, 1),
        ("cdc_source_delay_seconds_bucket", {"le": "60.0"}, 2),
        ("cdc_sink_commit_duration_seconds_bucket", {"le": "0.025"}, 2),
        ("cdc_sink_transactions_total", {"outcome": "committed"}, 2),
        ("cdc_sink_transactions_total", {"outcome": "failed"}, 1),
        ("cdc_sink_pending_records", {}, 7),
        ("cdc_sink_pending_bytes", {}, 70),
        ("cdc_dead_letters_total", {}, 5),
        ("cdc_rereads_total", {}, 2),
        ("cdc_connector_state", {"state": "retrying"}, 1),
        ("cdc_connector_state", {"state": "streaming"}, 0),
        ("cdc_connector_retries_total", {"kind": "RetryableError"}, 1),
        ("cdc_connector_tables", {}, 1),
    ):
        assert found[name, tuple(sorted(labels.items()))] == value, name
    assert 60 <= found["cdc_source_lag_seconds", ()] < 120
    assert "MARY" not in ask(server, "/metrics")[1]
    assert "s3cret" not in ask(server, "/metrics")[1]


def test_what_does_not_fit_into_memory_is_shown(server: MetricsServer) -> None:
    """Files without a name, of Python's and of SQLite's making; they are gone with their owner."""
    before = samples(server)["cdc_temporary_bytes", ()]
    with TemporaryFile() as file, closing(TemporaryDatabase("rows", "CREATE TABLE t (v)")) as database:
        file.write(bytes(300_000))
        file.flush()
        for _ in range(80):
            database.run("INSERT INTO t VALUES (zeroblob(100000))")
        assert samples(server)["cdc_temporary_bytes", ()] > before + 300_000 + 4_000_000
    assert samples(server)["cdc_temporary_bytes", ()] < before + 300_000, "pytest has a file of its own, which grows"


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_lag_is_by_the_clock_of_the_source(server: MetricsServer, meter: ConnectorMeter, ahead_ms: int) -> None:
    """60 s are 60 s, whatever the zones and errors of two machines' clocks."""
    meter.is_fresh(time.time_ns() // 10**6 + ahead_ms - 60_000, ahead_ms)
    committed(meter, transactions=[time.time_ns() // 10**6 + ahead_ms - 2_000])
    found = samples(server)
    assert 60 <= found["cdc_source_lag_seconds", ()] < 120
    assert found["cdc_source_delay_seconds_bucket", (("le", "1.0"),)] == 0
    assert found["cdc_source_delay_seconds_bucket", (("le", "10.0"),)] == 1


def test_a_counter_falls_for_nobody(server: MetricsServer, meter: ConnectorMeter) -> None:
    """After `cdc offsets import`, or a restore, the position counts less: an alert would see all of it as new."""
    seen = []
    for dead_letters, rereads in ((5, 2), (7, 2), (3, 0), (4, 1)):
        state = replace(STATE, dead_letters=dead_letters, rereads=rereads)
        if dead_letters == 3:
            meter.opened(state, lambda: (0, 0))
        else:
            committed(meter, state=state)
        found = samples(server)
        seen.append((found["cdc_dead_letters_total", ()], found["cdc_rereads_total", ()]))
    assert seen == [(5, 2), (7, 2), (7, 2), (8, 3)]


def test_binlog_grows_old_while_tables_are_read(server: MetricsServer, meter: ConnectorMeter) -> None:
    """The position stays where the snapshot began; all of the retention was shown as what is left."""
    begun_ms = time.time_ns() // 10**6 - 1_000_000
    meter.opened(replace(STATE, phase=Phase.SNAPSHOT, source_ms=begun_ms), lambda: (0, 0))
    meter.looked({"lag_bytes": None, "binlog": {"kept_for_seconds": 3600.0}})
    found = samples(server)
    assert 2590 < found["cdc_binlog_headroom_seconds", ()] <= 2600
    assert found["cdc_binlog_retention_seconds", ()] == 3600


def test_what_a_server_says_is_shown_and_goes_with_it(server: MetricsServer, meter: ConnectorMeter) -> None:
    meter.opened(replace(STATE, source_ms=time.time_ns() // 10**6 - 100_000), lambda: (0, 0))
    slot = {"active": True, "wal_status": "extended", "retained_wal_bytes": 5, "safe_wal_size_bytes": None}
    meter.looked({"lag_bytes": 9, "standby": 1, "slot": slot})
    found = samples(server)
    assert found["cdc_slot_active", ()] == 1
    assert found["cdc_slot_state", (("state", "extended"),)] == 1
    assert found["cdc_slot_state", (("state", "lost"),)] == 0
    assert ("cdc_slot_safe_bytes", ()) not in found
    assert found["cdc_source_lag_bytes", ()] == 9
    assert found["cdc_source_reachable", ()] == 1
    meter.looked(None)
    assert samples(server)["cdc_source_reachable", ()] == 0
    meter.looked({"lag_bytes": None, "binlog": {"kept_for_seconds": 3600.0}})
    found = samples(server)
    assert ("cdc_slot_active", ()) not in found
    assert ("cdc_source_lag_bytes", ()) not in found
    assert 3490 < found["cdc_binlog_headroom_seconds", ()] <= 3500


def test_what_a_server_has_said_long_ago_is_not_known(
    server: MetricsServer, meter: ConnectorMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot was active for as long as its server was away; one that was dropped had its state for ever."""
    meter.opened(replace(STATE, source_ms=time.time_ns() // 10**6 - 100_000), lambda: (0, 0))
    slot = {"active": True, "wal_status": "reserved", "retained_wal_bytes": 5, "safe_wal_size_bytes": 7}
    assert ("cdc_source_reachable", ()) not in samples(server)
    meter.looked({"lag_bytes": 9, "standby": 1, "slot": slot, "binlog": {"kept_for_seconds": 3600.0}})
    meter.looked(None)
    assert samples(server)["cdc_slot_active", ()] == 1, "one look is no news"
    monkeypatch.setattr(connector_meter, "KNOWN_S", -1.0)
    found = samples(server)
    said = {name for name, _ in found if name.startswith(("cdc_slot_", "cdc_source_lag_b", "cdc_source_standby"))}
    assert (said, found["cdc_source_reachable", ()]) == (set(), 0)
    assert found["cdc_binlog_headroom_seconds", ()] <= 3500, "it grows old all the same"
    monkeypatch.undo()
    meter.looked({"lag_bytes": 9, "slot": None})
    assert not {name for name, _ in samples(server) if name.startswith("cdc_slot_")}


def test_a_look_that_is_never_answered_is_no_answer(
    server: MetricsServer, meter: ConnectorMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is frozen sends nothing, not even an error."""
    meter.looked({"lag_bytes": 9})
    assert samples(server)["cdc_source_reachable", ()] == 1
    monkeypatch.setattr(connector_meter, "KNOWN_S", -1.0)
    assert samples(server)["cdc_source_reachable", ()] == 0


def test_a_snapshot_is_shown_by_table(server: MetricsServer, meter: ConnectorMeter) -> None:
    tables = {"public.a": {"rows": 7, "done": False, "estimate": 20}, "public.b": {"rows": 3, "done": True}}
    state = replace(STATE, phase=Phase.SNAPSHOT, unread=("public.a", "public.b"), snapshot={"tables": tables})
    meter.opened(state, lambda: (0, 0))
    found = samples(server)
    assert found["cdc_snapshot_rows", (("table", "public.a"),)] == 7
    assert found["cdc_snapshot_estimated_rows", (("table", "public.a"),)] == 20
    assert found["cdc_snapshot_tables", (("state", "done"),)] == 1
    assert ("cdc_source_lag_seconds", ()) not in found, "before all tables are read, there is none"


def test_tables_beyond_a_bound_are_one(server: MetricsServer, meter: ConnectorMeter) -> None:
    committed(meter, events={(f"public.t{n}", "c"): 1 for n in range(metrics.MOST_TABLES + 50)})
    found = samples(server)
    shown = {
        dict(labels)["table"]: value for (name, labels), value in found.items() if name == "cdc_source_events_total"
    }
    assert len(shown) == metrics.MOST_TABLES + 1
    assert shown["other"] == 50
    assert Tables(most=1).label("a") == "a"


def test_any_name_of_a_table_is_a_label(server: MetricsServer, meter: ConnectorMeter) -> None:
    """Quotes, lines, backslashes, and text that is not UTF-8: one name spoils no scrape."""
    names = ['public."a"', "public.a\nb", "public.a\\n", "public.ünï☂", 'public.{x="y"} 1', "public. "]
    committed(meter, events={**{(name, "c"): 1 for name in names}, ("public.\udcff", "c"): 1})
    shown = {dict(at)["table"] for (name, at), _ in samples(server).items() if name == "cdc_source_events_total"}
    assert shown == {*names, "public.?"}
    assert ask(server, "/metrics", Accept="application/openmetrics-text")[0] == 200


def test_only_looking_is_allowed(server: MetricsServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"):
        status, _, headers = ask(server, "/metrics", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method
    status, text, headers = ask(server, "/metrics", "HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 100
    assert ask(server, "/livez", "HEAD")[:2] == (200, "")


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/metrics/../livez", "/%2e%2e/etc/passwd"])
def test_other_paths_are_not_found(server: MetricsServer, path: str) -> None:
    status, text, _ = ask(server, path)
    assert status == 404
    assert path == "/" or path not in text.split(), "nothing of a request is repeated"
    assert ask(server, "/metrics?name[]=x")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET /" + b"a" * 70_000, b"\0" * 100,
     b"GET /metrics HTTP/9.9\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n", b"", b"GET /livez"],
    ids=["tls", "half", "long", "zeros", "version", "headers", "nothing", "cut"],
)  # fmt: skip
def test_what_is_no_request_hurts_nobody(server: MetricsServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        try:
            answer = client.recv(10_000)
        except ConnectionResetError:
            answer = b""
        if sent == b"GET /livez":  # HTTP/0.9 is that short
            assert answer == b"alive\n"
            return
        assert not answer or answer.split(b" ", 2)[1][:1] in (b"4", b"5"), answer
    assert ask(server, "/livez")[0] == 200


def test_a_bug_in_an_answer_is_told(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client was hung up on, and nothing was logged: a probe that always failed left no word of why."""

    def broken(*_: object) -> None:
        raise AttributeError("this is one")

    monkeypatch.setattr(Answering, "say_metrics", broken)
    with caplog.at_level(logging.ERROR, "cdc"):
        for _ in range(3):
            with pytest.raises(http.client.RemoteDisconnected):
                ask(server, "/metrics")
    assert caplog.messages == ["a client was not answered: AttributeError; please report this"]
    assert ask(server, "/livez")[0] in (200, 503)


def test_slow_clients_are_cut_off_and_others_answered(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are answered at a time say nothing, or read nothing: soon they are cut off."""
    monkeypatch.setattr(cdc.telemetry.listening, "WITHIN_S", 0.5)
    before = threading.active_count()  # of other tests of this process, too
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(cdc.telemetry.listening.MOST_CLIENTS)]
    for one in slow:
        one.sendall(b"GET /metr")
    deadline = time.monotonic() + 60
    while True:
        try:
            if ask(server, "/livez")[0] == 200:
                break
        except OSError:  # it is hung up on while all are busy
            assert time.monotonic() < deadline
            time.sleep(0.05)
    for one in slow:
        one.settimeout(60)
        try:
            assert one.recv(10_000)[:1] in (b"", b"H")  # it ends
        except ConnectionResetError:
            pass
        one.close()
    while threading.active_count() > before + 2:
        assert time.monotonic() < deadline + 10
        time.sleep(0.05)


def test_a_probe_is_answered_beside_slow_clients(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was hung up on for ten seconds, so that a client of no good will had the process restarted."""
    monkeypatch.setattr(cdc.telemetry.listening, "_SLOW_S", 0.0)
    most = cdc.telemetry.listening.MOST_CLIENTS
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(most)]
    for number, one in enumerate(slow):
        one.sendall(b"GET /metr" if number % 2 else b"GET /metrics HTTP/1.1\r\nX: ")
    deadline = time.monotonic() + 60
    while threading.active_count() < most:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(3):
        assert ask(server, "/livez")[:2] == (200, "alive\n")
    for one in slow:
        one.close()


def test_health(server: MetricsServer, meter: ConnectorMeter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not started, following, paused, standing still; a large transaction moves it, and a wait for locks is none."""
    assert [ask(server, path)[0] for path in ("/livez", "/readyz", "/startupz")] == [200, 503, 503]
    for state, ready, started in (
        (RunState.CREATING, 503, 200),  # it waits for open transactions, and another process would, too
        (RunState.SNAPSHOT, 200, 200),
        (RunState.STREAMING, 200, 200),
        (RunState.PAUSED, 503, 200),
        (RunState.RETRYING, 503, 200),
        (RunState.STANDBY, 503, 200),
        (RunState.FAILED, 503, 200),
    ):
        meter.becomes(state)
        status, text, _ = ask(server, "/readyz")
        assert (status, text) == (ready, f"{state.value}\n")
        assert ask(server, "/startupz")[0] == started
    monkeypatch.setattr(health, "STILL_S", 0.0)
    monkeypatch.setattr(health, "KAFKA_S", 0.0)
    meter.moves()
    time.sleep(0.02)
    status, text, _ = ask(server, "/livez")
    assert status == 503
    assert "the loop has not moved for" in text
    meter.waits()
    assert ask(server, "/livez")[0] == 200
    meter.moves()
    time.sleep(0.02)
    assert ask(server, "/livez")[0] == 503
    monkeypatch.setattr(health, "STILL_S", 1000.0)
    assert ask(server, "/livez")[0] == 200


def test_a_loop_moves_by_what_it_says_and_by_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One large transaction moves it, record by record; a wait ends with the next move."""
    now, pending = [1000.0], [0]
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])
    pulse = health.Pulse(lambda: pending[0])
    pulse.looks()
    now[0] += health.STILL_S + 1
    pulse.looks()
    assert not pulse.verdict().ok
    assert pulse.verdict(kafka=True).ok
    pending[0] += 1
    pulse.looks()
    assert pulse.verdict().ok
    pulse.waits()
    now[0] += 10_000
    pulse.looks()
    assert (pulse.verdict().ok, pulse.still_s()) == (True, 0.0)
    pulse.moves()
    now[0] += health.STILL_S
    assert pulse.verdict().ok
    now[0] += 1
    assert not pulse.verdict().ok


def test_kafka_is_waited_for_longer(
    server: MetricsServer, meter: ConnectorMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With records that are not committed yet, and while a session begins: a broker that is away ends no process."""
    monkeypatch.setattr(health, "STILL_S", 0.0)
    pending = [1]
    meter.becomes(RunState.STREAMING)
    meter.opened(STATE, lambda: (pending[0], 0))
    meter.looks()
    time.sleep(0.02)
    assert ask(server, "/livez")[0] == 200
    pending[0] = 0
    meter.looks()
    time.sleep(0.02)
    assert ask(server, "/livez")[0] == 503
    meter.becomes(RunState.STARTING)
    time.sleep(0.02)
    assert ask(server, "/livez")[0] == 200
    monkeypatch.setattr(health, "KAFKA_S", 0.0)
    time.sleep(0.02)
    assert ask(server, "/livez")[0] == 503


def test_an_address_that_cannot_be_had_is_refused(server: MetricsServer, meter: ConnectorMeter) -> None:
    def refusal(host: str, port: int) -> OperatorError:
        with pytest.raises(OperatorError) as refused:
            MetricsServer((host, port), meter.figures.registry, meter)
        return refused.value

    taken = refusal("127.0.0.1", server.port)
    assert taken.message == f"metrics.listen: 127.0.0.1:{server.port}: another process listens there"
    assert str(server.port) in (taken.hint or "")
    assert "cannot be listened on" in refusal("192.0.2.1", 9187).message
    assert "cannot be listened on" in refusal("no-such-host.invalid", 9187).message


def test_every_address_is_warned_of(meter: ConnectorMeter, caplog: pytest.LogCaptureFixture) -> None:
    with MetricsServer(("0.0.0.0", 0), meter.figures.registry, meter) as made:
        assert "every address of this machine answers" in caplog.text
        assert ask(made, "/livez")[0] == 200


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1:9187", ("127.0.0.1", 9187)), ("[::1]:1", ("::1", 1)), ("db-1.example:65535", ("db-1.example", 65535))],
)
def test_addresses(listen: str, address: tuple[str, int], tmp_path: Path) -> None:
    assert _load(tmp_path, listen).metrics.address == address


@pytest.mark.parametrize(
    "listen", ["9187", ":9187", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "::1:9187", "[x]:1", "http://h:1",
               "h:1/m", "[:::]:9", "h:-1", ""]
)  # fmt: skip
def test_what_is_no_address_is_refused(listen: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics: listen: .* is no (address|port)"):
        _load(tmp_path, listen)


def _load(folder: Path, listen: str) -> ConnectorConfig:
    file = folder / "c.yaml"
    file.write_text(
        "name: c\nsource: {type: postgres, url: 'postgresql://h/d', tables: [public.t]}\n"
        f"sink: {{bootstrap_servers: 'k:1'}}\nmetrics: {{listen: '{listen}'}}\n"
    )
    return load_connector(file)
