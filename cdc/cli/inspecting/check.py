"""`cdc check` tests every precondition of a connector at once; it makes nothing anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
import orjson

from cdc.capture.starting import verdicts
from cdc.capture.starting.descriptions import as_published
from cdc.capture.starting.left_out import (
    begins_without,
    could_begin_without,
    goes_on_without,
    is_needed,
    published_before,
    those_named,
)
from cdc.cli.inspecting.destination import Destination, destination_of
from cdc.cli.terminal import JSON_OPTION, LINE, painted, written_out
from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.file_connector import BEGIN_AGAIN, load_any
from cdc.config.findings import Checked, Finding, Level, as_left_out, as_left_out_for_its_topic, probed, refused
from cdc.config.table_patterns import named
from cdc.encode.schema_versions import SchemaVersions
from cdc.formats.wires import wires_of
from cdc.model.change import Table
from cdc.model.errors import CdcError, ConfigError, GapError, OperatorError, TopicError
from cdc.model.hints import CONNECTOR, pasteable, without_topics
from cdc.model.state import State
from cdc.model.wire import places_of
from cdc.rules import outbox
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.flat import Formats
from cdc.rules.routes import Routes


@click.command()
@click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))
@JSON_OPTION
def check(file: Path, *, as_json: bool) -> int:
    """Ask database and Kafka (or a file in its place) for all that a run needs; say what is wrong, and what helps.

    Exit code 0 if a run can start, 1 if something would stop it.
    """
    config = load_any(file)
    named_here = {CONNECTOR: file}
    findings = [replace(of, fix=of.fix and pasteable(of.fix, named_here)) for of in _findings(config)]
    failed = any(finding.level is Level.ERROR for finding in findings)
    if as_json:
        told = [{"level": f.level.value, "about": f.about, "message": f.what, "fix": f.fix} for f in findings]
        click.echo(orjson.dumps({"name": config.name, "ok": not failed, "findings": told}).decode())
    else:
        for finding in findings:
            click.echo(shown(finding, terminal=sys.stdout.isatty()))
    return int(failed)


_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
_AGAIN: Final = 3
"""A connector at work may commit and acknowledge between the look at its position and the look at the source."""


def _findings(config: ConnectorConfig) -> list[Finding]:
    state: State | None = None
    known, findings = True, list[Finding]()
    place = destination_of(config)
    look_at_source = registry.check(config)
    try:
        state = place.position()
        known = config.into is None or state is not None or not Path(config.into.path).exists()
    except CdcError as exc:
        known = False
        findings.append(refused("position", exc))
    ours = state if state is not None and verdicts.is_of_source(state, config.binding) else None
    checked: Checked = look_at_source(config, ours, known=known and ours is state)
    for _ in range(_AGAIN if ours is not None else 0):
        if not any(of.level is Level.ERROR and of.about == "position" for of in checked.findings):
            break
        with suppress(CdcError):
            now = place.position()
            if now is not None and now != state:
                state, checked = now, look_at_source(config, now, known=True)
    findings = [*(_needed(config, finding) for finding in checked.findings), *findings]
    if checked.tables:
        rules = CaptureRules.of_source(config.source)
        beside = {of.about.removeprefix("table ") for of in checked.findings if of.level is not Level.OK}
        wrong = rules.refusals(checked.tables, first=state is None, beside=beside)
        findings += [refused("rules", error) for error in wrong] + [
            Finding(Level.WARNING, "rules", what)
            for what in rules.waiting(checked.tables, beside if state is not None else ())
        ]
        findings += probed("rules", partial(_by_what_was_said, config, place, rules, checked.tables))
        told = dict.fromkeys(beside)
        findings += [refused("outbox", error) for error in outbox.refusals(config.source.outbox, checked.tables, told)]
        formats = Formats.of_sink(config.sink)
        shown = checked.tables if wrong else rules.shown(checked.tables)
        of = formats.refusals(shown, place.topic, first=state is None, beside=beside)
        findings += [refused("format", error) for error in of]
        routes = Routes.of_sink(config.sink, formats.text)
        away = routes.refusals(checked.tables, first=state is None, beside=beside)
        findings += [refused("route", error) for error in away]
    if state is not None:
        findings += [refused("config", refusal) for refusal in verdicts.of_config(state, config.binding)]
    if ours is not None and checked.identity:
        elsewhere = [refused("source", refusal) for refusal in verdicts.of_source(ours, checked.identity)]
        if elsewhere:  # it has no place of the position's, and what helps where one is lost is no help here
            findings = [of for of in findings if of.level is not Level.ERROR or of.about != "position"]
        findings += elsewhere
    tables = checked.tables or tuple(_named(config))
    if config.into is None:
        findings += probed("registry", partial(_by_registry, config, place, checked))
    about = "kafka" if config.into is None else "sink"
    findings += probed(about, partial(place.look, tables, state=state, identity=checked.identity))
    captured = {*state.tables} if state is not None else set[str]()
    if known:
        findings = _as_a_run_takes_them(config, place, findings, checked.tables, captured)
    return list({_told(finding): _in_its_words(config, finding) for finding in findings}.values())


def _needed(config: ConnectorConfig, finding: Finding) -> Finding:
    """Return the finding that a table is left out as an error where it is the outbox: a run ends without it."""
    outbox = config.source.outbox
    if outbox is None or finding.error is None or finding.about != f"table {outbox.table}":
        return finding
    return refused(finding.about, finding.error)


def _in_its_words(config: ConnectorConfig, finding: Finding) -> Finding:
    """Return the finding with what helps where events go to a file."""
    if config.into is None:
        return finding
    return replace(finding, fix=without_topics(finding.fix, BEGIN_AGAIN, of_gap=isinstance(finding.error, GapError)))


def _by_what_was_said(
    config: ConnectorConfig, place: Destination, rules: CaptureRules, tables: Sequence[Table]
) -> Iterator[Finding]:
    """Compare the rules with what was said of the tables: a column may have another name since."""
    if not rules:
        return
    versions = SchemaVersions(
        place.described(), connector=config.name, source="", prefix=config.sink.prefix, database="", rules=rules
    )
    yield from (refused("rules", error) for error in versions.refusals(tables))


def _by_registry(config: ConnectorConfig, place: Destination, checked: Checked) -> Iterator[Finding]:
    """Ask a schema registry, if there is one, and whether it would take the tables' schemas; it learns none."""
    yield from registry.part("sinks.client.schema_registry:check")(config.sink)
    wires = wires_of(config.sink, learns=False)
    if wires is None or not checked.tables:
        return
    rules = CaptureRules.of_source(config.source)
    with closing(registry.source(config)()) as source:
        wires.begin(source.name, source.database or checked.identity.get("database", ""), places_of(source))
    for table, shown, numbers, changed in as_published(place.described(), checked.tables, rules, config.source.outbox):
        try:
            wires.of(shown, place.topic(table), numbers)
        except OperatorError as exc:
            found = refused("registry", exc)
            if changed:
                what = f"{exc.message}; nothing of the table is written behind this change in the log"
                found = replace(found, level=Level.WARNING, what=what)
            yield found


def _as_a_run_takes_them(
    config: ConnectorConfig,
    place: Destination,
    findings: Sequence[Finding],
    tables: Sequence[Table],
    captured: set[str],
) -> list[Finding]:
    """Make warnings of the errors of tables that `cdc run` begins without."""
    topic = place.topic

    def by_pattern(table: str) -> bool:
        return not config.names(table)

    messages = config.source.outbox.table if config.source.outbox is not None else None
    needed = partial(is_needed, outbox=messages, by_pattern=by_pattern, ran_before=bool(captured))
    wrong = {of.error.topic: of.error for of in findings if isinstance(of.error, TopicError)}
    aside = {why.topic for why in goes_on_without(tables, topic, wrong, needed).values()} if wrong else ()
    could = could_begin_without(tables, by_pattern, ())
    if could & captured and any(of.level is Level.ERROR for of in findings):
        could -= {*published_before(list(captured), place.described(by_others=False))}
    else:
        could -= captured
    found, left = list[Finding](), frozenset[str]()
    for finding in findings:
        if isinstance(finding.error, TopicError) and finding.error.topic in aside:
            found.append(as_left_out_for_its_topic(finding))
            continue
        if finding.level is Level.ERROR:
            rest = [table for table in tables if table.qualified not in left]
            new = begins_without(rest, could - left, topic, finding.what)
            left |= new
            if new or those_named(left, tables, topic, finding.what):
                found.append(as_left_out(finding))
                continue
        found.append(finding)
    if not left:
        return found
    out = _topics(topic, [table for table in tables if table.qualified in left])
    out -= _topics(topic, [table for table in tables if table.qualified not in left])
    return [of for of in found if of.level is not Level.OK or of.about not in out]


def _topics(topic: Callable[[Table], str], tables: Sequence[Table]) -> set[str]:
    """Return what findings of tables' topics are about; there is none of a table for whose name Kafka has no room."""
    found = set[str]()
    for table in tables:
        with suppress(ConfigError):
            found.add(f"topic {topic(table)}")
    return found


def _told(finding: Finding) -> tuple[str, ...]:
    """Return what makes two findings one: what is wrong may be found out in two places."""
    what = (str(finding.level), finding.what)
    return (*what, finding.about) if finding.level is Level.OK else what


def _named(config: ConnectorConfig) -> list[Table]:
    """Make tables without columns of the names in the file, for a source that cannot be asked."""
    names = [name.partition(".") for name in named(config.source.tables)]
    return [Table(schema, name, (), ()) for schema, _, name in names]


def shown(finding: Finding, *, terminal: bool) -> str:
    """Write a finding for people: on a terminal the fix has a line of its own, which is pasted whole."""
    level = painted(f"{finding.level:<8}", fg=_COLOURS[finding.level])
    what = written_out(f"{finding.about}: " + finding.what.removeprefix(f"{finding.about}: "))
    before = f"\n{painted('fix:', fg='cyan')}     " if terminal else "; fix: "
    return f"{level} {what}{before + written_out(finding.fix, but=LINE) if finding.fix else ''}"
