"""`cdc check` beside a connector at work, which commits and acknowledges between two looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
import pytest

from cdc.cli.inspecting import check, token
from cdc.cli.inspecting.destination import destination_of
from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, left_out, refused
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.column_rules import ColumnRules
from cdc.config.published.outbox import OutboxConfig
from cdc.config.source_config import SourceConfig
from cdc.encode.schema_record import schema_record
from cdc.model.change import Position, Table
from cdc.model.errors import OperatorError, RetryableError, VerdictError
from cdc.model.state import Phase, State
from cdc.rules.capture_rules import CaptureRules
from tests.text_tables import text_table

CONFIG = ConnectorConfig(
    name="c",
    source=SourceConfig(type="postgres", url="postgresql://h/d", tables=("public.t",)),
    sink=KafkaConfig(bootstrap_servers="h:1", topic_prefix="c"),
)
AT = State(connector="c", epoch=1, commit=5, identity={}, phase=Phase.STREAM, tables=("public.t",))


def looked(monkeypatch: pytest.MonkeyPatch, positions: list[State | Exception], acknowledged: int) -> list[Finding]:
    """What is found of a source whose slot stands at `acknowledged`, and of these positions, one after the other."""
    answers: Iterator[State | Exception] = iter(positions)

    def position(*_: Any) -> State | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def at_source(_: Any, state: State, *, known: bool) -> Checked:
        assert known
        ahead = Finding(Level.ERROR, "position", f"slot ahead of {state.commit}")
        here = Finding(Level.OK, "position", "the log can be followed")
        return Checked((ahead if state.commit < acknowledged else here,))

    parts = {"sinks.check:position": position}
    monkeypatch.setattr(registry, "part", lambda name: parts.get(name, lambda *_, **__: []))
    monkeypatch.setattr(registry, "check", lambda _: at_source)
    return [finding for finding in check._findings(CONFIG) if finding.about == "position"]


def test_the_topic_of_a_table_that_is_left_out_is_not_said_to_be_made() -> None:
    """Nor that it is there; the others' topics are told of."""
    config = replace(CONFIG, source=SourceConfig(type="postgres", url="postgresql://h/d", tables=("public.*",)))
    tables = [text_table(name, ["id"], schema="public") for name in ("a", "b", "+" * 260)]
    topics = [Finding(Level.OK, f"topic c.public.{name}", "will be made at the start") for name in "ab"]
    wrong = [refused("rules", OperatorError(f"table {of.qualified}: no such column")) for of in tables[1:]]
    found = check._as_a_run_takes_them(config, destination_of(config), [*topics, *wrong], tables, set())
    assert [(of.level, of.about) for of in found] == [
        (Level.OK, "topic c.public.a"), (Level.WARNING, "rules"), (Level.WARNING, "rules"),
    ]  # fmt: skip


def test_a_position_that_has_moved_on_meanwhile_is_no_slot_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = looked(monkeypatch, [AT, replace(AT, commit=9)], 9)
    assert found.level is Level.OK


def test_a_position_of_another_source_is_not_said_to_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the tables again, as for a gap, is no help where the file leads to another database."""
    missing = Finding(Level.ERROR, "position", "slot missing")
    parts = {"sinks.check:position": lambda *_: replace(AT, identity={"database": "shop"})}
    monkeypatch.setattr(registry, "part", lambda name: parts.get(name, lambda *_, **__: []))
    monkeypatch.setattr(registry, "check", lambda _: lambda *_, **__: Checked((missing,), identity={"database": "x"}))
    (found,) = check._findings(CONFIG)
    assert (found.about, found.level) == ("source", Level.ERROR)
    assert found.what.startswith("another source")


def test_a_position_of_another_kind_of_source_is_not_shown_to_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cdc check` ended with a traceback where a file's type was changed: places and tables are each source's own."""
    theirs = replace(AT, config={"source.type": "mysql"})

    def at_source(_: Any, state: State | None, *, known: bool) -> Checked:
        assert (state, known) == (None, False)
        return Checked((), (), {"database": "d"})

    parts = {"sinks.check:position": lambda *_: theirs}
    monkeypatch.setattr(registry, "part", lambda name: parts.get(name, lambda *_, **__: []))
    monkeypatch.setattr(registry, "check", lambda _: at_source)
    (found,) = check._findings(CONFIG)
    assert (found.level, found.about) == (Level.ERROR, "config")
    assert found.what.startswith("config changed: source.type is postgres")
    monkeypatch.setattr(token, "standing", lambda _: SimpleNamespace(state=theirs))
    monkeypatch.setattr(registry, "end", lambda _: pytest.fail)
    with pytest.raises(VerdictError, match=r"config changed: source\.type is postgres"):
        token._position(CONFIG)


@pytest.mark.parametrize("later", [AT, RetryableError("Kafka is away")], ids=["the same", "not known"])
def test_a_slot_that_is_ahead_is_told(monkeypatch: pytest.MonkeyPatch, later: State | Exception) -> None:
    (found,) = looked(monkeypatch, [AT, *[later] * 3], 9)
    assert (found.level, found.what) == (Level.ERROR, "slot ahead of 5")


@pytest.mark.parametrize("is_out", [True, False])
def test_a_rule_of_a_table_that_is_gone_is_refused_as_a_run_does(
    monkeypatch: pytest.MonkeyPatch, *, is_out: bool
) -> None:
    """It was captured once. Where it is left out for now, and told as that, the rule waits for it."""
    source = replace(CONFIG.source, tables=("public.*",), columns={"public.p": ColumnRules(exclude=("s",))})
    out = [Finding(Level.WARNING, "table public.p", "it is in no log; it is left out")] if is_out else []
    checked = Checked(tuple(out), (Table("public", "t", (), ("id",)),))
    at = replace(AT, tables=("public.t", "public.p"))
    parts = {"sinks.check:position": lambda *_: at}
    monkeypatch.setattr(registry, "part", lambda name: parts.get(name, lambda *_, **__: []))
    monkeypatch.setattr(registry, "check", lambda _: lambda *_, **__: checked)
    found = [finding.what for finding in check._findings(replace(CONFIG, source=source)) if finding.about == "rules"]
    assert found == ([] if is_out else ["source.columns: public.p is no captured table"])


def test_an_outbox_that_a_run_leaves_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever leaves it out, the run ends; other tables it does without, and what is just told of it ends no run."""
    source = replace(CONFIG.source, tables=("public.*",), outbox=OutboxConfig(table="public.outbox"))
    why = OperatorError("it may not be published", hint="ALTER PUBLICATION")
    out = [left_out(f"table public.{name}", why, named=name == "t") for name in ("outbox", "t", "u")]
    told = Finding(Level.WARNING, "table public.outbox", "its rows are read again")
    checked = Checked((*out, told), (Table("public", "v", (), ("id",)),))
    parts = {
        "sinks.check:position": lambda *_: AT,
        "sinks.check:topic_of": lambda *_: lambda table: f"c.{table.qualified}",
    }
    monkeypatch.setattr(registry, "part", lambda name: parts.get(name, lambda *_, **__: []))
    monkeypatch.setattr(registry, "check", lambda _: lambda *_, **__: checked)
    found = check._findings(replace(CONFIG, source=source))
    assert [of for of in found if of.level is Level.ERROR] == [refused("table public.outbox", why)]
    assert found.count(told) == 1


@pytest.mark.parametrize("captured", [True, False])
def test_rules_that_do_not_fit_what_was_said_of_a_table(monkeypatch: pytest.MonkeyPatch, *, captured: bool) -> None:
    """Its hidden column may have another name by now: a run ends with that, or leaves the table out."""
    was, now = (
        text_table(name, columns, schema="public") for name, columns in (("u", ["id", "s"]), ("u", ["id", "x"]))
    )
    rules = CaptureRules({"public.*": ColumnRules(exclude=("s",))}, {})
    of = rules.of("public.u")
    assert of is not None
    _, said = schema_record(
        was, connector="c", source="postgresql", database="d", topic="c.public.u", version=1,
        position=Position(1, 1, 0), published=of.published(was),
    )  # fmt: skip
    source = replace(CONFIG.source, tables=("public.*",), columns={"public.*": ColumnRules(exclude=("s",))})
    checked = Checked((), (text_table("t", ["id", "s"], schema="public"), now))
    at = replace(AT, tables=("public.t", "public.u")) if captured else AT
    parts = {
        "sinks.check:position": lambda *_: at,
        "sinks.check:described": lambda *_, **__: [said],
        "sinks.check:topic_of": lambda *_: lambda table: f"c.{table.qualified}",
    }
    monkeypatch.setattr(registry, "part", lambda name: parts.get(name, lambda *_, **__: []))
    monkeypatch.setattr(registry, "check", lambda _: lambda *_, **__: checked)
    (found,) = check._findings(replace(CONFIG, source=source))
    assert found.what.startswith("source.columns: table public.u has no column s any more, and has x")
    assert found.level is (Level.ERROR if captured else Level.WARNING)
    assert found.what.endswith("a pattern brings it, and it is left out") is not captured


def test_a_fix_is_a_line_of_its_own_on_a_terminal() -> None:
    """It can be selected and pasted whole, however narrow the window is; in a file a finding is one line."""
    finding = Finding(Level.ERROR, "table public.t", "table public.t: it may not be read", "GRANT SELECT ON t TO u")
    assert click.unstyle(check.shown(finding, terminal=True)).splitlines() == [
        "error    table public.t: it may not be read",
        "fix:     GRANT SELECT ON t TO u",
    ]
    one = "error    table public.t: it may not be read; fix: GRANT SELECT ON t TO u"
    assert click.unstyle(check.shown(finding, terminal=False)) == one
    good = Finding(Level.OK, "kafka", "it answers")
    assert click.unstyle(check.shown(good, terminal=True)) == "ok       kafka: it answers"
