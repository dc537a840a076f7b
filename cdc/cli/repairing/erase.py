"""`cdc erase` makes what a deleted row has left in topics go, and says how long derived stores keep it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from cdc.cli.terminal import JSON_OPTION, painted, written_out
from cdc.cli.terminal import say as tell
from cdc.config import registry
from cdc.config.config import load_apply, load_connector
from cdc.machine.stop_signals import unwinding
from cdc.model.errors import OperatorError
from cdc.model.hints import APPLY, CONNECTOR, pasteable

_COLOURS = {"gone": "green", "will be gone": "green", "kept": "red", "cannot be proved": "yellow"}
_WITHIN_S = 300.0


@click.command()
@click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--table", required=True, metavar="SCHEMA.TABLE", help="The source's table.")
@click.option("--key", help="""JSON of the key's columns, {"id": 5}; of a single one also just 5.""")
@click.option(
    "--subject",
    help="In place of --key: whose values are encrypted (source.columns: encrypt). Their key is erased, and no row is.",
)
@click.option(
    "--apply",
    "jobs",
    multiple=True,
    metavar="APPLY.yaml",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Say also how long the stores of this job keep it; one or more.",
)
@click.option(
    "--cut-logs",
    is_flag=True,
    help="Cut the table's log and the dead letters behind the key's last event: older events of other rows go with it.",
)
@click.option("--wait", is_flag=True, help="Until brokers have removed the files, too: a minute or more.")
@click.option(
    "--within", default=_WITHIN_S, show_default=True, metavar="SECONDS", help="How long to wait for compaction."
)
@JSON_OPTION
def erase(
    file: Path,
    *,
    table: str,
    key: str | None,
    subject: str | None,
    jobs: tuple[Path, ...],
    cut_logs: bool,
    wait: bool,
    within: float,
    as_json: bool,
) -> None:
    """Make all traces of a row go whose delete has reached Kafka, and report place by place.

    With --subject the key goes that a person's values are encrypted under: they are unreadable then, also in logs that
    are kept for ever.

    Topics are compacted now, so that older events of the row are gone and not just replaced. Exit code 1 if something
    is kept until somebody does something; the report says what. Also if nobody has, or had, a key of the subject.
    """
    if (key is None) == (subject is None):
        raise click.UsageError("one of --key and --subject is needed")
    if subject is not None and (jobs or cut_logs):
        raise click.UsageError("--subject erases a key and nothing else: --apply and --cut-logs go with --key")
    config = load_connector(file)

    def say(what: str) -> None:
        tell(pasteable(what, {CONNECTOR: file}), err=True)

    stores = [place for job in jobs for place in _of_stores(job, table, key or "")]
    with unwinding():
        if subject is not None:
            places = registry.part("sinks.erasure.shred:shred")(config, table, subject, within_s=within, say=say)
        else:
            erased = registry.part("sinks.erasure.erase:erase")
            places = erased(config, table, key, cut_logs=cut_logs, within_s=within, say=say)
    found = [*_pasteable((place.as_json() for place in places), {CONNECTOR: file}), *stores]
    if wait:
        _wait(found)
    if as_json:
        click.echo(orjson.dumps({"table": table, "places": found}).decode())
    else:
        _print(found)
    kept = sum(place["verdict"] == "kept" for place in found)
    if kept:
        raise OperatorError(
            f"{kept} of {len(found)} places still have something of it",
            hint="the report says what, until when, and what to do",
        )
    if subject is not None and places[0].verdict == "cannot be proved":
        raise OperatorError(
            f"nobody has, or had, a key of this subject of {table}: nothing was erased",
            hint=f"--subject as the rows of {table} have it, letter by letter; the report names other places. A "
            "subject whose encrypted columns were always null has no key",
        )


def _of_stores(job: Path, table: str, key: str) -> list[dict[str, Any]]:
    leftovers = registry.part("spark_apply.verify.leftovers:leftovers")
    return _pasteable(leftovers(load_apply(job), table, key), {APPLY: job})


def _pasteable(found: Iterable[dict[str, Any]], files: Mapping[str, Path]) -> list[dict[str, Any]]:
    return [{**place, "what": pasteable(place["what"], files)} for place in found]


def _wait(found: list[dict[str, Any]]) -> None:
    """Wait for what brokers remove by themselves within minutes, which are topics; a time that has passed is `gone`."""
    soon = [place for place in found if place["verdict"] == "will be gone" and place["place"].startswith("topic ")]
    last_ms = max((place["by_ms"] for place in soon), default=0)
    while (left_s := last_ms / 1000 - time.time()) > 0:
        click.echo(f"waiting {left_s:.0f} s until the broker has removed the files", err=True)
        time.sleep(min(left_s + 1, 20))
    for place in soon:
        place["verdict"] = "gone"


def _print(found: list[dict[str, Any]]) -> None:
    width = max(len(written_out(place["place"])) for place in found)
    for place in found:
        verdict = painted(f"{place['verdict']:<17}", fg=_COLOURS[place["verdict"]])
        by = ""
        if place["by_ms"] is not None:
            by = datetime.fromtimestamp(place["by_ms"] / 1000, UTC).isoformat(timespec="seconds")
        click.echo(f"{written_out(place['place']):<{width}}  {verdict}{by:<27}{written_out(place['what'])}")
