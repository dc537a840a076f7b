"""The loop tells a meter what it does: figures are of what was committed, a pause holds, and a restart keeps it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

import cdc.capture.control.commands
import cdc.capture.freshness
import cdc.capture.pipeline
import cdc.capture.session
import cdc.cli.running.pause
from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Parts, Pipeline, Settings
from cdc.cli.running.pause import log_left
from cdc.config.config import load_connector
from cdc.config.reread import reread
from cdc.model.change import Table
from cdc.model.errors import CdcError, ConfigError, OperatorError, RetryableError
from cdc.model.meter import RunState
from cdc.testing import (
    At,
    Faults,
    MemoryMeter,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    delete,
    insert,
    nothing,
    update,
)
from cdc.testing import truncate as truncated
from tests.unit.test_pipeline import A, B, Bench, _row


class Metered(Bench):
    """A bench whose connectors have a meter."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = MemoryMeter()

    def connector(self, *, at: At = nothing) -> Pipeline:
        return Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=1, logs=frozenset({"message"})),
            open_source=lambda: MemorySource(self.log, [A, B], at=at),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=1, at=at),
            sink=MemorySink(self.kafka, "c", "p", at=at),
            failed=self.errors.append,
            meter=self.meter,
        )

    def catch_up(self, *, at: At = nothing) -> None:
        self.connector(at=at).run(until_caught_up=True)

    def written(self) -> Counter[tuple[str, str]]:
        """What the topics hold, by table and op."""
        found: Counter[tuple[str, str]] = Counter()
        for topic, name in (
            ("p.s.a", A.qualified),
            ("p.s.b", B.qualified),
            (MemorySink(self.kafka, "c", "p").log_topic("message"), ""),
        ):
            for record in self.kafka.committed(topic):
                if record.value is not None:
                    found[name, orjson.loads(record.value)["op"]] += 1
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Metered:
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(cdc.capture.control.commands, "COMMANDS_S", 0.0)
    monkeypatch.setattr(cdc.capture.session, "PAUSED_LOOK_S", 0.001)
    return Metered()


def test_what_is_counted_is_what_the_topics_hold(bench: Metered) -> None:
    """By table and op: of a snapshot, of fast and full paths, of key changes and truncates, and of messages."""
    bench.log.commit(*(insert(A, _row(k)) for k in "12345"), insert(B, _row("1")))
    bench.catch_up()
    bench.log.commit(insert(A, _row("6")), update(A, _row("1", "m")), delete(B, (b"1",)))
    bench.log.commit(update(A, _row("9"), key=(b"2",)))  # a key change
    bench.log.say("app", b"hello")
    bench.log.commit(truncated(A))
    bench.log.commit(*(insert(B, _row(f"{n}")) for n in range(10)))
    bench.catch_up()
    assert bench.meter.events == bench.written()
    assert {op for _, op in bench.written()} == {"r", "c", "u", "d", "m"}
    assert sum(len(commit.transactions) for commit in bench.meter.commits) == 4
    assert sum(commit.records for commit in bench.meter.commits) > sum(bench.written().values())


def test_a_batch_that_ends_in_the_middle_of_a_transaction_is_counted_once(bench: Metered) -> None:
    """The fast path makes a part of it, and declines: the full path makes it whole."""
    bench.catch_up()
    bench.log.commit(insert(A, _row("1")))
    for n in range(2, 6):  # small transactions come together; each ends in what only the full path takes
        bench.log.commit(insert(A, _row(f"{n}")), insert(B, _row(f"{n}")), update(A, _row(f"{n}x"), key=(b"%d" % n,)))
    bench.catch_up()
    assert bench.meter.events == bench.written()
    assert bench.written()[A.qualified, "d"] == 4


def test_nothing_is_counted_that_a_failed_commit_held(bench: Metered) -> None:
    bench.catch_up()
    bench.log.commit(insert(A, _row("1")), insert(A, _row("2")))
    bench.catch_up(at=Faults(("sink.commit", 1)))
    assert bench.meter.events == bench.written()
    assert bench.meter.ended_open == 1
    assert [type(error) for error in bench.meter.errors] == [type(error) for error in bench.meter.retried]
    assert isinstance(bench.meter.errors[0], RetryableError)
    assert RunState.RETRYING not in bench.meter.states  # the meter makes that of `retries`


def test_the_states_of_a_connector(bench: Metered) -> None:
    bench.log.commit(insert(A, _row("1")))
    bench.catch_up()
    assert bench.meter.states == [RunState.STARTING, RunState.CREATING, RunState.SNAPSHOT]
    bench.log.commit(insert(A, _row("2")))
    bench.catch_up()
    assert bench.meter.states[3:] == [RunState.STARTING, RunState.STREAMING]
    with pytest.raises(OperatorError):
        bench.catch_up(at=Faults(("source.connect", 1), error=lambda _: OperatorError("no")))
    assert bench.meter.states[-2:] == [RunState.STARTING, RunState.FAILED]


def test_an_idle_source_is_known_to_be_fresh(bench: Metered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at once a second, not only with each position: lag stays small where nobody writes."""
    bench.catch_up()
    monkeypatch.setattr(cdc.capture.freshness, "LOOK_AT_END_S", 0.0)
    begun_ms = time.time_ns() // 10**6
    pipeline = bench.connector()
    _until(pipeline, lambda: len(bench.meter.fresh) > 20)
    newest, ahead = bench.meter.fresh[-1]
    assert newest >= begun_ms
    assert abs(ahead) < 1000
    assert len(bench.meter.commits) < 20  # it is not committed for that


def _until(pipeline: Pipeline, condition: Callable[[], bool]) -> None:
    """Run until the condition holds."""
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    deadline = time.monotonic() + 60
    while not condition() and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)
    held = condition()
    pipeline.stop()
    thread.join()
    assert held


def _while_running(
    bench: Metered,
    steps: Callable[[Callable[[Callable[[], bool]], None]], None],
    pipeline: Pipeline | None = None,
) -> None:
    """Run a connector while `steps` are taken, which are given what waits for a condition."""
    pipeline, failed = pipeline or bench.connector(), list[BaseException]()

    def run() -> None:
        try:
            pipeline.run()
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            failed.append(exc)

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert not failed, failed
            assert time.monotonic() < deadline
            time.sleep(0.002)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        steps(wait)
    finally:
        pipeline.stop()
        thread.join()
    assert not failed, failed


def test_a_pause_holds_and_is_answered_once(bench: Metered) -> None:
    """What was read whole is committed with it; then nothing is, and a resumed connector has everything."""
    bench.log.commit(insert(A, _row("1")))
    bench.catch_up()

    def steps(wait: Callable[[Callable[[], bool]], None]) -> None:
        wait(lambda: bench.meter.states[-1] is RunState.STREAMING)
        bench.ask(Command(pause=True))
        wait(lambda: bench.meter.states[-1] is RunState.PAUSED and bench.state().paused_ms > 0)
        moved, place = bench.meter.moved, bench.state()
        bench.log.commit(insert(A, _row("2")))
        wait(lambda: bench.meter.moved > moved + 20)
        assert bench.fold(A) == {"1": "n"}
        assert (bench.state().offset, bench.state().commit) == (place.offset, place.commit)
        assert bench.log.acknowledged <= place.commit
        bench.ask(Command(pause=False))
        wait(lambda: bench.fold(A) == {"1": "n", "2": "n"})
        assert bench.state().paused_ms == 0

    _while_running(bench, steps)
    assert bench.events(A) == ["r", "c"]
    assert MemorySink(bench.kafka, "c", "p").commands() == []


def test_a_pause_outlives_the_process(bench: Metered) -> None:
    """Asked while the connector is down, too: it reads nothing before it is resumed."""
    bench.catch_up()
    bench.ask(Command(pause=True))
    bench.log.commit(insert(A, _row("1")))

    def paused(wait: Callable[[Callable[[], bool]], None]) -> None:
        wait(lambda: bench.meter.states[-1:] == [RunState.PAUSED] and bench.state().paused_ms > 0)
        assert bench.fold(A) == {}

    _while_running(bench, paused)
    since = bench.state().paused_ms
    _while_running(bench, paused)
    assert bench.state().paused_ms == since
    with pytest.raises(OperatorError, match="is paused"):
        bench.catch_up()
    bench.ask(Command(pause=False))

    def resumed(wait: Callable[[Callable[[], bool]], None]) -> None:
        wait(lambda: bench.fold(A) == {"1": "n"})

    _while_running(bench, resumed)
    assert bench.events(A) == ["c"]


@pytest.mark.parametrize("cut", [False, True])
def test_a_snapshot_is_paused_between_chunks_and_goes_on(bench: Metered, cut: bool) -> None:
    """The tables are let go of meanwhile; rows that were read stay read, and what changed meanwhile comes once."""
    bench.log.commit(*(insert(A, _row(f"{n}")) for n in range(6)))
    chunks = iter(range(10**6))

    def at(point: str) -> None:
        if point == "snapshot.chunk" and next(chunks) == 2:
            bench.ask(Command(pause=True))
            if cut:
                raise RetryableError("a cut")

    pipeline = bench.connector(at=at)
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    deadline = time.monotonic() + 60
    while bench.meter.states[-1:] != [RunState.PAUSED] and time.monotonic() < deadline:
        time.sleep(0.002)
    read = len(bench.events(A))
    assert 0 < read < 6
    assert bench.state().paused_ms
    bench.log.commit(insert(A, _row("6")))
    bench.ask(Command(pause=False))
    while len(bench.fold(A)) < 7 and time.monotonic() < deadline:
        time.sleep(0.002)
    pipeline.stop()
    thread.join()
    assert len(bench.fold(A)) == 7
    assert sorted(bench.events(A)) in (["c"] + ["r"] * 6, ["r"] * 7)


def test_a_paused_snapshot_is_not_waited_for(bench: Metered) -> None:
    bench.log.commit(*(insert(A, _row(f"{n}")) for n in range(6)))

    def at(point: str) -> None:
        if point == "snapshot.chunk" and not bench.state().paused_ms:
            bench.ask(Command(pause=True))

    for _ in range(2):
        with pytest.raises(OperatorError, match="is paused"):
            bench.catch_up(at=at)
    bench.ask(Command(pause=False))
    bench.catch_up()
    assert len(bench.fold(A)) == 6


def test_pauses_among_other_commands_are_taken_in_their_order(bench: Metered) -> None:
    """The last one counts; none is left over, and a table that was asked for is still read."""
    bench.log.commit(insert(A, _row("1")))
    bench.catch_up()
    for pause in (True, False, True, False):
        bench.ask(Command(pause=pause))
    bench.ask(Command(tables=(A.qualified,)))
    bench.catch_up()
    assert bench.state().paused_ms == 0
    assert bench.events(A) == ["r", "r"]
    assert MemorySink(bench.kafka, "c", "p").commands() == []


@pytest.mark.parametrize(
    ("first", "seconds", "said"),
    [
        ({"binlog": {"kept_for_seconds": 7200}}, 7200.0, "for 2 h 0 min"),
        ({"binlog": {"kept_for_seconds": None}}, None, "for ever"),
        ({"slot": {"safe_wal_size_bytes": None}}, None, "max_slot_wal_keep_size sets no limit"),
        ({"slot": None}, None, "not known"),
        ({}, None, "not known"),
    ],
)
def test_how_long_the_log_lasts(first: dict[str, Any], seconds: float | None, said: str) -> None:
    found = log_left(first, None)
    assert found.seconds == seconds
    assert said in found.said


@pytest.mark.parametrize(("grown", "known"), [(0, False), (10**9, True)])
def test_how_long_a_limited_slot_lasts(grown: int, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.cli.running.pause, "_SAMPLE_S", 0.01)
    slot = {"safe_wal_size_bytes": 50_000_000}
    found = log_left({"slot": slot, "log_end_number": 1}, lambda: {"slot": slot, "log_end_number": 1 + grown})
    assert (found.seconds is not None) is known
    assert "50 MB are left" in found.said


def _reloading(bench: Metered, asks: Callable[[], Parts | None], tables: Sequence[Table] = (A,)) -> Pipeline:
    made = _parts(bench, tables)
    return Pipeline(
        made.settings,
        open_source=made.open_source,
        open_snapshotter=made.open_snapshotter,
        sink=MemorySink(bench.kafka, "c", "p"),
        meter=bench.meter,
        reread=asks,
    )


def _parts(bench: Metered, tables: Sequence[Table], at: At = nothing) -> Parts:
    return Parts(
        Settings(connector="c", prefix="p", chunk_rows=1),
        lambda: MemorySource(bench.log, tables, at=at),
        lambda: MemorySnapshotter(bench.log, rows_each=1),
    )


@pytest.mark.parametrize("by_command", [True, False])
@pytest.mark.parametrize("paused", [False, True])
def test_a_file_that_is_read_again_brings_a_table(bench: Metered, by_command: bool, paused: bool) -> None:
    """Also while it is paused: the table is read once it is resumed. The command is answered once."""
    bench.log.commit(insert(A, _row("1")))
    bench.log.commit(insert(B, _row("1")))
    read = list[int]()

    def reread() -> Parts:
        read.append(1)
        return _parts(bench, (A, B))

    pipeline = _reloading(bench, reread)
    if paused:
        _reloading(bench, reread).run(until_caught_up=True)
        bench.ask(Command(pause=True))

    def steps(wait: Callable[[Callable[[], bool]], None]) -> None:
        wait(lambda: bench.meter.states[-1:] == [RunState.PAUSED if paused else RunState.STREAMING])
        if by_command:
            bench.ask(Command(reload=True))
        else:
            pipeline.reload()
        wait(lambda: len(read) == 1)
        if paused:
            bench.ask(Command(pause=False))
        wait(lambda: bench.fold(B) == {"1": "n"})
        bench.log.commit(insert(B, _row("2")))
        wait(lambda: bench.fold(B) == {"1": "n", "2": "n"})

    _while_running(bench, steps, pipeline)
    assert read == [1]
    assert bench.fold(A) == {"1": "n"}
    assert MemorySink(bench.kafka, "c", "p").commands() == []


def test_a_file_is_read_again_while_servers_are_away(bench: Metered) -> None:
    """It may say where they are now: the connector tried the old address until it gave up, whatever it was told."""
    bench.log.commit(insert(A, _row("1")))
    away = _parts(bench, (A,), Faults(*[("source.connect", 1)] * 100_000))
    pipeline = Pipeline(
        replace(away.settings, wait_s=float("inf")),
        open_source=away.open_source,
        open_snapshotter=away.open_snapshotter,
        sink=MemorySink(bench.kafka, "c", "p"),
        meter=bench.meter,
        reread=lambda: _parts(bench, (A,)),
    )

    def steps(wait: Callable[[Callable[[], bool]], None]) -> None:
        wait(lambda: len(bench.meter.retried) > 1)
        pipeline.reload()
        wait(lambda: bench.fold(A) == {"1": "n"})

    _while_running(bench, steps, pipeline)


@pytest.mark.parametrize("error", [OperatorError, RetryableError])
def test_a_file_with_which_no_session_begins_is_given_up(
    bench: Metered, error: type[CdcError], caplog: pytest.LogCaptureFixture
) -> None:
    """What was followed before is followed on; a later file is tried again."""
    bench.log.commit(insert(A, _row("1")))
    tries = iter([_parts(bench, (A, B), Faults(("source.connect", 1), error=lambda _: error("no right"))),
                  None, _parts(bench, (A, B))])  # fmt: skip
    pipeline = _reloading(bench, lambda: next(tries))

    def steps(wait: Callable[[Callable[[], bool]], None]) -> None:
        wait(lambda: bench.meter.states[-1:] == [RunState.STREAMING])
        for sessions in (2, 3):  # refused by its session, and by itself
            pipeline.reload()
            wait(lambda n=sessions: len(bench.meter.sessions) >= n and not pipeline._across.reload.is_set())  # type: ignore[misc]
        bench.log.commit(insert(A, _row("2")))
        wait(lambda: bench.fold(A) == {"1": "n", "2": "n"})
        pipeline.reload()
        bench.log.commit(insert(B, _row("1")))
        wait(lambda: bench.fold(B) == {"1": "n"})

    _while_running(bench, steps, pipeline)
    assert "the file as it is now is refused, the connector goes on as before: no right" in caplog.text


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ("source: {type: postgres, url: 'postgresql://h/d2', tables: [public.t, public.u], heartbeat_s: 5}", ""),
        ("snapshot: {max_rows_per_second: 5}", ""),
        ("name: d", "name, sink.topic_prefix cannot be changed while the connector runs"),
        ("sink: {bootstrap_servers: 'k:1', partitions: 3}", "sink.partitions cannot be changed"),
        ("sink: {bootstrap_servers: 'k:1', options: {linger.ms: '5'}}", "sink.options.linger.ms cannot be changed"),
        ("source: {type: postgres, url: 'postgresql://h/d', tables: [public.t], slot: other}", "source.slot cannot be"),
        ("on_error: dead_letter", "on_error cannot be changed"),
        ("metrics: {listen: '127.0.0.1:9187'}", "metrics cannot be changed"),
        ("sink: [", "this is not YAML"),
    ],
)
def test_what_of_a_file_may_change(change: str, refused: str, tmp_path: Path) -> None:
    lines = {
        "name": "name: c",
        "source": "source: {type: postgres, url: 'postgresql://h/d', tables: [public.t]}",
        "sink": "sink: {bootstrap_servers: 'k:1'}",
    }
    file = tmp_path / "c.yaml"
    file.write_text("\n".join(lines.values()))
    before = load_connector(file)
    file.write_text("\n".join({**lines, change.partition(":")[0]: change}.values()))
    if not refused:
        assert reread(file, before) != before
        return
    with pytest.raises(ConfigError, match=refused):
        reread(file, before)


def test_a_login_that_has_changed_holds_up_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rotated password of Kafka or of the registry had each `cdc reload` refused until a start."""
    file, secrets = tmp_path / "c.yaml", {name: tmp_path / name for name in ("kafka", "registry")}

    def write(tables: str, secret: str) -> None:
        for path in secrets.values():
            path.write_text(secret)
        file.write_text(
            f"name: c\nsource: {{type: postgres, url: 'postgresql://h/d', tables: [{tables}]}}\nsink:\n"
            "  bootstrap_servers: 'k:1'\n  format: avro\n"
            f"  options: {{sasl.password: '${{file:{secrets['kafka']}}}'}}\n"
            "  registry:\n    url: http://r:1\n"
            f"    options: {{basic.auth.user.info: '${{file:{secrets['registry']}}}'}}\n"
        )

    write("public.t", "old-one")
    before = load_connector(file)
    write("public.t, public.u", "new-one")
    now = reread(file, before)
    assert (now.source.tables, now.sink) == (("public.t", "public.u"), before.sink), "clients have the old ones"
    (said,) = (record.getMessage() for record in caplog.records)
    assert "sink.options.sasl.password, sink.registry.options.basic.auth.user.info is another one" in said
    assert "-one" not in said.replace("new one", "").replace("another one", "")


@pytest.mark.parametrize(
    ("option", "is_login"),
    [
        ("sasl.username", True),
        ("sasl.password", True),
        ("sasl.oauthbearer.client.id", True),
        ("sasl.oauthbearer.client.secret", True),
        ("ssl.key.password", True),
        ("client.id", False),
        ("sasl.oauthbearer.token.endpoint.url", False),
        ("ssl.key.location", False),
    ],
)
def test_what_is_a_login(option: str, is_login: bool, tmp_path: Path) -> None:
    """A client of OpenID Connect is a user too, and is given another id with another secret."""
    file, found = tmp_path / "c.yaml", []
    for value in ("a", "b"):
        file.write_text(
            "name: c\nsource: {type: postgres, url: 'postgresql://h/d', tables: [public.t]}\n"
            f"sink: {{bootstrap_servers: 'k:1', options: {{{option}: {value}}}}}\n"
        )
        found.append(load_connector(file))
    if is_login:
        assert reread(file, found[0]) == found[0]
        return
    with pytest.raises(ConfigError, match=f"sink.options.{option} cannot be changed"):
        reread(file, found[0])
