"""What users ask for is kept once, with the transaction in which it takes effect, and without a value."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

import cdc.capture.control.commands
import cdc.capture.pipeline
from cdc.capture.control.signals import Command, parse
from cdc.capture.pipeline import Pipeline, Settings
from cdc.model.audit import READ_AGAIN, Act, asked_by, name_of, time_of
from cdc.model.errors import OperatorError
from cdc.testing import Faults, Killed, MemorySink, MemorySnapshotter, MemorySource, insert
from cdc.testing.kafka import Outcome, Record
from spark_apply.views.running import commands as of_views
from tests.unit.test_pipeline import A, Bench, _row

WHO = {"by": "ada@desk", "asked_ms": 5}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(cdc.capture.control.commands, "COMMANDS_S", 0.0)
    bench = Bench()
    bench.log.commit(insert(A, _row("1", "secret-value")))
    bench.run(A)
    return bench


def _acts(bench: Bench) -> list[dict[str, Any]]:
    return [orjson.loads(record.value or b"") for record in bench.kafka.committed("p.audit-c")]


def _done(bench: Bench) -> list[tuple[str, str]]:
    return [(act["action"], act["outcome"]) for act in _acts(bench)]


def test_what_is_no_command_is_told_of_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Not at each look at the topic: a first snapshot looks each second, and carries nothing out before its end."""
    text = (
        b'{"type":"execute-snapshot","data":{"data-collections":"public.t","type":"incremental"}}'  # no table p, u, …
    )
    for value in (b"junk", b"[]", b'{"type":"execute-snapshot"}', b'{"type":"drop-everything","data":{}}', text):
        assert not parse(value).asks
        assert not caplog.records
    bench.kafka.topics["p.signal-c"].append(Record("p.signal-c", b"k", b"junk", bench.kafka.begin("cli")))
    bench.kafka.end("cli", Outcome.COMMITTED)
    bench.run(A)
    bench.run(A)
    assert [record.message for record in caplog.records if "no command of ours" in record.message] == [
        "the signal topic holds a record that is no command of ours; it is left out"
    ]


@pytest.mark.parametrize(
    ("signal", "told"),
    [
        ({"additional-conditions": [{"data-collection": A.qualified, "filter": "v = 'secret'"}]}, "no condition"),
        ({"additional-condition": "v = 'secret'"}, "no condition"),
        ({"surrogate-key": "secret"}, "its own key"),
        ({"secret": 1}, "a member that is not known"),
        ({"type": "secret"}, "`type` must be"),
        ({"after-gap": "false"}, "`after-gap` must be"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_debezium_would_do_and_we_do_not_is_refused(
    bench: Bench, caplog: pytest.LogCaptureFixture, signal: dict[str, Any], told: str
) -> None:
    """The member was passed over, and the whole table read; where the text was “false”, all tables behind a gap."""
    before = len(bench.kafka.committed(f"p.{A.qualified}"))
    _signal(bench, {"type": "execute-snapshot", "data": {"data-collections": [A.qualified], **signal}})
    ((action, outcome),) = _done(bench)
    assert action == "snapshot start"
    assert outcome.startswith("refused: ")
    assert told in outcome
    assert _acts(bench)[0]["about"] == {"tables": [A.qualified]}
    assert len(bench.kafka.committed(f"p.{A.qualified}")) == before, "nothing is read"
    (line,) = [record for record in caplog.records if "is refused" in record.message]
    assert "secret" not in line.message + outcome


def _signal(bench: Bench, signal: dict[str, Any]) -> None:
    record = Record("p.signal-c", b"k", orjson.dumps({"id": "k", **signal}), bench.kafka.begin("cli"))
    bench.kafka.topics["p.signal-c"].append(record)
    bench.kafka.end("cli", Outcome.COMMITTED)
    bench.run(A)


@pytest.mark.parametrize(
    ("signal", "done"),
    [
        ({"type": "pause-snapshot", "data": {}}, ("signal", "refused: the signal pause-snapshot is not carried out")),
        (
            {"type": "stop-snapshot", "data": {"type": "incremental"}},
            ("signal", "refused: `data-collections` must name the tables that are not to be read any more"),
        ),
        (
            {"type": "execute-snapshot", "data": {"type": "BLOCKING", "data-collections": [A.qualified]}},
            ("snapshot start", "done, incrementally: the log is followed meanwhile"),
        ),
        (
            {
                "type": "execute-snapshot",
                "data": {"type": "INCREMENTAL", "data-collections": [A.qualified], "additional-conditions": []},
            },
            ("snapshot start", "done"),
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_other_signals_of_debezium(bench: Bench, signal: dict[str, Any], done: tuple[str, str]) -> None:
    _signal(bench, signal)
    assert _done(bench) == [done]


def test_each_command_is_kept_with_who_asked(bench: Bench) -> None:
    bench.ask(Command(tables=(A.qualified,), **WHO))
    bench.run(A)
    bench.ask(Command(tables=(A.qualified,), keys=((b"secret-key",),), **WHO))
    bench.run(A)
    bench.ask(Command(tables=(A.qualified, "public.gone"), stop=True, **WHO))
    bench.ask(Command(tables=("public.gone",), **WHO))
    bench.ask(Command(reload=True))
    bench.run(A)
    bench.ask(Command(pause=True, **WHO))
    with pytest.raises(OperatorError, match="is paused"):
        bench.run(A)
    bench.ask(Command(pause=True, **WHO))
    bench.ask(Command(pause=False, **WHO))
    bench.run(A)
    assert _done(bench) == [
        ("snapshot start", "done"),
        ("read rows", "done"),
        ("snapshot stop", "not captured: public.gone"),
        ("snapshot start", "not captured: public.gone"),
        ("reload", READ_AGAIN),
        ("pause", "done"),
        ("pause", "it was so already"),
        ("resume", "done"),
    ]
    acts = {act["action"]: act for act in _acts(bench)}
    assert acts["read rows"]["about"] == {"tables": [A.qualified], "keys": 1}
    assert (acts["pause"]["by"], acts["pause"]["asked_ms"], acts["pause"]["connector"]) == ("ada@desk", 5, "c")
    assert acts["reload"]["by"] is None, "a signal of somebody else's does not say"
    positions = [act["position"] for act in _acts(bench)]
    assert positions == sorted(positions)
    everything = b"".join(record.value or b"" for record in bench.kafka.committed("p.audit-c"))
    assert b"secret" not in everything


@pytest.mark.parametrize("point", ["sink.commit", "sink.commit.delayed", "sink.commit.answer"])
@pytest.mark.parametrize("killed", [False, True])
def test_once_whatever_becomes_of_the_commit(bench: Bench, point: str, killed: bool) -> None:
    """Over retries and kills: as often as the command took effect, which is once."""
    bench.ask(Command(tables=(A.qualified,), **WHO))
    error: Any = Killed if killed else None
    faults = Faults((point, 1), (point, 1), error=error)
    for _ in range(3):
        try:
            bench.run(A, at=faults)
        except Killed:
            continue
    assert faults.fired == [point, point]
    assert _done(bench) == [("snapshot start", "done")]


def test_a_take_over_is_kept_once_and_a_start_is_not(bench: Bench) -> None:
    for take_over in (True, False):
        Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=1, take_over=take_over),
            open_source=lambda: MemorySource(bench.log, [A]),
            open_snapshotter=lambda: MemorySnapshotter(bench.log, rows_each=1),
            sink=MemorySink(bench.kafka, "c", "p"),
        ).run(until_caught_up=True)
    bench.log.commit(insert(A, _row("2")))
    bench.run(A)
    (act,) = _acts(bench)
    assert (act["action"], act["by"]) == ("take-over", asked_by())


def test_a_gap_that_is_closed_on_request_is_kept(bench: Bench) -> None:
    bench.log.acknowledged = 10_000_000
    bench.ask(Command(tables=(A.qualified,), after_gap=True, **WHO))
    bench.run(A)
    (act,) = _acts(bench)
    assert (act["action"], act["about"]["after_gap"], act["by"]) == ("snapshot start", True, "ada@desk")
    assert act["position"].startswith("00000002."), "in the epoch that it begins"


def test_what_anybody_may_have_written_is_not_believed() -> None:
    record = {"id": "1", "type": "pause-connector", "data": {}, "by": ["x"], "asked_ms": True}
    assert parse(orjson.dumps(record)) == Command(pause=True)
    assert name_of("a" * 999) == "a" * 200
    assert [name_of(value) for value in ("", "two\nlines", "\x1b[31m", 5, None)] == [None] * 5
    assert [time_of(value) for value in (5, "5", None, 1.5)] == [5, None, None, None]
    command = Command(pause=True, **WHO)
    assert parse(command.to_bytes("1")) == command
    assert not parse(b"{}").asks


def test_a_rebuild_of_views_names_them_and_no_text() -> None:
    command = of_views.new_command({"totals": {"sql": "SELECT 'secret'"}})  # type: ignore[dict-item]
    read = of_views.Command.parse(command.key, command.to_bytes())
    assert read == command
    assert read is not None
    act = read.act()
    assert (act.action, act.by, act.about) == ("view rebuild", asked_by(), {"views": ["totals"]})
    assert b"secret" not in act.to_bytes(connector="v", position="p")
    older = of_views.Command.parse(b"k", b'{"kind":"views","views":{},"taken":false,"failed":null}')
    assert older is not None
    assert older.act() == Act(action="view rebuild", id="k", about={"views": []})


def test_who_asks_may_be_called_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """By LOGNAME, which may be no UTF-8, and hold lines: the command ended with a traceback, or was of nobody."""
    monkeypatch.setenv("LOGNAME", "b\udce9n\nfaked")
    assert asked_by().startswith("b?n?faked@")
    assert name_of(asked_by()) == asked_by()
    assert orjson.loads(Command(pause=True, by=asked_by()).to_bytes("i"))["by"] == asked_by()


def test_an_error_can_be_written_anywhere() -> None:
    """It goes to a member's pipe, to the position topic and to the page: each is JSON."""
    error = OperatorError("caf\udce9.yaml is wrong", hint="ls caf\udce9.yaml")
    assert orjson.loads(orjson.dumps([error.message, error.hint])) == ["caf\\udce9.yaml is wrong", "ls caf\\udce9.yaml"]
