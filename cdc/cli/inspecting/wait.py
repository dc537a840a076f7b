"""`cdc wait` returns when derived stores hold what a token stands for."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from cdc.cli.terminal import JSON_OPTION, say, seconds_of
from cdc.config import registry
from cdc.config.config import ApplyConfig, load_apply
from cdc.model.change import Position
from cdc.model.errors import ConfigError
from cdc.model.hints import APPLY, pasteable

_TOKEN = re.compile(r"(?P<connector>[a-z][a-z0-9_-]{0,39}):(?P<position>[0-9a-f]{8}\.[0-9a-f]{16}\.[0-9a-f]{8})")

_ENDED = (
    "of a view, cdc view status with its job's file says why it is stopped; a table was dropped, renamed or is not in "
    "source.tables: capture it again, or take it out of the tables of APPLY.yaml"
)


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    found = seconds_of(value)
    if found is None:
        raise click.BadParameter(f"“{value}” is no time; write 500ms, 5s or 2m")
    return found


@click.command()
@click.argument("file", metavar="APPLY.yaml", type=click.Path(path_type=Path))
@click.option("--token", required=True, help="What `cdc token` printed.")
@click.option("--store", "stores", multiple=True, help="This store; all that follow the connector by default.")
@click.option("--timeout", "timeout_s", default="5s", callback=_seconds, show_default=True, help="500ms, 5s, 2m.")
@JSON_OPTION
def wait(file: Path, *, token: str, stores: tuple[str, ...], timeout_s: float, as_json: bool) -> int:
    """Return as soon as the stores hold all that was committed at the source before the token was taken.

    Exit code 0 then, 1 at the timeout, with what is complete; 1 before it, if all that is missing is of tables that
    their connector captures no more. A view that is stopped is waited for, as its job tries it again, and then named.
    """
    config = load_apply(file)
    parsed = _TOKEN.fullmatch(token.strip())
    if parsed is None:
        raise ConfigError("--token: that is no token", hint='--token "$(cdc token CONNECTOR.yaml)"')
    unknown = [store for store in stores if store not in config.stores]
    if unknown:
        raise ConfigError(
            f"--store {unknown[0]}: there is no such store", hint=f"of {file}: {', '.join(config.stores)}"
        )
    begun = time.monotonic()
    asked, late = _await(config, parsed["connector"], parsed["position"], stores, timeout_s)
    waited_s = round(time.monotonic() - begun, 3)
    entries = registry.part("spark_apply.events.quarantine:read_entries")(config).values()
    held = Counter(entry.store for entry in entries if entry.store in asked)
    if as_json:
        behind = {store: at.complete.position if at.complete else None for store, at in late.items()}
        found = {"reached": not late, "waited_seconds": waited_s, "behind": behind, "quarantined": held}
        click.echo(orjson.dumps(found).decode())
    elif not late:
        what = f"all of {parsed['connector']} before {parsed['position']}"
        click.echo(f"reached after {waited_s:g} s: {', '.join(asked)} hold {what}")
    for store, count in held.items():
        held_back = f"store {store} does not have {count:,} events that are in quarantine: cdc quarantine list {APPLY}"
        click.echo(pasteable(held_back, {APPLY: file}), err=True)
    for store, at in late.items():
        message, hint = _why(store, at, Position.parse(parsed["position"]))
        say(message if at.ended else f"not within {timeout_s:g} s: {message}", err=True)
        say(f"hint:  {pasteable(hint, {APPLY: file})}", err=True)
    return int(bool(late))


def _await(
    config: ApplyConfig, connector: str, position: str, stores: tuple[str, ...], timeout_s: float
) -> tuple[Sequence[str], dict[str, Any]]:
    """Wait; return the stores that were waited for, and those that were late."""
    with registry.part("spark_apply.job.watermarks.progress:Reader")(config) as reader:
        followers = [store for store, connectors in reader.stores().items() if connector in connectors]
        if not stores and not followers:
            known = sorted({name for names in reader.stores().values() for name in names})
            msg = f"no store of this file follows a table of connector {connector}"
            raise ConfigError(msg, hint=f"known here: {', '.join(known) or 'none'}")
        asked = stores or followers
        late: dict[str, Any] = reader.await_position(connector, position, asked, timeout_s=timeout_s)
        return asked, late


def _why(store: str, at: Any, wanted: Position) -> tuple[str, str]:  # noqa: ANN401 - StoreProgress
    """Say what a store does not have yet, and where to look."""
    if at.remade:
        return f"store {store} has copies of other topics: {', '.join(at.remade)}", "cdc apply APPLY.yaml --plan"
    if at.ended:
        return f"store {store} holds it but for tables that do not go on: {', '.join(at.ended)}", _ENDED
    if at.incomplete:
        hint = "is `cdc apply` running, with this file? These tables are read from the beginning, or from the source"
        return f"store {store} is not complete yet: {', '.join(at.incomplete)}", hint
    there = Position.parse(at.complete.position)
    if there.epoch > wanted.epoch:
        hint = "write again if the row is not there, and take a new token"
        return f"the token is of epoch {wanted.epoch}, store {store} is in {there.epoch}: the source failed over", hint
    fresh = at.complete.source_ms
    age = "" if fresh is None else f", {max(0.0, time.time() - fresh / 1000):.1f} s behind the source"
    by = (
        f"{wanted.commit - there.commit:,} bytes of log before the token" if there.epoch == wanted.epoch else "an epoch"
    )
    message = f"store {store} is complete up to {there.text}, {by}{age}"
    return (
        message,
        "cdc status APPLY.yaml: does it move? Then `cdc apply` is behind; else are connector and job running?",
    )
