"""``cdc view`` keeps views of captured tables up to date, and publishes them as topics."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import click

from cdc.cli.ending import code_of_part
from cdc.cli.logs import JSON, LOG_FORMAT, errors_logged
from cdc.cli.running.apply import Told
from cdc.cli.running.explained_view import told, why_no_record
from cdc.cli.terminal import ALIVE_S, JSON_OPTION, Alive, aligned, clear_progress, say, show_progress
from cdc.machine.flag import Flag
from cdc.machine.stop_signals import HangUps, stopping
from cdc.model.errors import ConfigError, OperatorError
from cdc.telemetry.json_log import Place

_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group()
def view() -> None:
    """Keep views up to date: joins, aggregates, windows and deadlines over captured tables, as topics of their own."""


@view.command()
@_FILE
@JSON_OPTION
def check(file: Path, *, as_json: bool) -> None:
    """Check each view of FILE (views.yaml) against the schema topic; make nothing."""
    _plan(file, as_json=as_json, brief=True)


@view.command()
@_FILE
@JSON_OPTION
def plan(file: Path, *, as_json: bool) -> None:
    """Say how each view of FILE is kept up to date: what it reads, and what a change computes again; make nothing."""
    _plan(file, as_json=as_json, brief=False)


@view.command()
@_FILE
@click.option("--once", is_flag=True, help="Take all that is in the topics now, then end.")
@JSON_OPTION
@LOG_FORMAT
def run(file: Path, *, once: bool, as_json: bool, log_format: str) -> int:
    """Keep the views of FILE (views.yaml) up to date, and publish what changes in them, exactly once.

    Reads the tables' topics and follows them until Ctrl-C. May be stopped, killed and started again at any time. SIGHUP
    changes nothing: FILE is read at the start. Exit code 1 if a view is stopped at the end.
    """
    place, stop = Place(), Flag()
    with errors_logged(log_format, place), stopping(stop), HangUps() as hang_ups:  # before anything slow is imported
        from cdc.cli.running.monitored import monitored_job  # noqa: PLC0415 - the command line must start fast

        config = _load(file)
        place.is_of(apply=config.name, connector=config.source.topic_prefix)
        as_lines = log_format == JSON
        told = Told(config.name, live=sys.stderr.isatty() and not as_lines, place=place if as_lines else None)
        hang_ups.heard_by(told.hung_up)
        with Alive(told.say, every_s=ALIVE_S), monitored_job(config, place, told) as meter:
            run_views = importlib.import_module("spark_apply.views.job").run_views
            run = run_views(config, once=once, meter=meter, progress=told, stop=stop)
        told.done()
    summary = run.as_json()
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo(
            f"{summary['events']:,} events in {summary['steps']} steps, {summary['seconds']:.1f} s; "
            f"position {summary['position'] or '-'}"
        )
        for name, why in summary["stopped"].items():
            say(f"view {name} is stopped: {why}")
    return int(bool(summary["stopped"])) or code_of_part(stop.signal if once else None, took_all=run.took_all)


@view.command()
@_FILE
@JSON_OPTION
def status(file: Path, *, as_json: bool) -> None:
    """Say up to which source position the views of FILE are published, how fresh that is, and what is stopped."""
    config = _load(file)
    found = importlib.import_module("spark_apply.views.publishing.status").view_status(config)
    if as_json:
        click.echo(json.dumps(found))
        return
    fresh = "-" if found["freshness_seconds"] is None else f"{found['freshness_seconds']:,} s behind the source"
    click.echo(f"{'position':<12}{found['position'] or '-'}\n{'freshness':<12}{fresh}")
    click.echo(f"{'engine':<12}{found['engine']}")
    rows = [("view", "topic", "generation", "rows", "quarantined units", "late events", "computed", "state")]
    for name, of in found["views"].items():
        cells = ("-" if of[part] is None else f"{of[part]:,}" for part in ("generation", "rows", "quarantined", "late"))
        computed = {"whole": "whole", "units": "by units"}.get(of["computed"] or "", "-")
        state = (
            f"stopped: {of['stopped']}" if of["stopped"] else "published" if of["published"] else "not published yet"
        )
        rows.append((name, of["topic"], *cells, computed, state))
    click.echo("\n".join(aligned(rows)))
    for name, of in found["streams"].items():
        if of["unreadable"]:
            click.echo(f"stream {name}: {of['unreadable']:,} records were no events of it")


@view.command()
@_FILE
@click.option("--view", "name", metavar="NAME", help="Only this one.")
@click.option("--repair", is_flag=True, help="Have the view job compute again what differs, and publish it.")
@JSON_OPTION
def verify(file: Path, *, name: str | None, repair: bool, as_json: bool) -> int:
    """Compare the views of FILE with Spark's answer over the tables' topics, while the job runs or not.

    Tables are folded from their topics up to the position that is published, and the SQL is run over them with the
    clock of that position; the job's state is not looked at.

    With --repair a view that differs is computed again as a whole, and what differs from its topic is published: by the
    job where one runs, else by one that runs here until it is done.

    Exit code 0 where they agree, 1 where they differ, also if that was put right: verify again.
    """
    config = _load(file)
    on_terminal = sys.stderr.isatty()
    run_verify = importlib.import_module("spark_apply.views.proof.verify").verify_views
    found = [of.as_json() for of in run_verify(config, only=name, progress=show_progress if on_terminal else None)]
    if on_terminal:
        clear_progress()
    repaired: list[str] = []
    if repair:
        part = importlib.import_module("spark_apply.views.rebuild").repair_views
        repaired = part(config, found, progress=show_progress if on_terminal else None)
        if on_terminal:
            clear_progress()
    agree = not any(of[part] for of in found for part in ("missing", "extra", "different", "failed"))
    if as_json:
        click.echo(json.dumps({"agree": agree, "views": found, "repaired": repaired}))
        return int(not agree)
    parts = ("view", "rows", "missing", "extra", "different", "quarantined")
    rows: list[tuple[str, ...]] = [parts, *(tuple(str(of[part]) for part in parts) for of in found)]
    click.echo("\n".join(aligned(rows)))
    for of in found:
        if of["failed"]:
            say(f"{of['view']}: {of['failed']}")
        for one in of["keys"]:
            say(f"{of['view']}: {one['how']}: {one['key']}")
    for each in repaired:
        click.echo(f"{each} was computed again, and what differed is published; verify again", err=True)
    return int(not agree)


@view.command()
@_FILE
@click.option("--view", "names", multiple=True, metavar="NAME", help="Only this one; may be given more than once.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and publish nothing.")
@click.option("--rollback", is_flag=True, help="Go back to the definition of the generation before.")
@JSON_OPTION
def rebuild(file: Path, *, names: tuple[str, ...], dry_run: bool, rollback: bool, as_json: bool) -> int:
    """Publish views of FILE (views.yaml) by definitions that are not those that they are published by.

    Without --view these are all that were edited. First the difference is found beside, from the topics. Then the view
    job publishes it in one transaction: one that runs takes the definition over from here, where none does one runs
    here until it is done. Readers see the old rows or the new ones.

    Exit code 0 if it is published. With --dry-run 0 where no row would change, 1 where some would.
    """
    config = _load(file)
    on_terminal = sys.stderr.isatty()
    run_rebuild = importlib.import_module("spark_apply.views.rebuild").rebuild_views
    done = run_rebuild(
        config, only=names, rollback=rollback, dry_run=dry_run, progress=show_progress if on_terminal else None
    ).as_json()
    if on_terminal:
        clear_progress()
    if as_json:
        click.echo(json.dumps(done))
        return int(dry_run and done["differs"])
    parts = ("view", "generation", "added", "changed", "removed")
    rows = [parts, *(tuple("-" if of[part] is None else str(of[part]) for part in parts) for of in done["views"])]
    click.echo("\n".join(aligned(rows)) if done["views"] else "the definitions are those that are published")
    for of in done["views"]:
        for one in of["keys"]:
            say(f"{of['view']}: {one['how']}: {one['key']}")
    if rollback and not dry_run:
        click.echo("write the definition back into the file: until then a start of the job is refused", err=True)
    return int(dry_run and done["differs"])


@view.command()
@_FILE
@click.option("--view", "name", required=True, metavar="NAME", help="The view.")
@click.option("--key", required=True, help="""JSON of the key's columns, {"id": 5}; of a single one also just 5.""")
@JSON_OPTION
def explain(file: Path, *, name: str, key: str, as_json: bool) -> None:
    """Show a row of a view as it is published and as its SQL gives it, and the rows of tables that it comes from.

    Reads the topics of the view and of what it reads, up to the position that is published; the job may run meanwhile.
    Exit code 1 if the view's topic has no record of the key.
    """
    config = _load(file)
    on_terminal = sys.stderr.isatty()
    run_explain = importlib.import_module("spark_apply.views.proof.explain").explain_view
    found = run_explain(config, name, key, progress=show_progress if on_terminal else None).as_json()
    if on_terminal:
        clear_progress()
    click.echo(json.dumps(found, ensure_ascii=False) if as_json else "\n".join(told(found)))
    if not found["records"]:
        raise OperatorError(f"topic {found['topic']} has no record of this key", hint=why_no_record(found))


def _load(file: Path) -> Any:  # noqa: ANN401 - cdc.config.views.ViewsConfig, which is imported late
    from cdc.config.views import load_views  # noqa: PLC0415 - the command line must start fast

    config = load_views(file)
    for module, name in (("pyspark", "pyspark"), ("duckdb", "duckdb"), ("sqlglot", "sqlglot")):
        if importlib.util.find_spec(module) is None:
            msg = f"{name} is not installed; views need it"
            raise ConfigError(msg, hint="pip install 'cdc-toolkit[spark]'")
    return config


def _plan(file: Path, *, as_json: bool, brief: bool) -> None:
    config = _load(file)
    found: dict[str, Any] = importlib.import_module("spark_apply.views.planning.planned").describe_views(config)
    if as_json:
        click.echo(json.dumps(found))
        return
    if not brief:
        click.echo(f"computed by {found['engine']}")
    for name, of in found["views"].items():
        columns = ", ".join(f"{column} {kind}" for column, kind in of["columns"].items())
        say(f"{name}: reads {', '.join(of['reads'])}; {columns}")
        for warning in of["warnings"]:
            say(f"  warning: {warning}")
        for node in () if brief else of["nodes"]:
            units = f"by {', '.join(node['units'])}" if node["units"] else "as a whole"
            due = ", and when its deadlines pass" if node["deadlines"] else ""
            say(f"  {node['name']}: computed again {units}, when {', '.join(node['reads'])} change{due}")
            for what in node["stops"]:
                say(f"    it stops where {what}")
