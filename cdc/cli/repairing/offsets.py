"""`cdc offsets` shows, exports and imports where a connector or an apply job stands."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import orjson

from cdc.cli.noted import note
from cdc.cli.terminal import JSON_OPTION, aligned
from cdc.config import registry
from cdc.config.config import ConnectorConfig, describes_apply, load_apply, load_connector
from cdc.config.views import describes_views
from cdc.model.audit import asked_by
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.hints import APPLY, CONNECTOR, pasteable
from cdc.model.interfaces import Shared
from cdc.monitor.status import connector_status, instant, standing
from cdc.offsets.exported import Exported, of_state
from cdc.offsets.moved_position import move, place

_FILE = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
_WATCHED_S: Final = 1.0


@click.group()
def offsets() -> None:
    """Show, export and import where a connector or an apply job stands: its position, or its checkpoint's offsets.

    FILE is connector.yaml or apply.yaml: its keys tell.
    """


@offsets.command()
@_FILE
@JSON_OPTION
def show(file: Path, *, as_json: bool) -> None:
    """Show a connector's position in the source's log, or up to where an apply job has read its topics."""
    found = _exported(file)
    if as_json:
        click.echo(orjson.dumps(found.to_json()).decode())
        return
    if found.of == "connector":
        source_at = instant(found.source_ms) if found.source_ms else "not known yet"
        rows = [
            ("connector", found.name),
            ("phase", found.phase),
            ("epoch", str(found.epoch)),
            ("position", place(found.offset)),
            ("source at", source_at),
            ("of", ", ".join(f"{what} {value}" for what, value in found.identity.items())),
            ("tables", f"{len(found.tables)}"),
        ]
    else:
        rows = [
            ("topic", "offsets by partition"),
            *((topic, " ".join(f"{n}:{end}" for n, end in of.items())) for topic, of in sorted(found.ends.items())),
        ]
    click.echo("\n".join(aligned(rows)))


@offsets.command()
@_FILE
def export(file: Path) -> None:
    """Print as JSON, for `cdc offsets import`, where a connector or an apply job stands now; it may run meanwhile."""
    click.echo(orjson.dumps(_exported(file).to_json(), option=orjson.OPT_INDENT_2).decode())


@offsets.command(name="import")
@_FILE
@click.argument("exported_file", metavar="OFFSETS.json", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Do it though changes are published or read again, or never.")
@JSON_OPTION
def import_(file: Path, exported_file: Path, *, force: bool, as_json: bool) -> None:
    """Let a connector, or an apply job, that is down stand where it stood when OFFSETS.json (- is stdin) was exported.

    What would be published or read again, or never, is said, and refused without --force. Never taken are the offsets
    of another connector, job, server, epoch or topic, those that lie outside of the log, and a file that was edited.
    While the connector or the job is at work nothing is imported.
    """
    try:
        text = sys.stdin.buffer.read() if str(exported_file) == "-" else exported_file.read_bytes()
    except OSError as exc:
        raise ConfigError(f"{exported_file}: cannot be read: {exc.strerror}") from exc
    of_apply, reads_again = _is_of_apply(file), False
    exported = Exported.from_json(text, where=str(exported_file), of=APPLY if of_apply else CONNECTOR)
    if of_apply:
        config = load_apply(file)
        moved = _job().import_offsets(config, exported, force=force)
        kind, means, more = moved.kind, moved.means, {"kept": moved.kept}
        if kind != "same":
            exported_at = datetime.fromtimestamp(exported.at_ms / 1000, UTC).isoformat(timespec="seconds")
            note(config, "offsets import", {"meant": kind, "exported_at": exported_at, "topics": len(exported.ends)})
    else:
        done = _move(load_connector(file), exported, force=force)
        kind, means, reads_again, more = done.kind, done.means, done.reads_again, {}
    if as_json:
        click.echo(orjson.dumps({"name": exported.name, "did": kind, "means": means, **more}).decode())
        return
    click.echo(means if kind == "same" else f"imported: {means}", err=True)
    if more.get("kept"):
        click.echo(f"the checkpoint as it was is kept as {more['kept']}", err=True)
    if reads_again:
        hint = "cdc snapshot start CONNECTOR.yaml  # puts topics right: tables are read again"
        click.echo(f"hint:  {pasteable(hint, {CONNECTOR: file})}", err=True)


def _move(config: ConnectorConfig, exported: Exported, *, force: bool) -> Any:  # noqa: ANN401 - cdc.capture's Move
    if exported.of == "connector" and exported.prefix != config.sink.prefix:
        raise ConfigError(
            f"the offsets are of topic prefix {exported.prefix}, connector {config.name} has {config.sink.prefix}",
            hint="cdc offsets show CONNECTOR.yaml",
        )
    sink = registry.sink(config.sink, config.name, logs=config.logs)
    with closing(sink), closing(registry.source(config)()) as source:
        if not isinstance(source, Shared):
            _refuse_at_work(config)
        return move(source, sink, exported, config=config.binding, force=force, by=asked_by())


def _refuse_at_work(config: ConnectorConfig) -> None:
    """Raise OperatorError for a connector that commits, whose source tells nobody who follows it.

    One that has committed a moment ago is watched: it has ended, or commits again.
    """
    at = connector_status(config)
    if at["running"]:
        click.echo(f"connector {config.name} has committed a moment ago: it is watched whether it does again", err=True)
    while at["running"]:
        time.sleep(_WATCHED_S)
        before, at = at["committed_at"], connector_status(config)
        if at["running"] and at["committed_at"] != before:
            raise OperatorError(
                f"connector {config.name} is at work: it commits, would be fenced, and go on from where it was",
                hint="stop it, then import again",
            )


def _exported(file: Path) -> Exported:
    if _is_of_apply(file):
        found: Exported = _job().export(load_apply(file))
        return found
    config = load_connector(file)
    at = standing(config)
    if at is None or at.state is None:
        raise OperatorError(f"connector {config.name} has never run: it has no position", hint="cdc run CONNECTOR.yaml")
    return of_state(at.state, prefix=config.sink.prefix, at_ms=time.time_ns() // 1_000_000)


def _is_of_apply(file: Path) -> bool:
    if describes_views(file):
        raise ConfigError(
            f"{file} is the file of a view job: what it has read is one with its state, and is not moved",
            hint="cdc view status VIEWS.yaml",
        )
    return describes_apply(file)


def _job() -> Any:  # noqa: ANN401 - spark_apply.replay.offsets, which is imported late
    return importlib.import_module("spark_apply.replay.offsets")
