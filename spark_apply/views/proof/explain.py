"""Explains a key of a view: what is published of it, what its SQL gives, its unit, and the rows that derive it.

Everything is read from the topics, at the position that is published: the job may run meanwhile, and goes on.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import duckdb
import orjson

from cdc.config.views import ViewsConfig
from cdc.encode.topic_contents.foreign import event_of
from cdc.model.change import Kind, Position
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import State
from cdc.model.suggestion import did_you_mean
from cdc.model.written_key import read_written
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.spark.session import open_session
from spark_apply.verify.explain import JudgedRecord, Record, judged
from spark_apply.views.embedded.held import unit_name
from spark_apply.views.embedded.state import place
from spark_apply.views.model.values import engine_type, object_of, quoted
from spark_apply.views.planning.definitions import refuse_changed
from spark_apply.views.planning.planned import Planned, plan_views
from spark_apply.views.planning.view import View
from spark_apply.views.proof.derivation import BaseRow, Derivation, derive, next_due, was_due
from spark_apply.views.proof.replayed import Read, Replayed, replayed
from spark_apply.views.proof.verify import needed, standing
from spark_apply.views.publishing.output import last_position
from spark_apply.views.publishing.status import noted, peeked

Outcome = Literal["row", "none", "quarantined", "stopped", "differs"]
Progress = Callable[[str], None]

_TRIES: Final = 3
_ASKED = place("work", "_cdc_key")


@dataclass(frozen=True, slots=True)
class ViewExplanation:
    """Everything that the topics tell about a key of a view, at one position."""

    view: str
    topic: str
    key: Mapping[str, Any]
    position: str
    """What is published is what the SQL gives below it."""
    clock_ms: int
    published: object
    """The row in the view's topic; None: there is none."""
    computed: object
    """The row that the SQL gives; None: there is none."""
    quarantined: str | None
    """Why its unit is in quarantine."""
    stopped: str | None
    """Why the view is stopped."""
    unit: Mapping[str, Any] | None
    """What is computed together with the row; None: the whole view."""
    rows: Sequence[BaseRow]
    more: Sequence[str]
    """Tables of which more rows derive the unit than are named."""
    deadline: dt.datetime | None
    changed: Mapping[str, object] | None
    """The last event of the key: where it came from."""
    records: Sequence[JudgedRecord]

    @property
    def outcome(self) -> Outcome:
        """Say what the view has of the key."""
        if self.stopped is not None:
            return "stopped"
        if self.quarantined is not None:
            return "quarantined"
        if self.published != self.computed:
            return "differs"
        return "row" if self.published is not None else "none"

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc view explain --json``."""
        return {
            "view": self.view,
            "topic": self.topic,
            "key": dict(self.key),
            "outcome": self.outcome,
            "position": self.position,
            "clock_ms": self.clock_ms,
            "published": self.published,
            "computed": self.computed,
            "quarantined": self.quarantined,
            "stopped": self.stopped,
            "unit": None if self.unit is None else dict(self.unit),
            "derived_from": [{**asdict(row), "key": json.loads(row.key)} for row in self.rows],
            "more": list(self.more),
            "deadline": None if self.deadline is None else f"{self.deadline.isoformat()}Z",
            "changed_by": self.changed,
            "records": [asdict(record) for record in self.records],
        }


def explain_view(config: ViewsConfig, view: str, key: str, *, progress: Progress | None = None) -> ViewExplanation:
    """Explain a key of a view; `key` is JSON of its columns, or the value of the only one.

    Takes as long as reading the topics of the view and of what it reads once. Raises ConfigError for an unknown view or
    an invalid key, OperatorError before anything is published.
    """
    tell = progress or (lambda _line: None)
    if view not in config.views:
        known = ", ".join(config.views)
        raise ConfigError(f"--view {view}: there is no such view", hint=did_you_mean(view, config.views, known))
    refuse_changed(config, peeked(config))
    planned = _planned(config)
    asked = next(each for each in planned.views if each.name == view)
    wanted = _parse(asked, key)
    for _ in range(_TRIES):
        at = standing(config)
        if asked.relation not in at.tables:
            raise OperatorError(
                f"view {asked.name}: nothing is published of it yet", hint="run it: cdc view run VIEWS.yaml"
            )
        tell(f"computing {asked.name} from its tables' topics, and finding what the row comes from")
        found = _explained(config, planned, asked, wanted, at)
        if found.outcome != "differs" or standing(config) == at:
            break
    return found


def _planned(config: ViewsConfig) -> Planned:
    """Plan the views for the embedded engine, which computes them here whichever engine the job has.

    Raises OperatorError where it cannot, and the job's can.
    """
    spark = open_session(config.name, config.spark)
    try:
        return plan_views(replace(config, engine="duckdb", tables=None, store=None), spark)
    except ConfigError as exc:
        plan_views(config, spark)
        msg = f"views are explained by the engine duckdb, which does not take one of them: {exc.message}"
        raise OperatorError(msg, hint="cdc view verify VIEWS.yaml compares it with its topic") from exc


def _explained(
    config: ViewsConfig, planned: Planned, asked: View, wanted: Mapping[str, Any], at: State
) -> ViewExplanation:
    spark = open_session(config.name, config.spark)
    relations = needed(planned.views, [asked.name])
    views = [each for each in planned.views if each.relation in relations]
    uses = [use for use in planned.uses if use.relation in relations]
    with replayed(config, spark, at, views, Read(uses, planned.streams)) as replay:
        name = _ask(replay, asked, wanted)
        records = _records(config, asked, name, at)
        held = replay.held.get(asked.name)
        stopped = None if held else replay.failed.get(asked.name)
        stopped = stopped or noted(config).get("views", {}).get(asked.name, {}).get("stopped")
        derivation = Derivation({}, set(), [])
        if asked.relation in replay.views:
            derivation = derive(replay, asked, _unit_table(replay, asked))
        rows = [row for of in derivation.rows.values() for row in of]
        won = next((record for record in records if record.verdict == "won"), None)
        return ViewExplanation(
            view=asked.name,
            topic=f"{config.source.topic_prefix}.{asked.relation}",
            key=wanted,
            position=str(at.offset["position"]),
            clock_ms=at.source_ms,
            published=won.after if won is not None and won.op != "d" else None,
            computed=_computed(replay, asked, name),
            quarantined=held or _held(replay, asked),
            stopped=stopped,
            unit={column: wanted[column] for column in asked.last.units} or None,
            rows=rows,
            more=sorted(derivation.more),
            deadline=next_due(replay, derivation, at.source_ms),
            changed=_changed(replay, derivation, rows, won),
            records=records,
        )


def _parse(view: View, text: str) -> dict[str, Any]:
    given = read_written(text)
    given = text if given is None and text != "null" else given
    names = list(view.plan.key)
    if not isinstance(given, dict) and len(names) == 1:
        return {names[0]: given}
    if not isinstance(given, dict) or set(given) != set(names):
        example = json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)
        raise ConfigError(f"--key: view {view.name} has the key {', '.join(names)}", hint=f"--key '{example}'")
    return {name: given[name] for name in names}


def _ask(replay: Replayed, view: View, wanted: Mapping[str, Any]) -> str:
    """Make a table of the key, as the engine has its values; return it as events have it."""
    given = [_value(kind, number) for number, (_, kind) in enumerate(view.key)]
    listed = ", ".join(f"{value} AS {quoted(name)}" for value, (name, _) in zip(given, view.key, strict=True))
    values = {f"v{number}": _text(wanted[name]) for number, (name, _) in enumerate(view.key)}
    try:
        replay.state.execute(f"CREATE OR REPLACE TABLE {_ASKED} AS SELECT {listed}", values)
    except duckdb.Error as exc:
        kinds = ", ".join(f"{name} {kind.name}" for name, kind in view.key)
        msg = f"--key: a value does not fit the key of view {view.name}: {kinds}"
        raise ConfigError(msg, hint="write values as events have them: docs/values.md") from exc
    ((name,),) = replay.state.rows(f"SELECT {object_of(view.key, 'k')} FROM {_ASKED} k")
    return str(name)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _value(kind: Kind, number: int) -> str:
    """Return an expression for a value out of its JSON: the inverse of `spark_apply.views.model.values.json_of`."""
    text, type_ = f"CAST($v{number} AS VARCHAR)", engine_type(kind)
    match kind.name:
        case "date":
            return f"DATE '1970-01-01' + CAST({text} AS INTEGER)"
        case "timestamp_millis" | "timestamp_micros":
            return f"make_timestamp(CAST({text} AS BIGINT))"
        case "timestamptz":
            return f"CAST(replace({text}, 'Z', '') AS TIMESTAMP)"
        case "bytes":
            return f"from_base64({text})"
        case _:
            return f"CAST({text} AS {type_})"


def _unit_table(replay: Replayed, view: View) -> str:
    units = place("work", "_cdc_unit")
    listed = ", ".join(quoted(name) for name in view.last.units) or "1 AS _whole"
    replay.state.execute(f"CREATE OR REPLACE TABLE {units} AS SELECT {listed} FROM {_ASKED}")
    return units


def _computed(replay: Replayed, view: View, name: str) -> object:
    if view.relation not in replay.views:
        return None
    rows = replay.state.rows(
        f"SELECT {object_of(view.columns, 'r')} FROM {place('before', view.relation)} r "
        f"WHERE {object_of(view.key, 'r')} = ?",
        [name],
    )
    return orjson.loads(rows[0][0]) if rows else None


def _held(replay: Replayed, view: View) -> str | None:
    found = replay.state.rows(
        f"SELECT reason FROM quarantine WHERE view = ? AND unit = (SELECT {unit_name(view, 'k')} FROM {_ASKED} k)",
        [view.name],
    )
    return str(found[0][0]) if found else None


def _records(config: ViewsConfig, view: View, name: str, at: State) -> tuple[JudgedRecord, ...]:
    """Return the records of the key that the view's topic has up to what is published at `at`."""
    topic = f"{config.source.topic_prefix}.{view.relation}"
    last = last_position(Position(at.epoch, at.commit, 0), int(at.offset["seq"])).text
    partitions = existing_topics(config.source, [topic]).get(topic, 0)
    found = []
    for message in committed_records(config.source, topic, partitions):
        if message.key() == name.encode():
            value = message.value()
            event = None if value is None else event_of(value) or {}  # empty: no job has written it
            if not event or event["source"]["position"] <= last:
                found.append(Record(message.partition() or 0, message.offset() or 0, event))
    return judged(found)


def _changed(
    replay: Replayed, derivation: Derivation, rows: Sequence[BaseRow], won: JudgedRecord | None
) -> dict[str, object] | None:
    """Say what the last event of the key came from: the newest rows below its step, or the clock that passed them."""
    if won is None or won.transaction is None:
        return None
    limit = won.transaction.partition(":")[0]
    clock_ms = won.committed_at_ms or 0
    before = [row for row in rows if row.position < limit]
    newest = max((row.position for row in before), default=None)
    at_ms = max((row.at_ms or 0 for row in before if row.position == newest), default=0)
    by_clock = bool(before) and clock_ms > at_ms and was_due(replay, derivation, at_ms, clock_ms)
    commit = None if newest is None else newest.rpartition(".")[0]
    causes = [row for row in before if row.position.rpartition(".")[0] == commit]
    return {
        "op": won.op,
        "position": won.position,
        "source_position": limit,
        "clock_ms": clock_ms,
        "clock": by_clock,
        "rows": [] if by_clock else [{**asdict(row), "key": json.loads(row.key)} for row in causes],
    }
