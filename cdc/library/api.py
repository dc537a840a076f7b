"""The functions of `import cdc`; docs/library.md is their manual."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from cdc.config import registry
from cdc.config.config import load_connector
from cdc.library.decrypt import Decrypt
from cdc.library.follow import Follow, configured
from cdc.library.inbox.inbox import Inbox
from cdc.library.packages import require
from cdc.library.table import Table
from cdc.library.topics import Topics
from cdc.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = (".yaml", ".yml")


@overload
def follow(
    source: str,
    *,
    tables: str | Sequence[str | Mapping[str, Any]],
    position: str | Path,
    create: bool = False,
    until_caught_up: bool = False,
    name: str | None = None,
) -> Follow: ...


@overload
def follow(
    source: str | Path,
    *,
    tables: str | Sequence[str] | None = None,
    since: str | dt.datetime | None = None,
    until_caught_up: bool = False,
) -> Topics: ...


def follow(
    source: str | Path,
    *,
    tables: str | Sequence[Any] | None = None,
    position: str | Path | None = None,
    create: bool = False,
    until_caught_up: bool = False,
    name: str | None = None,
    since: str | dt.datetime | None = None,
) -> Follow | Topics:
    """Follow a database's log without Kafka, or what a connector has written to its topics.

    Of a database's URL it gives transactions, at least once, in order and whole, from the last one that was done:

        for transaction in cdc.follow("postgresql://…", tables=["public.orders"], position="orders.pos"):
            for change in transaction:
                print(change.op, change.key, change.after)
            transaction.done()

    `position` is the file that says how far the program has come. Without it nothing is begun, unless `create` is true:
    then publication and slot are made, and the tables are read first. `name` is the slot's and the publication's name,
    with ``cdc_`` before it; without one it is the file's.

    Of a connector's file it gives the committed changes of its topics, the newest ones of each key at least, from
    the beginning or those that were written `since` then:

        for batch in cdc.follow("connector.yaml", since="2026-11-24T00:00Z").arrow(rows=50_000): ...

    `until_caught_up`: it ends with what was committed at the call. Raises ConfigError for what makes no sense.
    """
    if isinstance(tables, str):
        tables = [tables]
    if str(source).endswith(_FILES):
        if position is not None or create or name is not None:
            raise ConfigError(
                "cdc.follow: position, create and name are for a database's URL, not for a connector's file",
                hint="the connector has its own position; since='2026-11-24T00:00Z' says where to begin in its topics",
            )
        if any(not isinstance(each, str) for each in tables or ()):
            raise ConfigError("cdc.follow: tables of a connector's file are names", hint='tables=["public.orders"]')
        return Topics(load_connector(Path(source)), tables, since=_instant(since), until_caught_up=until_caught_up)
    if position is None or not tables or since is not None:
        raise ConfigError(
            "cdc.follow: a database's URL needs tables and position, and takes no since",
            hint='cdc.follow(url, tables=["public.orders"], position="orders.pos", create=True)',
        )
    path = Path(position).resolve()
    return Follow(configured(str(source), tables, path, name), path, create=create, until_caught_up=until_caught_up)


def decrypt(file: str | Path) -> Decrypt:
    """Read the keys of a connector's encrypted values; what is returned decrypts rows.

        decrypt = cdc.decrypt("connector.yaml")
        decrypt("public.customers", change.after)

    A value whose key was erased is `cdc.ERASED`. Raises OperatorError if the file's master key is not the connector's.
    """
    return Decrypt(load_connector(Path(file)))


def inbox(
    name: str,
    connection: Any,  # noqa: ANN401 - any driver's
    *,
    kafka: str | Mapping[str, str],
    topics: str | Sequence[str],
) -> Inbox:
    """Read topics so that each record takes effect once in the database of `connection`.

        with cdc.inbox("mailer", connection, kafka="127.0.0.1:9092", topics=["outbox.event.order"]) as inbox:
            while True:
                with inbox.batch() as messages:  # a transaction of the connection, committed with the block
                    for message in messages: ...

    `name` is the consumer group's, and that of the inbox's rows in the table ``cdc_inbox``, which is made if it is
    missing. `connection` is one of psycopg2, psycopg, PyMySQL or sqlite3, not in autocommit, for the inbox and its
    blocks alone. `kafka` is the bootstrap servers, or properties of librdkafka. A topic that is not there yet is waited
    for. A new name begins at the beginning of the topics. Raises ConfigError for what makes no sense.
    """
    of = {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
    return Inbox(name, connection, [topics] if isinstance(topics, str) else topics, of)


def table(file: str | Path, name: str, *, text: Collection[str] = (), decrypt: bool = False) -> Table:
    """Read the newest row of each key of a table from its topic, as a read_committed reader sees it now.

        cdc.table("connector.yaml", "public.orders").to_pandas()

    `text` are columns that are given as the text of their JSON. `decrypt`: encrypted columns are given as texts, those
    whose key was erased as null. Raises OperatorError if the topic is not there.
    """
    if isinstance(text, Mapping):
        raise ConfigError(
            "cdc.table: text names columns of the one table", hint=f"text={[*text.get(name, ('total',))]}"
        )
    return Table(load_connector(Path(file)), name, [text] if isinstance(text, str) else text, decrypt=decrypt)


def spark(
    session: SparkSession,
    file: str | Path,
    name: str,
    *,
    streaming: bool = False,
    types: Mapping[str, str] | None = None,
) -> DataFrame:
    """Give a table's rows as a DataFrame with the types of docs/values.md; as a stream, its changes.

        cdc.spark(spark, "connector.yaml", "public.orders").groupBy("status").count()

    A stream has the columns ``_cdc_op``, ``_cdc_position`` and ``_cdc_key`` before the table's. `types` keeps columns
    as text, as in apply.yaml. Raises OperatorError for a session that cannot read Kafka, or whose time zone is not UTC.
    """
    require("pyspark")
    found: DataFrame = registry.part("spark_apply.events.frame:dataframe")(
        session, load_connector(Path(file)), name, streaming=streaming, types=types or {}
    )
    return found


def _instant(since: str | dt.datetime | None) -> dt.datetime | None:
    """Read an instant. Raises ConfigError for what is none, and for one without a time zone."""
    if since is None:
        return None
    try:
        found = dt.datetime.fromisoformat(since) if isinstance(since, str) else since
    except ValueError as exc:
        raise ConfigError(f"since: “{since}” is no instant", hint="since='2026-11-24T00:00Z'") from exc
    if not isinstance(found, dt.datetime):  # a date, a number: of which zone, of which unit?
        raise ConfigError(f"since: {found!r} is no instant", hint="since='2026-11-24T00:00Z'")
    if found.tzinfo is None:
        raise ConfigError(f"since: {found.isoformat()} has no time zone", hint=f"since='{found.isoformat()}Z'")
    return found
