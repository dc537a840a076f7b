"""Asks Kafka what `cdc check` needs: topics, limits, rights, neighbours. Nothing is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import orjson

from cdc.capture.starting import verdicts
from cdc.config.findings import Finding, Level, probed, refused
from cdc.config.kafka_config import KafkaConfig
from cdc.config.table_patterns import matches
from cdc.model.change import Table
from cdc.model.errors import CdcError
from cdc.model.hints import configure, grant
from cdc.model.ledger import Loss, loss
from cdc.model.state import State
from cdc.rules.routes import Routes
from sinks.client.options import weakness
from sinks.kafka import KafkaSink, largest_record
from sinks.topics.ends import compared, of_these
from sinks.topics.names import table_of
from sinks.topics.records.positions import read_standing
from sinks.topics.topics import Existing, Topics, Wanted

_NEEDED: Final = frozenset({"READ", "DESCRIBE"})
"""Beside WRITE, without which a run does not begin to write to a topic."""
_COPIES: Final = 3
_ONE_BROKER: Final = "there is one broker, which will do for a trial; with three, sink.replication_factor: 3"


def position(config: KafkaConfig, connector: str) -> State | None:
    """Return the connector's position; None if it never ran. Raises CdcError if that cannot be told."""
    sink = KafkaSink(config, connector)
    with Topics(config.bootstrap_servers, config.options) as topics:
        if not topics.exists(sink.position_topic):
            return None
    return read_standing(config, connector).state


def described(config: KafkaConfig, connector: str, *, by_others: bool = True) -> list[bytes]:
    """Return what was said of tables: the schema topic's records, and the copies of this connector's own.

    `by_others` False: the copies will do.
    """
    sink = KafkaSink(config, connector)
    with Topics(config.bootstrap_servers, config.options) as topics:
        there = topics.exists(sink.schema_topic), topics.exists(sink.position_topic)
    with closing(sink):
        published = list(sink.schemas()) if by_others and there[0] else []
    return [*published, *(read_standing(config, connector).schemas.values() if there[1] else ())]


def check(
    config: KafkaConfig, connector: str, tables: Sequence[Table], *, state: State | None, identity: Mapping[str, str]
) -> list[Finding]:
    """Check all preconditions; `tables` and `identity` as far as the source could tell them."""
    sink = KafkaSink(config, connector)
    wanted: list[Wanted] = []
    findings: list[Finding] = []
    try:
        wanted = sink.wanted(tables)
    except CdcError as exc:
        each = [list(probed("topics", partial(_has_topic, sink, table))) for table in tables]
        findings += [found for of in each for found in of] or [refused("topics", exc)]
        tables = [table for table, found in zip(tables, each, strict=True) if not found]
        wanted = sink.wanted(tables) if any(each) else []
    try:
        topics = Topics(config.bootstrap_servers, config.options, spread=sink.spread)
    except CdcError as exc:
        return [*findings, refused("kafka", exc)]
    with topics:
        probes: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
            ("kafka", partial(_broker, topics, config)),
            ("topics", partial(_topics, topics, config, wanted)),
            ("topics", partial(_ledger, topics, config, sink, wanted, tables, state=state)),
            ("route", partial(_routes, config, sink, tables, state=state)),
            ("topics", partial(_neighbours, topics, config, sink, tables, state=state, identity=identity)),
        )
        for about, probe in probes:
            findings += probed(about, probe)
    return findings


def topic_of(config: KafkaConfig, connector: str) -> Callable[[Table], str]:
    """Return what gives a table's topic, without asking Kafka. It raises ConfigError where there can be none."""
    return KafkaSink(config, connector).topic


def _has_topic(sink: KafkaSink, table: Table) -> Iterator[Finding]:
    sink.wanted([table])
    yield from ()


def _broker(topics: Topics, config: KafkaConfig) -> Iterator[Finding]:
    weak = weakness(config.options, config.bootstrap_servers)
    if weak is not None:
        yield Finding(Level.WARNING, "kafka", weak, "sink.options: {security.protocol: SASL_SSL, ssl.ca.location: …}")
    found = topics.broker()
    yield Finding(Level.OK, "kafka", f"Kafka at {config.bootstrap_servers} answers, {found.count} broker(s)")
    asked = round(config.transaction_timeout_s * 1000)
    longest = int(found.settings.get("transaction.max.timeout.ms", asked))
    if longest < asked:
        yield Finding(
            Level.ERROR,
            "kafka",
            f"transaction.max.timeout.ms is {longest}: the connector's transactions may take {asked}",
            f"set transaction.max.timeout.ms={max(asked, 900_000)} in each broker's server.properties, and restart it; "
            f"or sink.transaction_timeout_s: {longest // 1000}",
        )
    needed = largest_record(config)
    request = int(found.settings.get("socket.request.max.bytes", needed))
    if request < needed:
        yield Finding(
            Level.WARNING,
            "kafka",
            f"socket.request.max.bytes is {request}: a row that makes a larger record stops the connector",
            f"set socket.request.max.bytes={4 * needed} in each broker's server.properties, and restart it",
        )


def _topics(topics: Topics, config: KafkaConfig, wanted: Sequence[Wanted]) -> Iterator[Finding]:
    yield from (refused("topics", refusal) for refusal in topics.refusals(wanted))
    for pattern in config.log.tables if config.log is not None else ():
        if not any(matches(pattern, name) for topic in wanted if (name := table_of(topic.name)) is not None):
            yield Finding(
                Level.WARNING,
                "topics",
                f"sink.log.tables: “{pattern}” is no captured table, so there is no log of it",
                "correct the name, or leave it out",
            )
    existing = topics.existing([w.name for w in wanted])
    missing = [w for w in wanted if w.name not in existing]
    yield from (
        refused("topics", refusal) for refusal in topics.rehearse(missing, replication_factor=config.replication_factor)
    )
    yield from (Finding(Level.OK, f"topic {w.name}", "will be made at the start") for w in missing)
    for name, found in sorted(existing.items()):
        notes = list(_topic(name, found, config))
        yield from notes or [Finding(Level.OK, f"topic {name}", f"{found.partitions} partition(s)")]
    broker = topics.broker()
    copies = config.replication_factor or int(broker.settings.get("default.replication.factor", 1))
    single = any(found.replicas == 1 for found in existing.values())
    if single or (missing and copies == 1):
        more = min(_COPIES, broker.count)
        fix = f"set sink.replication_factor: {more} before the first start" if more > 1 else _ONE_BROKER
        if single and more > 1:
            fix += (
                "; for topics that exist: kafka-reassign-partitions.sh "
                f"--bootstrap-server {config.bootstrap_servers} --reassignment-json-file … --execute"
            )
        yield Finding(Level.WARNING, "topics", "replication factor 1: what one broker loses is lost", fix)


def _ledger(
    topics: Topics,
    config: KafkaConfig,
    sink: KafkaSink,
    wanted: Sequence[Wanted],
    tables: Sequence[Table],
    *,
    state: State | None,
) -> Iterator[Finding]:
    """Compare what is relied on with the topics as they are."""
    if state is None:
        return
    standing = read_standing(config, sink.connector)
    recorded = standing.topics
    found = topics.facts([w.name for w in wanted])
    found = compared(found, of_these(found, recorded, standing.reached))
    asked = {w.name: w.partitions for w in wanted}
    for refusal in verdicts.of_topics(recorded, {t: f for t, f in found.items() if f.partitions == asked[t]}):
        yield refused("topics", refusal)  # where another number is asked for, it has been refused with the settings
    for topic, was in sorted(recorded.items()):
        names = {table.qualified for table in tables if sink.topic(table) == topic}
        if topic not in asked or (names and not names & set(state.tables)):
            continue
        keeps = bool(names)
        what = Loss.GONE if topic not in found else loss(was, found[topic], keeps=keeps)
        if what is not None:
            gone = "they are gone" if what is Loss.CUT else "what it held is gone"
            its = "its tables" if len(names) > 1 else "its table"
            then = f"the next start reads {its} again" if keeps else gone
            yield Finding(Level.WARNING, "topics", f"topic {topic} {what.value}: {then}", None)


def _routes(config: KafkaConfig, sink: KafkaSink, tables: Sequence[Table], *, state: State | None) -> Iterator[Finding]:
    """Compare how tables are routed with what was written, by this connector and by its neighbours."""
    said = [orjson.loads(value) for value in described(config, sink.connector, by_others=bool(config.route))]
    captured = state.tables if state is not None else ()
    for refusal in Routes.of_sink(config).moved(said, tables, captured, sink.topic, sink.connector):
        yield refused("route", refusal)


def _topic(name: str, found: Existing, config: KafkaConfig) -> Iterator[Finding]:
    about = f"topic {name}"
    needed = largest_record(config)
    largest = int(found.settings.get("max.message.bytes", needed))
    if largest < needed:
        yield Finding(
            Level.WARNING,
            about,
            f"max.message.bytes is {largest}: a row that makes a larger record stops the connector",
            configure(config.bootstrap_servers, name, f"max.message.bytes={needed}"),
        )
    missing = sorted(_NEEDED - found.allowed)
    if found.allowed and missing:  # brokers without authorization say nothing, or all
        yield Finding(
            Level.ERROR,
            about,
            f"this user may not {', '.join(missing)}",
            grant(
                config.bootstrap_servers, config.options, map(str.title, missing), f"{config.prefix}.", prefixed=True
            ),
        )


def _neighbours(
    topics: Topics,
    config: KafkaConfig,
    sink: KafkaSink,
    tables: Sequence[Table],
    *,
    state: State | None,
    identity: Mapping[str, str],
) -> Iterator[Finding]:
    new = [table for table in tables if state is None or table.qualified not in state.tables]
    if not new and state is not None:
        return
    names = topics.names()
    theirs = verdicts.of_neighbours(
        sink.neighbours(),
        connector=sink.connector,
        prefix=config.prefix,
        identity=identity,
        topics={table.qualified: sink.topic(table) for table in new},
    )
    found = [refused("topics", refusal) for refusal in theirs]
    yield from found
    occupied = sink.occupied([table for table in new if sink.topic(table) in names])
    with closing(sink):
        published = sink.schemas() if sink.schema_topic in names else iter(())
        recorded = read_standing(config, sink.connector).topics if state is not None else {}
        told = {finding.what for finding in found}
        for refusal in verdicts.of_records(occupied, published, sink.connector, recorded):
            if refusal.message not in told:
                yield refused("topics", refusal)
