"""Moves a connector that is down to a position that it, or another copy of it, has stood at before.

What stands between the two positions is published again, or never. Both are refused unless the user wants it, and said
in words. A position of another server, connector, epoch or log is never taken: its places mean something else here.

Everything is compared before the producer is fenced, and the new position is one record in one Kafka transaction: the
connector stands where it did, or where it shall.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from cdc.capture.snapshots.snapshot_progress import duration
from cdc.capture.starting import verdicts
from cdc.model.audit import Act
from cdc.model.change import Position
from cdc.model.errors import GapError, OperatorError, raise_first
from cdc.model.interfaces import Renaming, Shared, Sink, Source
from cdc.model.state import UNLOGGED, Phase, State
from cdc.offsets.exported import Exported

Kind = Literal["same", "repeat", "skip"]
_AGAIN: Final = "cdc offsets show CONNECTOR.yaml"


@dataclass(frozen=True, slots=True)
class Move:
    """What a move from one position to another means."""

    kind: Kind
    means: str
    """In words."""
    sequence: int
    """Of the position that the connector stands at then."""
    reads_again: bool = False
    """Whether topics are right again only once the tables are read again."""


def move(
    source: Source, sink: Sink, exported: Exported, *, config: Mapping[str, str], force: bool, by: str | None = None
) -> Move:
    """Let the connector stand at an exported position. Raises OperatorError for what is refused; then nothing is done.

    `config` is `ConnectorConfig.binding`, `by` who asks for it. Without `force`
    only the position that the connector stands at is taken.
    """
    if isinstance(source, Shared) and (other := source.follower()) is not None:
        raise OperatorError(
            f"connector {exported.name} is at work ({other.who}): it would be fenced, and go on from where it was",
            hint="stop it, then import again",
        )
    identity = source.connect()
    tables = source.tables()
    state = sink.peek() if sink.check(tables) else None
    if state is None:
        raise OperatorError(
            f"connector {exported.name} has never run: it has no position that could be replaced",
            hint="cdc run CONNECTOR.yaml",
        )
    if isinstance(source, Renaming):
        state = replace(state, identity=source.renamed(state.identity, state.offset))
        exported = replace(exported, identity=source.renamed(exported.identity, dict(exported.offset)))
    raise_first(verdicts.of_config(state, config))
    raise_first(verdicts.of_source(state, identity))
    raise_first(refusals(state, exported))
    offset = dict(exported.offset)
    wanted = replace(state, offset=offset, commit=exported.commit, source_ms=exported.source_ms, identity=identity)
    try:
        moved_on = source.verify(wanted)
    except GapError as exc:
        earlier = exported.commit < state.commit  # then it is by intent that the source keeps no more
        why = f"the connector stands at {place(state.offset)}, and what lies before may go" if earlier else exc.message
        raise OperatorError(
            f"the source's log cannot be followed from {place(exported.offset)} on: {why}",
            hint="offsets that were exported later may do; cdc snapshot start CONNECTOR.yaml reads everything again",
        ) from exc
    if moved_on is not None:
        raise OperatorError(
            f"connector {exported.name}: the source has failed over since: its log has other places now",
            hint="cdc run CONNECTOR.yaml --until-caught-up, and export again",
        )
    if exported.commit > source.current():
        raise OperatorError(
            f"the position {place(exported.offset)} lies behind the end of the source's log",
            hint="was the server restored from a backup? cdc check CONNECTOR.yaml",
        )
    kind, means = meaning(state, exported)
    if kind == "same":
        return Move(kind, means, state.sequence)
    if not force:
        raise OperatorError(means, hint="cdc offsets import CONNECTOR.yaml OFFSETS.json --force  # does it anyway")
    sink.create(())  # the audit's topic, of a connector that an older release has run
    fenced = sink.fence()
    if fenced is None or fenced.sequence != state.sequence:
        raise OperatorError(
            f"connector {exported.name} has gone on meanwhile: another copy of it is at work", hint="stop it first"
        )
    moved = state.next(offset=offset, commit=exported.commit, source_ms=exported.source_ms)
    about = {"from": place(state.offset), "to": place(exported.offset), "meant": kind, "tables": len(state.tables)}
    act = Act(action="offsets import", by=by, about=about)
    position = Position(state.epoch, state.commit, 0).text
    sink.log("audit", state.connector.encode(), act.to_bytes(connector=state.connector, position=position))
    sink.commit(moved)
    return Move(kind, means, moved.sequence, reads_again=kind == "skip" or state.windows != exported.windows)


def refusals(state: State, exported: Exported) -> Iterator[OperatorError]:
    """Give why a position is not one of this connector's, or cannot be moved now."""
    if exported.of != "connector" or exported.name != state.connector:
        yield OperatorError(
            f"the offsets are of the {_KINDS[exported.of]} {exported.name}, not of connector {state.connector}",
            hint=_AGAIN,
        )
    for error in verdicts.of_source(replace(state, identity=exported.identity), state.identity):
        yield OperatorError(f"the offsets are of another server: {error.message}", hint=_AGAIN)
    if exported.epoch != state.epoch:
        yield OperatorError(
            f"the offsets are of epoch {exported.epoch}, connector {state.connector} is in {state.epoch}: the log that "
            "they are places of is another one since a fail-over or a gap",
            hint=_AGAIN,
        )
    if exported.phase != Phase.STREAM or state.phase is not Phase.STREAM:
        yield OperatorError(
            f"connector {state.connector}: a first snapshot has no place in the log that could be moved",
            hint="cdc run CONNECTOR.yaml --until-caught-up",
        )
    if state.offset.get(UNLOGGED):
        yield OperatorError(
            f"connector {state.connector} is to read its tables again, as its server wrote no log for a time",
            hint="cdc run CONNECTOR.yaml --until-caught-up, then import again",
        )
    if state.reading:
        yield OperatorError(
            f"tables are being read again, which goes by the position: {', '.join(state.reading)}",
            hint="cdc snapshot status CONNECTOR.yaml; once they are read, import again",
        )


_KINDS: Final = {"connector": "connector", "apply": "apply job"}


def meaning(state: State, exported: Exported) -> tuple[Kind, str]:
    """Say what lies between where a connector stands and where it shall."""
    here, there = place(state.offset), place(exported.offset)
    if exported.commit == state.commit:
        return "same", f"connector {state.connector} stands at {there} already"
    span = _span(state.source_ms, exported.source_ms)
    if exported.commit < state.commit:
        read = (
            "; rows of tables were read since: what no log has of them would be as it was before, until they are read "
            "again (cdc snapshot start)"
        )
        return "repeat", (
            f"{there} lies before {here}, where connector {state.connector} stands: {span} of {len(state.tables)} "
            "tables would be published again, with the positions they had; stores leave out what they have, other "
            f"readers see it twice{read if state.windows != exported.windows else ''}"
        )
    return "skip", (
        f"{there} lies behind {here}, where connector {state.connector} stands: {span} of {len(state.tables)} tables "
        "would never be published, and their topics would miss it until they are read again (cdc snapshot start)"
    )


def place(offset: Mapping[str, object]) -> str:
    """Write a place in the log as `cdc status` does."""
    return " ".join(f"{name} {value}" for name, value in offset.items()) or "nowhere"


def _span(one_ms: int, other_ms: int) -> str:
    if not one_ms or not other_ms:
        return "the changes between"
    begin, end = sorted((one_ms, other_ms))
    since, until = (datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds") for at in (begin, end))
    return f"the changes of {duration((end - begin) / 1000)} (committed from {since} to {until})"
