"""`cdc tail` prints a connector's committed events as JSON lines."""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import click
import orjson

from cdc.cli.terminal import painted
from cdc.config import registry
from cdc.config.config import ConnectorConfig, load_connector
from cdc.config.table_patterns import splits
from cdc.formats.reading import Reading
from cdc.model.errors import ConfigError, OperatorError
from cdc.rules.routes import Routes, owner

_Record: TypeAlias = tuple[str, int, int, bytes | None, bytes | None]
"""Topic, partition, offset, key and value."""


@click.command()
@click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))
@click.option("--table", "table", metavar="SCHEMA.TABLE", help="This table only.")
@click.option("--dead-letters", is_flag=True, help="The dead letters in place of events; their rows are in Base64.")
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record instead of the next one.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines also on a terminal.")
def tail(
    file: Path, *, table: str | None, dead_letters: bool, from_beginning: bool, most: int | None, as_json: bool
) -> None:
    """Print records as they become visible: topic, partition, offset, key, value; null is a tombstone."""
    if dead_letters and table is not None:
        msg = "--dead-letters are those of all tables: leave out --table"
        raise click.UsageError(msg)
    config = load_connector(file)
    follower = registry.part("sinks.topics.records.follow:Follower")
    reading: Reading = registry.part("sinks.client.schema_registry:open_reading")(config.sink)

    pretty = sys.stdout.isatty() and not as_json
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    unnamed = table is not None and not config.source.captures(table)
    hint = f"{file} has source.tables: {', '.join(config.source.tables)}" if unnamed else None
    pattern = _letters(config) if dead_letters else _topics(config, table)
    hint = "connector.yaml: on_error: dead_letter; without it there are none" if dead_letters else hint
    with follower(config.sink, pattern, from_beginning=from_beginning, hint=hint) as following:
        records = _of_table(following.records(_refuse_to_talk_to_nobody), config, table)
        for count, record in enumerate(_decoded(records, reading), start=1):
            if pretty:
                click.echo(_coloured(record))
            else:
                sys.stdout.buffer.write(orjson.dumps(record) + b"\n")
                sys.stdout.buffer.flush()
            if count == most:
                return


def _refuse_to_talk_to_nobody() -> None:
    """Raise BrokenPipeError if who reads stdout has gone: `cdc tail … | head` ends, though no record comes."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # stdout is no file
        return
    if has_no_reader(number):
        raise BrokenPipeError


def has_no_reader(number: int) -> bool:
    """Whether a file number is that of a pipe, socket or terminal that nobody reads from any more."""
    asked = select.poll()
    asked.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))


def _letters(config: ConnectorConfig) -> str:
    return str(registry.part("sinks.topics.records.follow:of_dead_letters")(config.sink, config.name))


def _topics(config: ConnectorConfig, table: str | None) -> str:
    """Make a regular expression over topic names."""
    if table is None:
        return str(registry.part("sinks.topics.records.follow:any_event")(config.sink))
    if not splits(table):
        raise ConfigError(f"--table {table} is not schema.table", hint="--table public.orders")
    one_table = registry.part("sinks.topics.records.follow:one_table")
    return "|".join(dict.fromkeys(one_table(config.sink, *each) for each in splits(table)))


def _of_table(records: Iterator[_Record], config: ConnectorConfig, table: str | None) -> Iterator[_Record]:
    """Leave out the records of other tables, where a table shares its topic."""
    if table is None or not Routes.of_sink(config.sink).names_source(table):
        yield from records
        return
    ours = owner(table)
    for record in records:
        if ours(record[3] or b""):
            yield record


def _decoded(records: Iterator[_Record], reading: Reading) -> Iterator[dict[str, Any]]:
    for topic, partition, offset, key, value in records:
        try:
            yield {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "key": orjson.loads(reading.json(key)) if key is not None else None,
                "value": orjson.loads(reading.json(value)) if value is not None else None,
            }
        except orjson.JSONDecodeError as exc:
            raise OperatorError(
                f"topic {topic}, partition {partition}, offset {offset}: not JSON, so not written by a connector",
                hint="which other producer writes to this topic? Or is its schema not at sink.registry?",
            ) from exc


def _coloured(record: dict[str, Any]) -> str:
    colours = {"c": "green", "r": "blue", "u": "yellow", "d": "red"}
    value = record["value"]
    event = value if isinstance(value, dict) else {}
    enveloped = {"op", "source"} <= event.keys()
    op = "tombstone" if value is None else str(event["op"]) if enveloped else str(event.get("__op", "row"))
    where = painted(f"{record['topic']}/{record['partition']}@{record['offset']}", dim=True)
    what = painted(op, fg=colours.get(op, "white"), bold=True)
    shown = (event.get("after") or event.get("before") or event.get("message")) if enveloped else event
    body = orjson.dumps(shown).decode() if shown else ""
    return f"{where} {what} {orjson.dumps(record['key']).decode()} {body}"
