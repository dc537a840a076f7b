"""`cdc token` prints what a writer takes after its commit and a reader waits for (`cdc wait`)."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from cdc.capture.starting.verdicts import of_config
from cdc.cli.terminal import JSON_OPTION
from cdc.config import registry
from cdc.config.config import ConnectorConfig, load_connector
from cdc.model.change import Position
from cdc.model.errors import OperatorError, RetryableError, raise_first
from cdc.model.state import State
from cdc.monitor.status import standing

_TRIES = 3


@click.command()
@click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))
@JSON_OPTION
def token(file: Path, *, as_json: bool) -> None:
    """Print a token for all that was committed at the source before this call: CONNECTOR:POSITION.

    `cdc wait APPLY.yaml --token …` returns when derived stores hold it. On PostgreSQL this commits a message of the
    connector's own into the log, so that an idle database gets there at once; it is never published.
    """
    config = load_connector(file)
    position = _position(config)
    if as_json:
        found = {"token": f"{config.name}:{position.text}", "connector": config.name, "position": position.text}
        click.echo(orjson.dumps(found).decode())
    else:
        click.echo(f"{config.name}:{position.text}")


def _position(config: ConnectorConfig) -> Position:
    """Ask for the log's end until the epoch before and after is the same: a position of another would mean nothing."""
    end = registry.end(config)
    before = _state(config)
    for _ in range(_TRIES):
        commit = end(config, before)
        after = _state(config)
        if after.epoch == before.epoch:
            return Position(after.epoch, commit, 0)
        before = after
    msg = f"connector {config.name} begins new epochs all the while"
    raise RetryableError(msg, hint="cdc status CONNECTOR.yaml says what happens to it")


def _state(config: ConnectorConfig) -> State:
    found = standing(config)
    state: State | None = found.state if found else None
    if state is None:
        raise OperatorError(
            f"connector {config.name} has never run: there is no order yet that a token could be in",
            hint="cdc run CONNECTOR.yaml",
        )
    raise_first(of_config(state, config.binding))
    return state
