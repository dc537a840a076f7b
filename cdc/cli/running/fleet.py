"""`cdc fleet` shares connectors among machines: members run them, and take over from one that is gone."""

from __future__ import annotations

import difflib
import random
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import click
import orjson

from cdc.cli.ending import files_of
from cdc.cli.logs import LOG_FORMAT, TEXT, errors_logged, log_to_stderr
from cdc.cli.running.monitored import monitored_member
from cdc.cli.terminal import JSON_OPTION, aligned, instant
from cdc.config import registry
from cdc.fleet.children import Children
from cdc.fleet.clash import clashes, doubts
from cdc.fleet.entry import CONNECTOR, STATUS, Entries, Entry, entry_of, free_places, read_entries
from cdc.fleet.fleet_config import FleetConfig, load_fleet
from cdc.fleet.member import Member
from cdc.fleet.roster import Reason
from cdc.fleet.seams import Fleet
from cdc.fleet.standing import Status, standing
from cdc.machine.stop_signals import HangUps
from cdc.model.audit import Act, asked_by
from cdc.model.errors import ConfigError
from cdc.model.hints import pasteable
from cdc.telemetry.json_log import Place

_LOOKS: Final = 20
_PATIENCE: Final = 3
_F = TypeVar("_F", bound=Callable[..., Any])


def _of_fleet(command: _F) -> _F:
    """Give a command the options that say which fleet is meant, and where."""
    options = (
        click.option("--fleet", "name", metavar="NAME", envvar="CDC_FLEET", help="The fleet's name; or CDC_FLEET."),
        click.option(
            "--bootstrap-servers",
            "servers",
            metavar="HOST:PORT,...",
            envvar="CDC_BOOTSTRAP_SERVERS",
            help="The brokers that the fleet is on; or CDC_BOOTSTRAP_SERVERS.",
        ),
        click.option(
            "--config",
            "file",
            metavar="FLEET.yaml",
            envvar="CDC_FLEET_CONFIG",
            type=click.Path(path_type=Path),
            help="A file with both, and the client's properties (TLS, login); or CDC_FLEET_CONFIG.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def fleet() -> None:
    """Share connectors among any number of machines, which take over from one another.

    Connectors are entries of a topic; each `cdc fleet run` is a member. Kafka's group protocol gives each
    connector to one member, and to another one when that is gone. Nothing else is needed.
    """


@fleet.command()
@_of_fleet
@click.option("--member", metavar="NAME", help="This member's name; else the host's, with some letters behind it.")
@click.option("-v", "--verbose", is_flag=True, help="Log each commit.")
@LOG_FORMAT
def run(
    *, name: str | None, servers: str | None, file: Path | None, member: str | None, verbose: bool, log_format: str
) -> None:
    """Be a member: run those connectors that the group gives to it, each as a process, until stopped.

    It waits for brokers that are away and for a fleet that has no topic yet. A connector that fails is started again
    after a pause, by itself. SIGTERM stops the connectors and gives their places to others at once. SIGHUP has them
    read again what their references name.
    """
    with errors_logged(log_format, Place()), HangUps() as hang_ups:
        config = load_fleet(file, fleet=name, bootstrap_servers=servers)
        called = member or f"{socket.gethostname().partition('.')[0]}-{secrets.token_hex(3)}"
        log_to_stderr(log_format, Place(fleet=config.fleet, member=called), verbose=verbose)
        flags = ["--verbose"] * verbose + ([] if log_format == TEXT else [f"--log-format={log_format}"])
        found, metrics = _open(config), config.metrics.address is not None
        with (
            Children(flags, metrics=metrics) as children,
            monitored_member(config, called, children.folder, found) as meter,
        ):
            running = Member(found, called, children, meter)

            def stop(_number: int, _frame: FrameType | None) -> None:
                running.stop()

            signal.signal(signal.SIGINT, stop)
            signal.signal(signal.SIGTERM, stop)
            hang_ups.heard_by(running.hang_up)
            running.run()


@fleet.command()
@click.argument("files", nargs=-1, required=True, metavar="CONNECTOR.yaml...", type=click.Path(path_type=Path))
@_of_fleet
@click.option(
    "--replace", is_flag=True, help="Take the place of an entry of the same name: its connector is restarted."
)
@click.option(
    "--force",
    is_flag=True,
    help="Add what may be right: a name nearly that of another entry, a slot or server_id of another server.",
)
def add(
    files: tuple[Path, ...], *, name: str | None, servers: str | None, file: Path | None, replace: bool, force: bool
) -> None:
    """Add connectors: their files as they are now, without comments. The first one makes the fleet's topic.

    All files are checked first, and beside the entries of every fleet of these brokers: if one is wrong, or shares with
    another what just one may have, nothing is added. A secret must be a reference, ${NAME} or ${file:/path}, which each
    member resolves where it runs.
    """
    config = load_fleet(file, fleet=name, bootstrap_servers=servers)
    found = _open(config)
    there = _entries(found.read() or {})
    others = {other: _entries(found.read(other) or {}) for other in found.fleets() if other != config.fleet}
    places = iter(free_places(there.places(), len(files)))
    added: list[Entry] = []
    for each in files:
        entry = _placed(entry_of(each, place=0, added_ms=time.time_ns() // 1_000_000), there, places, replace=replace)
        beside = [one for one in there.good.values() if not (replace and one.name == entry.name)]
        if entry.name in there.refused and not replace:
            raise ConfigError(
                f"{each}: connector {entry.name} is there already, and is run by nobody: "
                f"{there.refused[entry.name].message}",
                hint="cdc fleet add --replace CONNECTOR.yaml takes its place",
            )
        for rule in (clashes,) if force else (clashes, doubts):
            _refuse(each, rule(entry, [*beside, *added]))
            for other, of in others.items():
                _refuse(each, rule(entry, of.good.values(), fleet=other))
        added.append(entry)
    found.make(max([*there.places(), *(entry.place for entry in added)]) + 1)
    for entry in added:
        found.write(f"{CONNECTOR}{entry.name}", entry.to_bytes())
        found.note(entry.prefix, entry.name, _act(config, "fleet add"))
    _keep_apart(found, [entry.name for entry in added])
    for entry in added:
        _say(f"added {entry.name}; cdc fleet status shows who runs it")


def _say(what: str) -> None:
    click.echo(_pasteable(what), err=True)


def _pasteable(what: str) -> str:
    """Return what is said with the options of this command that say which fleet."""
    return pasteable(what, files_of(click.get_current_context()))


def _refuse(file: Path, clashes_found: Iterable[ConfigError]) -> None:
    for clash in clashes_found:
        raise ConfigError(f"{file}: {clash.message}", hint=clash.hint)


def _keep_apart(found: Fleet, added: Sequence[str]) -> None:
    """Give those that were added a place of their own, where somebody has added others at the same moment.

    Of several at one place the younger move to free ones, each by the command that has added it. Who is older waits a
    moment, and moves if the younger is still there: its command had looked before the older was written.
    """
    for look in range(_LOOKS):
        now = _entries(found.read() or {})
        others = [one for one in now.good.values() if one.name not in added]
        beside = [
            (one, [(other.added_ms, other.name) for other in others if other.place == one.place])
            for one in now.good.values()
            if one.name in added
        ]
        moving = [one for one, at in beside if at and (look >= _PATIENCE or min(at) < (one.added_ms, one.name))]
        if not any(at for _, at in beside):
            return
        places = free_places(now.places(), len(moving))
        found.make(max([*now.places(), *places]) + 1)
        for entry, place in zip(moving, places, strict=True):
            found.write(f"{CONNECTOR}{entry.name}", entry.moved(place=place, added_ms=entry.added_ms).to_bytes())
        time.sleep(random.uniform(0.2, 0.6))  # noqa: S311 - so that two do not move in step


def _placed(entry: Entry, there: Entries, places: Any, *, replace: bool) -> Entry:  # noqa: ANN401 - an iterator
    """Keep the place of what is replaced, and its age, by which it was there first; it is restarted in any case."""
    before = there.good.get(entry.name) if replace else None
    if before is not None:
        return entry.moved(place=before.place, added_ms=before.added_ms).restarted(entry.added_ms)
    return entry.moved(place=next(places), added_ms=entry.added_ms)


@fleet.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_of_fleet
def remove(names: tuple[str, ...], *, name: str | None, servers: str | None, file: Path | None) -> None:
    """Take connectors out of the fleet: they are stopped. Topics, positions and slots stay as they are.

    `cdc run CONNECTOR.yaml`, or adding it again, goes on where it was. A PostgreSQL slot keeps the server's log until
    then.
    """
    config = load_fleet(file, fleet=name, bootstrap_servers=servers)
    found = _open(config)
    there = _entries(_records(found))
    _all_known(config, names, {**there.good, **there.refused})
    for each in names:
        found.write(f"{CONNECTOR}{each}", None)
        found.write(f"{STATUS}{each}", None)
        if each in there.good:
            found.note(there.good[each].prefix, each, _act(config, "fleet remove"))
        click.echo(f"removed {each}: it is stopped where it runs, and what it has written and holds stays", err=True)


def _all_known(config: FleetConfig, names: Sequence[str], known: Mapping[str, object]) -> None:
    for each in names:
        if each not in known:
            near = difflib.get_close_matches(each, known, n=1, cutoff=0.5)
            raise ConfigError(
                f"fleet {config.fleet} has no connector {each}",
                hint=f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known)) or 'none'}",
            )


@fleet.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_of_fleet
def restart(names: tuple[str, ...], *, name: str | None, servers: str | None, file: Path | None) -> None:
    """Have connectors ended and started again, where they are: also those that are stopped until somebody decides.

    What is to be decided, and by which command, is what `cdc fleet status` says beside them.
    """
    config = load_fleet(file, fleet=name, bootstrap_servers=servers)
    found = _open(config)
    there = _entries(_records(found))
    _all_known(config, names, {**there.good, **there.refused})
    for each in names:
        if each in there.refused:
            raise ConfigError(
                f"connector {each} is run by nobody: {there.refused[each].message}", hint=there.refused[each].hint
            )
    for each in names:
        entry = there.good[each].restarted(time.time_ns() // 1_000_000)
        found.write(f"{CONNECTOR}{each}", entry.to_bytes())
        found.note(entry.prefix, each, _act(config, "fleet restart"))
        _say(f"{each} is restarted by the member that has it; cdc fleet status shows it")


@fleet.command("list")
@_of_fleet
@JSON_OPTION
def list_(*, name: str | None, servers: str | None, file: Path | None, as_json: bool) -> None:
    """List the fleet's entries, also those that are wrong."""
    config = load_fleet(file, fleet=name, bootstrap_servers=servers)
    there = _entries(_records(_open(config)))
    if as_json:
        good = {
            one.name: {
                "topic_prefix": one.prefix,
                "place": one.place,
                "added_at": instant(one.added_ms / 1000),
                "yaml": one.yaml,
                "error": None,
            }
            for one in there.good.values()
        }
        wrong = {
            name: {"topic_prefix": None, "place": one.place, "added_at": None, "yaml": None, "error": one.message}
            for name, one in there.refused.items()
        }
        click.echo(orjson.dumps({"fleet": config.fleet, "connectors": {**good, **wrong}}, option=_SORTED).decode())
        return
    rows = [
        *((one.name, one.prefix, str(one.place), instant(one.added_ms / 1000)) for one in there.good.values()),
        *((name, "-", "-", f"wrong: {one.message}") for name, one in there.refused.items()),
    ]
    click.echo("\n".join(aligned([("connector", "topic prefix", "place", "added"), *sorted(rows)])))


@fleet.command("status")
@_of_fleet
@JSON_OPTION
def status_(*, name: str | None, servers: str | None, file: Path | None, as_json: bool) -> None:
    """Of each connector: its state, the member that runs it, since when, and its last error with the hint.

    `cdc status CONNECTOR.yaml` tells more of one connector: its position, lag and slot.
    """
    config = load_fleet(file, fleet=name, bootstrap_servers=servers)
    found = _open(config)
    records = _records(found)
    said = {
        key.removeprefix(STATUS): status
        for key, value in records.items()
        if key.startswith(STATUS) and (status := Status.from_bytes(value)) is not None
    }
    members = found.members()
    rows = standing(_entries(records), said, members)
    if as_json:
        shown = {name: _shown(row) for name, row in rows.items()}
        alive = {one.name: {"host": one.host, "places": list(one.places)} for one in members}
        click.echo(orjson.dumps({"fleet": config.fleet, "members": alive, "connectors": shown}).decode())
        return
    taken = {row["place"] for row in rows.values()}
    counts = [f"{one.name} ({len(taken & set(one.places))})" for one in sorted(members, key=lambda one: one.name)]
    click.echo(f"fleet {config.fleet}: {len(rows)} connectors, members: {', '.join(counts) or 'none'}")
    table: list[tuple[str, ...]] = []
    for connector, row in rows.items():
        error = row["last_error"]
        since = "-" if row["since_ms"] is None else instant(row["since_ms"] / 1000)
        table.append((connector, row["state"], row["member"] or "-", since, error["message"] if error else "-"))
        if error and error["hint"]:
            table.append(("", "", "", "", f"hint: {error['hint']}"))
        if row["state"] == Reason.STOPPED:
            table.append(("", "", "", "", _pasteable(f"then: cdc fleet restart {connector}")))
    click.echo("\n".join(aligned([("connector", "state", "member", "since", "last error"), *table])))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write times as the other commands do."""
    times = {"since_at": row["since_ms"], "again_at": row["again_ms"]}
    instants = {key: None if value is None else instant(value / 1000) for key, value in times.items()}
    rest = {key: value for key, value in row.items() if key not in ("since_ms", "again_ms")}
    return {**rest, **instants}


_SORTED = orjson.OPT_SORT_KEYS


def _act(config: FleetConfig, action: str) -> Act:
    return Act(action=action, by=asked_by(), asked_ms=time.time_ns() // 1_000_000, about={"fleet": config.fleet})


def _open(config: FleetConfig) -> Fleet:
    found: Fleet = registry.part("sinks.fleet.topic:open_fleet")(config)
    return found


def _records(found: Fleet) -> Mapping[str, bytes]:
    """Return all records. Raises OperatorError where there is no such fleet."""
    records = found.read()
    if records is None:
        raise found.missing()
    return records


def _entries(records: Mapping[str, bytes]) -> Entries:
    return read_entries(
        {key.removeprefix(CONNECTOR): value for key, value in records.items() if key.startswith(CONNECTOR)}
    )
