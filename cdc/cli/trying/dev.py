"""``cdc dev`` runs PostgreSQL, MySQL, MariaDB, Kafka, OpenSearch and a schema registry here, without containers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".cdc-dev"),
    show_default=True,
    help="Folder for data, logs and ports.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def dev() -> None:
    """Throw-away servers on this machine, without containers."""


@dev.command()
@click.argument("servers", nargs=-1)
@_DIRECTORY
@_JSON
def up(servers: tuple[str, ...], directory: Path, *, as_json: bool) -> None:
    """Start SERVERS and leave them running; those that run are kept.

    SERVERS are postgres (18), postgres16, postgres18, mysql, mariadb, mariadb11, etcd, kafka, opensearch, registry (a
    schema registry in memory); by default postgres and kafka. Printed are their urls, with the password that was drawn
    for this folder. A mysqld, mariadbd or etcd on the path is used if it is new enough (8.4; 10.6, for mariadb11 11.4;
    3.5.13), else Debian's MySQL 9.7, MariaDB 10.11 and 11.8, etcd 3.5 are fetched.
    """
    from cdc.dev import debs, jars, stack  # noqa: PLC0415 - the command line must start fast

    wanted = servers or stack.DEFAULT_SERVERS
    stack.canonical(wanted)
    if not (jars.cache_folder() / "jars").exists():
        _progress("a first start downloads the servers' jars: a minute or two")
    if any(not debs.WANTED[name].folder.exists() for name in wanted if name in debs.WANTED):
        _progress("a first start may download a server's packages: a minute")
    stack.up(directory, servers=wanted, foreground=False, progress=_progress)
    running = stack.status(directory)
    _print({name: running[stack.ALIASES.get(name, name)] for name in dict.fromkeys(wanted)}, as_json=as_json)


@dev.command()
@_DIRECTORY
@_JSON
def down(directory: Path, *, as_json: bool) -> None:
    """Stop all servers of the folder; their data stays."""
    from cdc.dev import stack  # noqa: PLC0415 - the command line must start fast

    stopped = stack.down(directory)
    if as_json:
        click.echo(json.dumps({"stopped": list(stopped)}))
    else:
        click.echo("\n".join(f"{name} stopped" for name in stopped) or f"nothing runs in {directory.absolute()}")


@dev.command()
@_DIRECTORY
@_JSON
def status(directory: Path, *, as_json: bool) -> None:
    """Show which servers of the folder run, and where."""
    from cdc.dev import stack  # noqa: PLC0415 - the command line must start fast

    _print(stack.status(directory), as_json=as_json)
    if not as_json and (programs := stack.programs(directory)):
        click.echo()
        _table("name", "program", programs)


def _print(urls: dict[str, str | None], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(urls))
    else:
        _table("name", "url", {name: url or "(stopped)" for name, url in urls.items()})


def _table(left: str, right: str, rows: dict[str, str]) -> None:
    width = max((len(name) for name in rows), default=4) + 2
    for first, second in ((left, right), *rows.items()):
        click.echo(f"{first:<{width}}{second}")


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(line, err=True)
