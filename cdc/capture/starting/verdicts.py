"""Start-up checks that need no server: does a position still belong to this configuration and this source?"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import orjson

from cdc.encode.table_log import log_of
from cdc.model.errors import VerdictError
from cdc.model.interfaces import LINEAGE
from cdc.model.ledger import TopicFacts, spread_otherwise
from cdc.model.state import Phase, State

SERVER: Final = "system_identifier"
"""The part of an identity that is a server's own: one that takes its place, as a new major version, has another."""
_TYPE: Final = "source.type"


def of_config(state: State, config: Mapping[str, str]) -> Iterator[VerdictError]:
    """Refuse settings other than those that the position was made under."""
    for name, now in config.items():
        then = state.config.get(name, now)
        if then != now:
            yield VerdictError(
                f"config changed: {name} is {now}, but connector {state.connector} stands at a position made with "
                f"{then}",
                hint=f"set {name}: {then} again; for {now}, start under a new connector name (a fresh snapshot)",
            )


def is_of_source(state: State, config: Mapping[str, str]) -> bool:
    """Whether a position is of this type of source, which alone can read what it has of places and tables."""
    return state.config.get(_TYPE, config[_TYPE]) == config[_TYPE]


def of_source(state: State, identity: Mapping[str, str]) -> Iterator[VerdictError]:
    """Refuse another server, database or slot than the position's; the timeline is checked by the source.

    A server of another number may stand in the place of the one that was followed: of that, all tables can be read, if
    it is asked for by that number. Who has asked to close another gap has not asked for this.
    """
    began = "point source.url at the server this connector began with"
    for what in _differs(state, identity):
        yield VerdictError(
            f"another source: connector {state.connector} stands at a position of {what.replace('_', ' ')} "
            f"{state.identity[what]}, source.url leads to {identity.get(what)}",
            hint=f"{began}; if this one has taken its place (a new major version, a migration): cdc snapshot start "
            f"CONNECTOR.yaml --after-gap --server {identity[SERVER]}, and run it: it makes a new slot, reads every "
            "table again and deletes what has gone"
            if may_have_taken_its_place(state, identity)
            else f"{began}; for a new server, a new name",
        )


def may_have_taken_its_place(state: State, identity: Mapping[str, str]) -> bool:
    """Tell whether only the server is another one than the position's, of which there is a place in the log."""
    return _differs(state, identity) == [SERVER] and SERVER in identity and state.phase is not Phase.CREATING


def _differs(state: State, identity: Mapping[str, str]) -> list[str]:
    return [what for what, there in state.identity.items() if what != LINEAGE and identity.get(what) != there]


def of_neighbours(
    neighbours: Iterable[tuple[str, State]],
    *,
    connector: str,
    prefix: str,
    identity: Mapping[str, str],
    topics: Mapping[str, str],
) -> Iterator[VerdictError]:
    """Refuse topics that other connectors' positions claim, and another prefix than this connector has run under.

    `topics` are this connector's, by table.
    """
    for their_prefix, state in neighbours:
        if state.connector == connector and their_prefix != prefix:
            if {**state.identity, LINEAGE: ""} == {**identity, LINEAGE: ""}:
                yield VerdictError(
                    f"config changed: sink.topic_prefix is {prefix}, but connector {connector} stands at a position "
                    f"under {their_prefix}",
                    hint=f"set sink.topic_prefix: {their_prefix} again; for {prefix}, start under a new connector name "
                    "(a fresh snapshot)",
                )
        elif their_prefix == prefix:
            yield from (_owned(topics[table], state.connector) for table in state.tables if table in topics)


def of_topics(recorded: Mapping[str, TopicFacts], found: Mapping[str, TopicFacts]) -> Iterator[VerdictError]:
    """Refuse topics that have another number of partitions than their records were spread over."""
    for topic, facts in found.items():
        was = recorded.get(topic)
        if was is not None and spread_otherwise(was, facts):
            yield VerdictError(
                f"topic {topic} has {facts.partitions} partitions, {was.partitions} when its records were written: a "
                "key's next record would be in another partition than its last",
                hint="give the connector another name and another sink.topic_prefix (a fresh snapshot into new topics)",
            )


def of_records(
    occupied: Sequence[str], published: Iterable[bytes], connector: str, recorded: Container[str]
) -> Iterator[VerdictError]:
    """Refuse topics with records when this connector has no position; the schema topic may name their owner.

    Those `recorded` beside its position are its own, unless another connector has described their tables since.
    """
    if not occupied:
        return
    owners: dict[str, str] = {}
    for record in map(orjson.loads, published):
        owners[record["topic"]] = owners[log_of(record["topic"])] = record["connector"]
    for topic in occupied:
        owner = owners.get(topic, connector)
        if owner != connector:
            yield _owned(topic, owner)
        elif topic not in recorded or topic not in owners:
            yield VerdictError(
                f"topic {topic} holds records already, and connector {connector} has no position for them: rows "
                "deleted since they were written would stay in it for ever",
                hint="give the connector another name and another sink.topic_prefix (a fresh snapshot into new "
                "topics); or leave the table out",
            )


def _owned(topic: str, owner: str) -> VerdictError:
    return VerdictError(
        f"topic owned by another connector: {topic} is written by {owner}",
        hint=f"give this connector another sink.topic_prefix, or leave the table out of it, or of {owner}",
    )
