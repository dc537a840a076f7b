"""Judges whether a position and a server belong together, and whether the log between them is whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import orjson

from cdc.model.change import Offset
from cdc.model.errors import ChangedError, GapError, OperatorError
from cdc.model.interfaces import LINEAGE
from cdc.model.state import UNLOGGED, State
from connectors.mysql import session
from connectors.mysql.binlog.last_transaction import KEY as LAST
from connectors.mysql.binlog.last_transaction import LastTransaction
from connectors.mysql.binlog.positions import FIRST, SEEN, BinlogPosition, GtidPosition, GtidSet, GtidState, file_number
from connectors.mysql.catalog import server
from connectors.mysql.replication.dump_stream import CLOSE_THE_GAP
from connectors.mysql.replication.last_transaction import Find
from connectors.mysql.replication.mariadb_history import Trace

log = logging.getLogger("cdc")

BY_HAND: Final = (
    "gtid_purged was set by hand, as by a dump that is loaded, whose rows are in no log (mysqldump --set-gtid-purged)"
)

WAS_OFF: Final = "the server wrote no log for a time (binlog off), or another one than that of the position"


@dataclass(frozen=True, slots=True)
class ServerLog:
    """Holds what a server says of its log."""

    lineage: str
    end: BinlogPosition
    first: str
    """The oldest file it has."""
    executed: GtidSet | GtidState | None
    """All it has ever done, where it counts by GTIDs."""
    purged: GtidSet | None = None
    """Those of them that its files no longer have (MySQL)."""
    files: tuple[str, ...] = ()
    """Those that it has, oldest first."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """By the number of a file, the commit position of its end."""


def look_at_log(sql: session.Connection, found: server.Server) -> ServerLog:
    """Ask the server for what a position is judged by."""
    end, _ = server.status(sql, found)
    files = server.files(sql)
    executed: GtidSet | GtidState | None = None
    purged: GtidSet | None = None
    if found.gtids:
        executed = GtidSet.parse(server.global_text(sql, "gtid_executed"))
        purged = GtidSet.parse(server.global_text(sql, "gtid_purged"))
    elif found.mariadb:
        executed = GtidState.parse(server.global_text(sql, "gtid_binlog_state"))
    names = tuple(name for name, _ in files)
    ends = {file_number(name): BinlogPosition(name, size).commit for name, size in files}
    return ServerLog(found.lineage, end, names[0] if names else end.file, executed, purged, names, ends)


def identity(found: server.Server) -> dict[str, str]:
    """Return what a position belongs to."""
    return {"server": found.family, LINEAGE: found.lineage}


MadeAt: TypeAlias = Callable[[BinlogPosition], int]
"""Asks the server when the file of a binlog position was begun, in seconds since 1970.

Raises GapError if the log no longer has it.
"""


def resumes_at(state: State) -> BinlogPosition:
    """Return where a position resumes."""
    return BinlogPosition(str(state.offset["file"]), int(state.offset["pos"]))


def known_gtids(state: State, here: ServerLog) -> GtidSet | GtidPosition | None:
    """Return what the position has of all transactions, if both it and the server count by GTIDs."""
    text = state.offset.get("gtids")
    if text is None or here.executed is None:
        return None
    return (GtidSet if isinstance(here.executed, GtidSet) else GtidPosition).parse(str(text))


def refusals(
    state: State, here: ServerLog, made_at: MadeAt, find: Find, trace: Trace = lambda _: None
) -> Iterator[OperatorError]:
    """Give why the log cannot be followed from `state` without a gap.

    The log of the position may come back, as where `log_bin` gets its old name, or a disk is mounted again.
    """
    whole = True
    for refusal in _of_log(state, here, made_at):
        whole = False
        if isinstance(refusal, GapError):
            refusal.elsewhere = state.identity.get(LINEAGE) == here.lineage
        yield refusal
    if whole:
        yield from _of_last(state, here, made_at, find)
        yield from _of_domains(state, here, trace)


def _of_domains(state: State, here: ServerLog, trace: Trace) -> Iterator[OperatorError]:
    """Compare what another MariaDB has logged up to the position, of which it will send nothing."""
    known, then = known_gtids(state, here), state.identity.get(LINEAGE, here.lineage)
    if then == here.lineage or not isinstance(known, GtidPosition):
        return
    last, text = LastTransaction.of(state.offset), state.offset.get(SEEN)
    seen = None if text is None else GtidState.parse(str(text))
    for domain, number, n in known.members():
        gtid = f"{domain}-{number}-{n}"
        history = trace((domain, number, n))
        if history is None:
            log.warning(
                "the server no longer has %s, the last transaction of domain %d that Kafka has, in its log: what it "
                "has before cannot be compared; cdc verify compares the rows",
                gtid, domain,
            )  # fmt: skip
            continue
        if last is not None and last.gtid == gtid and not last.is_the_same(history.found):
            yield GapError(
                f"binlog rewritten: transaction {gtid}, the last that Kafka has, is another one on server "
                f"{here.lineage}: an older copy of {then} was restored, and written to again",
                hint=CLOSE_THE_GAP,
            )
            return
        own = history.before.unknown(domain, seen) if seen is not None else []
        if own:
            yield GapError(
                f"another server under the same name: before {gtid}, the last transaction that Kafka has, server "
                f"{here.lineage} has logged up to {', '.join(own)}, of which {then} had nothing: it was written to "
                "while it was a replica",
                hint=f"compare the two servers' rows; then {CLOSE_THE_GAP}",
            )
            return


def _of_last(state: State, here: ServerLog, made_at: MadeAt, find: Find) -> Iterator[OperatorError]:
    """Compare the last transaction that Kafka has with what the server has in its place, or under its GTID.

    A server that an older copy was restored on gives the numbers out again, and writes files of the same names.
    """
    last = LastTransaction.of(state.offset)
    if last is None:
        return
    found: LastTransaction | None = None
    if moved(state, here, made_at) or last.begin is None:
        known = known_gtids(state, here)
        if last.gtid is None or not isinstance(known, GtidSet) or not isinstance(here.executed, GtidSet):
            return
        if here.purged is not None and last.gtid in here.purged:
            log.warning(
                "the server no longer has %s, the last transaction that Kafka has, in its log: whether it is the same "
                "one cannot be told; cdc verify compares the rows",
                last.gtid,
            )
            return
        if last.gtid not in here.executed:  # prepared by XA where it was, and nothing here yet
            return
        found = find(last, known)
    elif last.begin.number >= file_number(here.first):  # else its file is gone, as files are removed in time
        found = find(last, None)
    else:
        return
    if found is not None and last.gtid and _of_others(last.gtid, state, here) and not last.is_the_same(found):
        log.warning(
            "the server has %s, the last transaction that Kafka has, with another time of its commit: members of a "
            "Galera cluster each have their own, on others it is another transaction; cdc verify compares the rows",
            last.gtid,
        )
    elif found is None or not last.is_the_same(found):
        named = f"transaction {last.gtid}" if last.gtid else f"the transaction at {last.begin}"
        yield GapError(
            f"binlog rewritten: {named}, the last that Kafka has, is another one on the server: an older copy of it "
            "was restored, or its log was reset, and then it was written to again",
            hint=CLOSE_THE_GAP,
        )


def _of_others(gtid: str, state: State, here: ServerLog) -> bool:
    """Tell whether the server is another one, and the number was given out by neither: by a group as a whole."""
    then = state.identity.get(LINEAGE, here.lineage)
    return then != here.lineage and gtid.partition(":")[0] not in (then, here.lineage)


def _of_log(state: State, here: ServerLog, made_at: MadeAt) -> Iterator[OperatorError]:
    known, then, position = known_gtids(state, here), state.identity.get(LINEAGE, here.lineage), resumes_at(state)
    if then != here.lineage and known is None:
        yield GapError(
            f"another server under the same name: the position is of server {then}, this is {here.lineage}, and "
            "without GTIDs nobody can tell where its log continues the other's",
            hint=f"point source.url at the server the position is of; or, if that is gone, {CLOSE_THE_GAP}",
        )
        return
    if known is not None:
        behind = not _contains(here.executed, known, same=then == here.lineage)
        if behind and then != here.lineage:
            yield GapError(
                f"another server under the same name: server {here.lineage} does not have all that Kafka has of "
                f"{then}: it is another database, or a replica that was promoted before it had everything",
                hint=f"point source.url at the server that continues {then}; if none does, {CLOSE_THE_GAP}",
                may_pass=True,  # a replica behind a name of several servers comes up to it
            )
            return
        if behind:
            yield GapError(
                "binlog reset: the server no longer knows of transactions that Kafka has: RESET BINARY LOGS AND GTIDS, "
                "or an older copy was restored",
                hint=CLOSE_THE_GAP,
            )
            return
        removed = here.purged is not None and isinstance(known, GtidSet) and not here.purged <= known
        if removed and (_set_by_hand(state, here) is None or renumbered(state, here, made_at)):
            yield GapError(
                "binlog purged: the server has removed transactions that the position has not seen "
                f"(gtid_purged is not in what Kafka has; its oldest file is {here.first})",
                hint=CLOSE_THE_GAP,
            )
            return
        if then != here.lineage and state.snapshot.get("views"):
            yield GapError(
                "fail-over during the snapshot: rows were read that this server may never have had", hint=CLOSE_THE_GAP
            )
            return
    if then == here.lineage and not (isinstance(known, GtidSet) and renumbered(state, here, made_at)):
        yield from _of_file(state, here, position, made_at)


def by_hand(state: State, here: ServerLog, *, stops: bool) -> GtidSet | None:
    """Return what Kafka has joined with gtid_purged, if somebody has set that to more; None: nobody has.

    Called of a state that nothing is held against. `stops`: GapError is raised in the place of it.
    """
    joined, known = _set_by_hand(state, here), known_gtids(state, here)
    if joined is None or not isinstance(known, GtidSet) or joined <= known:
        return None
    if stops:
        raise GapError(BY_HAND, hint=f"{CLOSE_THE_GAP}; or source.on_hole: reread")
    return joined


def require_log(sql: session.Connection, found: server.Server, position: BinlogPosition) -> None:
    """Raise GapError if the log is gone where it is to be followed from later, as when a long snapshot is done.

    Raises UnloggedError where the server writes none any more.
    """
    server.status(sql, found)
    names = [name for name, _ in server.files(sql)]
    if names and position.number < file_number(names[0]):
        raise GapError(
            f"binlog purged: the server has removed {position.file}, from which the log is to be followed once the "
            f"tables are read; its oldest file is {names[0]}",
            hint="let the server keep its log for longer than that takes (binlog_expire_logs_seconds); then "
            f"{CLOSE_THE_GAP}",
        )


def was_off(state: State, *, stops: bool) -> bool:
    """Tell whether the log was found off since the position, so that changes may be in none.

    `stops`: GapError is raised in the place of it.
    """
    found = bool(state.offset.get(UNLOGGED))
    if found and stops:
        raise GapError(WAS_OFF, hint=f"{CLOSE_THE_GAP}; or source.on_hole: reread")
    return found


def end_of_log(
    sql: session.Connection, found: server.Server, read_to: BinlogPosition, gtids: GtidSet | GtidPosition | None
) -> BinlogPosition:
    """Return where the log ends that was read up to `read_to`. Raises ChangedError if gtid_purged was set by hand.

    It is asked for before the end: if only the last file is left to be read by then, all that was removed was read. A
    server that does not log what it replicates adds that to gtid_purged by itself.
    """
    is_told = bool(found.gtids) and server.logs_what_it_replicates(found)
    purged = GtidSet.parse(server.global_text(sql, "gtid_purged")) if is_told else None
    end, _ = server.status(sql, found)
    if purged is None or not isinstance(gtids, GtidSet) or read_to.number != end.number or purged <= gtids:
        return end
    if purged <= gtids.joined(purged, but=found.lineage):
        raise ChangedError("gtid_purged was set by hand while the log was followed: looking at all tables again")
    return end


def _set_by_hand(state: State, here: ServerLog) -> GtidSet | None:
    """Return what Kafka has joined with gtid_purged, if the server has not removed what makes the difference.

    While the file of a position is there, the same server has removed none but older ones, which were read. So what is
    in gtid_purged besides was in none of its files, and is of other servers: its own numbers nobody can set.
    """
    known, then = known_gtids(state, here), state.identity.get(LINEAGE, here.lineage)
    if here.purged is None or not isinstance(known, GtidSet) or then != here.lineage:
        return None
    joined = known.joined(here.purged, but=here.lineage)
    return joined if here.purged <= joined else None


def _contains(executed: GtidSet | GtidState | None, known: GtidSet | GtidPosition, *, same: bool) -> bool:
    """Tell whether the server has done all that is known.

    The same MariaDB may have been made to forget whole domains, once its files have none of them; by its other domains
    and by the file it is still known.
    """
    if isinstance(executed, GtidSet) and isinstance(known, GtidSet):
        return known <= executed
    if not isinstance(executed, GtidState) or not isinstance(known, GtidPosition):
        return False
    return (known.within(executed.domains) if same and executed.domains else known) <= executed


def _of_file(state: State, here: ServerLog, position: BinlogPosition, made_at: MadeAt) -> Iterator[OperatorError]:
    if position.number > here.end.number:
        yield GapError(
            f"binlog reset: the position is in {position.file}, the server writes {here.end.file}: RESET MASTER, or "
            "another data folder",
            hint=CLOSE_THE_GAP,
        )
        return
    try:
        begun = made_at(position)
    except OperatorError as exc:
        yield exc
        return
    if int(state.offset.get("made_at", 0)) not in (0, begun):  # 0: nothing was read of it yet
        yield GapError(
            f"binlog reset: {position.file} is not the file that the position is in: it was begun at another time",
            hint=CLOSE_THE_GAP,
        )
    elif not _has_views(state, here):
        yield GapError(
            "binlog reset: the first snapshot has read rows of transactions that the server's log does not have: an "
            "older copy was restored, or a crash took its end away",
            hint=CLOSE_THE_GAP,
        )


def _has_views(state: State, here: ServerLog) -> bool:
    """Whether the log has all before the ends of the views of a first snapshot, as far as its files are there."""
    for view in cast("Mapping[str, Mapping[str, Any]]", state.snapshot.get("views", {})).values():
        end, seen = int(view["end"]), orjson.loads(view["snapshot"])["gtids"]
        if here.ends.get(end >> 32, end) < end:
            return False
        if seen is not None and isinstance(here.executed, GtidSet) and not GtidSet.parse(seen) <= here.executed:
            return False
    return True


def renumbered(state: State, here: ServerLog, made_at: MadeAt) -> bool:
    """Tell whether a server that continues by GTIDs counts its files from the beginning again."""
    position, then = resumes_at(state), int(state.offset.get("made_at", 0))
    if position.number > here.end.number:
        return True
    try:
        return then != 0 and made_at(BinlogPosition(position.file, FIRST)) != then
    except GapError:
        return False  # the file is gone, as files of a binlog are removed in time


def moved(state: State, here: ServerLog, made_at: MadeAt) -> bool:
    """Tell whether the order of positions begins again: at another server, or since its files are renumbered."""
    then = state.identity.get(LINEAGE, here.lineage)
    return then != here.lineage or (isinstance(known_gtids(state, here), GtidSet) and renumbered(state, here, made_at))


def elsewhere(state: State, here: ServerLog) -> tuple[Offset, int]:
    """Return what the log is followed from where the order of positions has begun again, and its commit position."""
    first, last = BinlogPosition(here.first, FIRST), LastTransaction.of(state.offset)
    offset: Offset = {"file": first.file, "pos": first.offset, "gtids": str(state.offset["gtids"])}
    offset |= {SEEN: state.offset[SEEN]} if SEEN in state.offset else {}
    offset |= {} if last is None else {LAST: str(last.elsewhere())}
    return offset, first.commit
