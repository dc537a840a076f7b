"""Keeps an OpenSearch index for each source table, written by bulk requests with external versions.

    stores:
      search: {type: opensearch, url: "http://127.0.0.1:9200"}

Alias ``<prefix>.<schema>.<table>`` (names made to fit as topics' are, in lower case) names the live index, which is
``<alias>.<number>``; ``<alias>.previous`` and ``<alias>.beside`` name others, and one request moves them.

``_id`` is the key's JSON, or its SHA-256 where it is over 512 bytes; the document is `spark_apply.model.document`'s.
`spark_apply.stores.opensearch.fields` says which field a column is. Text columns are ``text`` with a ``keyword`` beside
it; a value that an index field cannot take (NaN, the year 12000)
stays in the document and is not searchable.

**The guard.** A version is 63 bits and a position 128, so the version is ``epoch << 52 | commit``: it orders source
transactions, and two events of one transaction have the same. Hence ``external_gte``: an older transaction's event is
refused (409, counted as stale), a newer one's and one of the same transaction are taken. That is right in the order
of the topic: a key lives in one partition, there its events come in order, so the last one of a transaction is
applied last, also when both come again. Until it has come, a replay can show the key as it was inside its own
transaction, never an older one's state. 52 bits hold 4 PiB of PostgreSQL's log, and of MySQL's a million files; 11
bits hold 2,047 epochs; beyond that: an error.

The engine forgets a deleted document's version after 60 s (``index.gc_deletes``). The job hands no event over that the
index has (`spark_apply.events.latest.not_again`). A replay from the beginning can show the document again until it
reaches the delete, which the topic holds as well.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import orjson
from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException, TransportError
from opensearchpy.helpers import scan
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import OperatorError, RetryableError
from cdc.model.hints import rebuild
from spark_apply.model.completeness import NEW, Mark
from spark_apply.model.document import document_id, with_document
from spark_apply.model.foresight import Foreseen
from spark_apply.model.identity import identity_of, stamp
from spark_apply.model.kept_mark import kept_mark
from spark_apply.model.ownership import Ownership
from spark_apply.model.store import Applied, Batch, Due, Refused, StoredRow, only_options
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import index_name
from spark_apply.stores.opensearch.bulk import MISSING, SENT, STALE, Bulk, Patience, requests
from spark_apply.stores.opensearch.failures import FORBIDDEN, as_ours, translated
from spark_apply.stores.opensearch.fields import column_name, field_name, type_of_field
from spark_apply.stores.opensearch.indexes import Indexes, alias_of, alone, is_ours
from spark_apply.stores.opensearch.notes import CAUGHT_UP, COMPLETE, DUE, POSITION, REPLACED, Notes, due_of
from spark_apply.stores.opensearch.server import OPTIONS, connected

_TRIES, _WAIT_S = 20, 0.02
_INDEX_OPTIONS: Final = ("shards", "replicas")


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> OpenSearchStore:
    """Return the store at the url of `config`; nothing is asked or created yet. Raises ConfigError."""
    del spark
    only_options(config, name, (*OPTIONS, *_INDEX_OPTIONS))
    settings = {f"number_of_{of}": config.options[of] for of in _INDEX_OPTIONS if of in config.options}
    return OpenSearchStore(connected(config, name, prefix), prefix, settings)


class OpenSearchStore:
    """A `spark_apply.model.store.Store`."""

    def __init__(self, client: OpenSearch, prefix: str, settings: Mapping[str, object], suffix: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._settings = settings
        self._suffix = suffix
        self._beside: dict[str, str] = {}
        self._opened: dict[str, str] = {}
        self._marks = Ownership()
        self._patience = Patience()
        self._indexes = Indexes(client, settings)
        self._notes = Notes(client, f"{index_name(prefix)}.cdc-applied")

    def foresee(self, table: TargetTable) -> Foreseen:
        alias = self.index(table)
        with translated(f"index {alias} cannot be looked at"):
            if not self._indexes.exists(alias):
                return Foreseen(None)
            identity = identity_of(self._indexes.identity(alias), table, f"index {alias}")
            added, _ = self._indexes.missing_fields(table, alias)
        return Foreseen(identity, tuple(f"add column {name} {type_of_field(field)}" for name, field in added.items()))

    def open(self, table: TargetTable) -> str:
        alias, there, made = self.index(table), False, None
        try:
            there = self._indexes.exists(alias)
            if not there:
                self._indexes.require_free(alias)
                made = self._indexes.make_first(table, alias, stamp(table))
            identity_of(self._indexes.identity(alias), table, f"index {alias}")
            self._indexes.evolve(table, alias)
            self._indexes.make_plain(self._notes.index)
            if made:
                self._notes.write(made, COMPLETE, {"complete": NEW.to_json()})
            self._opened[table.qualified] = self._notes.uuid(alias)
            self._marks.opened(table.qualified, self.mark(table))
            return identity_of(self._indexes.identity(alias), table, f"index {alias}")
        except OpenSearchException as exc:
            error = as_ours(exc, f"index {alias} cannot hold {table.qualified}", alias, words=True)
            another = f"{rebuild(table.qualified)}  # another index, beside this one"
            hint = error.hint or (another if there else "with that put right at the server, the next try makes it")
            raise type(error)(error.message, hint=hint) from exc

    def apply(self, batch: Batch) -> Applied:
        index = self.index(batch.table)
        with translated(f"index {index} cannot be looked at"):
            stamped = self._indexes.identity(index)  # a rebuild may have swapped another in
        identity_of(stamped, batch.table, f"index {index}")
        self._require_opened(batch.table)
        self._marks.writes(batch.table.qualified, self.mark(batch.table), f"index {index}")
        rows = with_document(batch.rows, batch.table, field_name).select(*SENT).toLocalIterator()
        statuses: dict[tuple[str, int], int] = {}
        bulk = Bulk(self._client, index, self._patience)
        for request in requests(rows):
            refused = []
            for outcome in bulk.send(request):
                if isinstance(outcome, Refused):
                    refused.append(outcome)
                else:
                    statuses[outcome] = statuses.get(outcome, 0) + 1
            if refused:
                batch.refuse(refused)
        newest = max(self.position(batch.table) or "", batch.position)
        self._notes.write(self.index(batch.table), POSITION, {"position": newest, "index": index})

        def count(wanted: str) -> int:
            return sum(n for (action, status), n in statuses.items() if action == wanted and status < MISSING)

        stale = sum(n for (_, status), n in statuses.items() if status == STALE)
        return Applied(count("index"), count("delete"), stale)

    def position(self, table: TargetTable) -> str | None:
        (found,) = self._notes.read(self.index(table), POSITION)
        return None if found is None else str(found["position"])

    def mark(self, table: TargetTable) -> Mark | None:
        found, *owed = self._notes.read(self.index(table), COMPLETE, DUE, CAUGHT_UP)
        if found is None or due_of(*owed) is not None:
            return None
        return kept_mark(found["complete"], f"index {self.index(table)}")

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        if self._require_opened(table):
            self._flush(self.index(table))
        for number in range(1, _TRIES + 1):
            there = self.mark(table)
            made = self._marks.wanted(table.qualified, there, mark)
            if made is None or self._notes.replace(self.index(table), COMPLETE, {"complete": made.to_json()}):
                break  # else another mark has come meanwhile, such as another run's
            time.sleep(_WAIT_S * number)
        else:
            msg = f"index {self.index(table)}: its mark was another one each time that it was to be written"
            raise RetryableError(msg, hint="let one job write it; before OpenSearch 2.10 replicas may be behind, too")
        self._marks.wrote(table.qualified, there, made, f"index {self.index(table)}")

    def _flush(self, index: str) -> None:
        try:
            self._client.indices.flush(index=index)
        except OpenSearchException as exc:
            error = as_ours(exc, f"index {index} cannot be flushed", index, words=True)
            forbidden = isinstance(exc, TransportError) and exc.status_code == FORBIDDEN
            passes = isinstance(error, RetryableError)  # a block has the same status, and a hint of its own
            hint = (
                "the job’s user needs indices:admin/flush, because a crash of the server would lose what an index with "
                f"durability async has taken; or curl -X PUT '<url>/{index}/_settings' -H 'Content-Type: "
                'application/json\' -d \'{"index.translog.durability": "request"}\'  # then it goes on by itself'
            )
            raise type(error)(error.message, hint=hint if forbidden and not passes else error.hint) from exc

    def _require_opened(self, table: TargetTable) -> bool:
        """Return whether a crash of the server loses what the live index has taken.

        Raises OperatorError if it is not the one that was opened, and no rebuild has swapped it in: somebody has made
        it again, or restored it from a backup. What was written before is not in it, and a mark would say that it is.
        Its mapping, with our stamp, may be the same.
        """
        alias, opened = self.index(table), self._opened.get(table.qualified)
        with translated(f"index {alias} cannot be looked at"):
            now, late = self._indexes.standing(alias)
        other = now != opened and opened is not None
        if other and self.due(table) is None:
            raise OperatorError(
                f"index {alias} was made again or restored by another hand while the job runs",
                hint="a job that runs fills it from its topic; so does cdc apply APPLY.yaml --reset-checkpoint",
            )
        return late

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        index = self.index(table)
        asked = list(ids or ())
        try:
            self._client.indices.refresh(index=index)
            found, size, how = self._indexes.read_at_once(index)
            parts = [asked[at : at + size] for at in range(0, len(asked), size)]
            for query in [{"match_all": {}}] if ids is None else [{"ids": {"values": part}} for part in parts]:
                for hit in scan(self._client, index=found, query={"query": query}, size=size, **how):
                    document = {column_name(name): value for name, value in hit["_source"].items()}
                    yield StoredRow(hit["_id"], orjson.dumps(document).decode())
        except OpenSearchException as exc:
            error = as_ours(exc, f"index {index} cannot be read", index)
            hint = error.hint or "has the apply job made it? cdc apply APPLY.yaml"
            raise type(error)(error.message, hint=hint) from exc

    def id_of(self, event_key: str, document_key: str) -> str:
        del document_key
        return document_id(event_key)

    def beside(self, table: TargetTable) -> OpenSearchStore:
        alias = self.index(table)
        copy = OpenSearchStore(self._client, self._prefix, self._settings, ".beside")
        with translated(f"an index beside {alias} cannot be made"):
            names = self._client.indices.get_alias(index=f"{alias}.*", expand_wildcards="all")
            kept = {alias, f"{alias}.previous"}
            for index, about in names.items():
                if is_ours(index, alias) and not kept & set(about["aliases"]):
                    self._client.indices.delete(index=index)
            identity = stamp(table, self._indexes.identity(alias))
            self._beside[table.qualified] = self._indexes.make(table, copy.index(table), identity)
        return copy

    def swap(self, table: TargetTable, due: Due) -> None:
        alias, made = self.index(table), self._beside.pop(table.qualified)
        beside, previous = f"{alias}.beside", f"{alias}.previous"
        with translated(f"alias {alias} cannot be moved"):
            if made not in self._indexes.named(beside):
                msg = f"index {made}: another rebuild has taken the place of this one"
                raise OperatorError(msg, hint="the live index is as it was; let one rebuild run at a time")
            live, _ = alone(alias, dict.fromkeys(self._indexes.named(alias)))
            self._client.indices.refresh(index=made)
            self._notes.write(made, DUE, {"due": due.to_json()})
            self._notes.write(live, REPLACED, {"at": dt.datetime.now(dt.UTC).isoformat()})
            actions: list[dict[str, Any]] = [
                {"remove_index": {"index": index}} for index in self._indexes.named(previous)
            ]
            actions += [{"remove": {"index": made, "alias": beside}}, {"add": {"index": live, "alias": previous}}]
            for name, how in self._indexes.handed_on(live):
                actions += [{"remove": {"index": live, "alias": name}}, {"add": {"index": made, "alias": name, **how}}]
            self._client.indices.update_aliases(body={"actions": actions})

    def previous(self, table: TargetTable) -> dt.datetime | None:
        name = f"{self.index(table)}.previous"
        with translated(f"alias {name} cannot be read"):
            found = [note for index in self._indexes.named(name) for note in self._notes.read(index, REPLACED)]
        return dt.datetime.fromisoformat(found[0]["at"]) if found and found[0] else None

    def roll_back(self, table: TargetTable, due: Due) -> None:
        alias, previous = self.index(table), f"{self.index(table)}.previous"
        with translated(f"alias {alias} cannot be moved"):
            (live, _), (kept, _) = (alone(name, dict.fromkeys(self._indexes.named(name))) for name in (alias, previous))
            self._notes.write(kept, DUE, {"due": due.to_json()})
            actions: list[dict[str, Any]] = [{"remove_index": {"index": live}}]
            actions.append({"remove": {"index": kept, "alias": previous}})
            actions += [{"add": {"index": kept, "alias": name, **how}} for name, how in self._indexes.handed_on(live)]
            self._client.indices.update_aliases(body={"actions": actions})

    def due(self, table: TargetTable) -> Due | None:
        return due_of(*self._notes.read(self.index(table), DUE, CAUGHT_UP))

    def caught_up(self, table: TargetTable, due: Due) -> None:
        self._notes.write(self.index(table), CAUGHT_UP, {"id": due.id})

    def close(self) -> None:
        self._client.close()

    def index(self, table: TargetTable) -> str:
        """Return the alias of the table's index."""
        return alias_of(self._prefix, table) + self._suffix
