"""`cdc consumers` tells how the consumer groups on a connector's topics do; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import orjson

from cdc.cli.terminal import JSON_OPTION, aligned
from cdc.config.config import load_connector
from cdc.model.errors import OperatorError
from cdc.monitor.consumers import Consumers, read_consumers
from cdc.monitor.status import standing


@click.command()
@click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))
@JSON_OPTION
def consumers(file: Path, *, as_json: bool) -> None:
    """Show the consumer groups on a connector's topics: what they have not read, how old that is, and how they do.

    Unread records are counted as a read_committed consumer would be given them; of many, the offsets tell how many
    there are at most (≤). Seconds are the age of the oldest unread event, from its commit at the source. The status is
    told by the last commits of each group, by Burrow's rules: ok, slow, rewound, stalled, stopped, or unknown where the
    commits do not tell. Apply jobs and view jobs have no group: `cdc status` and `cdc view status` show them.
    """
    config = load_connector(file)
    found = standing(config)
    if found is None or found.state is None:
        raise OperatorError(
            f"connector {config.name} has never run: it has no topics that could be consumed",
            hint="cdc run CONNECTOR.yaml",
        )
    told = read_consumers(config, found.state)
    click.echo(orjson.dumps(told.as_json()).decode() if as_json else "\n".join(_lines(told)))
    for group, why in told.unreadable.items():
        click.echo(f"group {_shown(group)}: its offsets cannot be read: {why}", err=True)
    if told.no_commits is not None:
        click.echo(f"when groups have committed is not known: {told.no_commits}", err=True)


def _shown(group: str) -> str:
    """Write a group's name for a terminal: anybody may have called one by characters that steer it."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in group)


def _lines(found: Consumers) -> Iterator[str]:
    if not found.groups:
        yield f"no consumer group has committed an offset of a topic of {found.connector}"
        return
    rows: list[tuple[str, ...]] = [("group", "topic", "members", "records", "seconds", "status")]
    notes = []
    for group in found.groups:
        for topic in group.topics:
            many = f"{'' if topic.exact else '≤'}{topic.records:,}"
            age = "-" if topic.seconds is None else f"{topic.seconds:,.1f}"
            name = _shown(group.group)
            rows.append((name, topic.topic, group.state.lower(), many, age, topic.status.value))
            notes += [f"{name}: {topic.topic}-{of.partition}: {of.note}" for of in topic.partitions if of.note]
    yield from aligned(rows)
    yield from notes
