"""`cdc verify` compares derived stores with the source, names what differs, and repairs it if asked."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Final

import click
import orjson

from cdc.capture.control.signals import Command
from cdc.cli.terminal import JSON_OPTION, aligned, clear_progress, say, show_progress
from cdc.config import registry
from cdc.config.config import ConnectorConfig, load_apply, load_connector
from cdc.model.audit import asked_by
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.model.hints import APPLY, CONNECTOR, in_hints, of_table
from cdc.model.state import Key, State

MAX_REPAIRED_KEYS: Final = 10_000
"""The most keys of a table that are requested: beyond that, reading the whole table is less work."""
_KEYS_A_COMMAND: Final = 1_000


@click.command()
@click.argument("connector_file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))
@click.argument("apply_file", metavar="APPLY.yaml", type=click.Path(path_type=Path))
@click.option("--table", metavar="SCHEMA.TABLE", help="Only this one.")
@click.option("--store", help="Only this one, by its name in APPLY.yaml.")
@click.option("--repair", is_flag=True, help="Ask the connector to publish the rows that differ again, and only those.")
@JSON_OPTION
def verify(
    connector_file: Path, apply_file: Path, *, table: str | None, store: str | None, repair: bool, as_json: bool
) -> int:
    """Compare derived stores with the source, row by row, while both are written.

    Names the keys that differ, and the columns. A row counts as different only if nothing has changed it while it was
    looked at; one that changes each time is undecided. To tell what is wrong from what is late, connector and job must
    be at work; what is equal can be told without them.

    Exit code 0 where they agree, 1 where they differ.
    """
    connector, config = load_connector(connector_file), load_apply(apply_file)
    if config.source.topic_prefix != connector.sink.prefix:
        raise ConfigError(
            f"{apply_file} follows the topics of prefix {config.source.topic_prefix}, "
            f"and {connector_file} publishes under {connector.sink.prefix}",
            hint="which two files belong together?",
        )
    compare = registry.part("spark_apply.verify.verify:verify")
    on_terminal = sys.stderr.isatty()
    with registry.part("cdc.capture.snapshots.published_rows:open_published")(connector) as published:
        copies: list[Any] = compare(
            config,
            published,
            partial(_standing, connector),
            table=table,
            store=store,
            progress=show_progress if on_terminal else None,
        )
    if on_terminal:
        clear_progress()
    agree = all(copy.agrees for copy in copies)
    _keep(connector, config.name, copies)
    asked = ask_again(connector, connector_file, copies) if repair and not agree else {}
    told = in_hints([copy.as_json() for copy in copies], {CONNECTOR: connector_file, APPLY: apply_file})
    if as_json:
        click.echo(orjson.dumps({"agree": agree, "copies": told, "asked": asked}).decode())
    else:
        for line in report(told):
            say(line)
    for name, count in asked.items():
        say(f"asked {connector.name} for {count:,} rows of {name}; verify again when they have arrived", err=True)
    return int(not agree)


def _keep(connector: ConnectorConfig, job: str, copies: Sequence[Any]) -> None:
    """Keep how many rows differed, for `cdc monitor`; that this fails is told, and changes nothing of the answer."""
    now_ms = time.time_ns() // 1_000_000
    try:
        before = registry.part("sinks.topics.records.verified:read_verified")(connector.sink, job)
        counts = {}
        for copy in copies:
            found, place = copy.as_json(), (copy.store, copy.table)
            differing = sum(len(found[how]) for how in ("differing", "missing", "extra")) + found["unchecked"]
            agreed_ms = now_ms if copy.agrees else before.get(place, {}).get("agreed_ms")
            counts[place] = {
                "at_ms": now_ms, "agrees": copy.agrees, "differing": differing, "agreed_ms": agreed_ms
            }  # fmt: skip
        registry.part("sinks.topics.records.verified:keep_verified")(connector.sink, job, counts)
    except CdcError as exc:
        click.echo(f"what was found could not be kept for cdc monitor: {exc.message}", err=True)
    except Exception as exc:  # noqa: BLE001 - a client's; the answer to the user does not depend on it
        click.echo(f"what was found could not be kept for cdc monitor: {type(exc).__name__}", err=True)


def _standing(connector: ConnectorConfig) -> State:
    state: State | None = registry.part("sinks.topics.records.positions:read_standing")(
        connector.sink, connector.name
    ).state
    if state is None:
        raise OperatorError(f"connector {connector.name} has never run", hint="cdc run CONNECTOR.yaml")
    return state


def ask_again(connector: ConnectorConfig, file: Path, copies: Iterable[Any]) -> dict[str, int]:
    """Request the rows that differ; return how many by table. Raises OperatorError for too many, before any request."""
    wanted: dict[str, dict[Key, None]] = {}
    for copy in copies:
        of = wanted.setdefault(copy.table, {})
        of.update(dict.fromkeys(one.text for one in copy.differences if one.text is not None))
        if copy.unchecked or len(of) > MAX_REPAIRED_KEYS:
            raise OperatorError(
                f"{copy.table}: more than {MAX_REPAIRED_KEYS:,} rows differ, which is too many to ask for one by one",
                hint=of_table(f"cdc snapshot start {quote(str(file))}", copy.table)
                + "  # publishes all its rows again",
            )
    send = registry.part("sinks.topics.records.signals:send_command")
    for name, keys in wanted.items():
        for part in _parts(list(keys)):
            identifier = uuid.uuid4().hex
            command = Command(tables=(name,), keys=tuple(part), by=asked_by(), asked_ms=time.time_ns() // 1_000_000)
            send(connector.sink, connector.name, identifier.encode(), command.to_bytes(identifier))
    return {name: len(keys) for name, keys in wanted.items() if keys}


def _parts(keys: Sequence[Key]) -> Iterable[Sequence[Key]]:
    return (keys[at : at + _KEYS_A_COMMAND] for at in range(0, len(keys), _KEYS_A_COMMAND))


_COUNTS: Final = ("rows", "equal", "differing", "missing", "extra", "undecided")


def report(copies: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Format results of `Copy.as_json` for people."""
    rows = [("table", "store", *_COUNTS)]
    for copy in copies:
        counts = (copy[name] if isinstance(copy[name], int) else len(copy[name]) for name in _COUNTS)
        rows.append((copy["table"], copy["store"], *(f"{count:,}" for count in counts)))
    yield from aligned(rows)
    for copy in copies:
        where = f"{copy['table']} in {copy['store']}"
        held = [_key(key) for key in copy["quarantined"]]
        for one in copy["differing"]:
            yield f"differs    {where}  {_key(one['key'])}  {', '.join(one['columns'])}{_held(one['key'], held)}"
        for what in ("missing", "extra", "undecided"):
            for key in copy[what]:
                yield f"{what:<9}  {where}  {_key(key)}{_held(key, held)}"
        if copy["not_compared"]:
            yield f"{where} was not compared: {copy['not_compared']}"
            if copy["hint"]:
                yield f"  hint: {copy['hint']}"
        if copy["unchecked"]:
            yield f"{where}: {copy['unchecked']:,} more rows differed at first and were not looked at again"
        if copy["unwritable"]:
            yield f"{where}: {copy['unwritable']:,} rows of the source have keys that cannot be written as JSON"


def _held(key: Mapping[str, object], held: Sequence[str]) -> str:
    return "  (in quarantine)" if _key(key) in held else ""


def _key(key: Mapping[str, object]) -> str:
    return orjson.dumps(key).decode()
