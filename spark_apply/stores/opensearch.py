"""Keeps an OpenSearch index for each source table, written by bulk requests with external versions.

    stores:
      search: {type: opensearch, url: "http://127.0.0.1:9200"}

Alias ``<prefix>.<schema>.<table>`` (names made to fit as topics' are, in lower case) names the live index, which is
``<alias>.<number>``; ``<alias>.previous`` and ``<alias>.beside`` name others, and one request moves them.

``_id`` is the key's JSON, or its SHA-256 where it is over 512 bytes; the document is `spark_apply.model.document`'s.
`spark_apply.stores.opensearch_fields` says which field a column is. Text columns are ``text`` with a ``keyword`` beside
it; a value that an index field cannot take (NaN, the year 12000)
stays in the document and is not searchable.

**The guard.** A version is 63 bits and a position 128, so the version is ``epoch << 52 | commit``: it orders source
transactions, and two events of one transaction have the same. Hence ``external_gte``: an older transaction's event is
refused (409, counted as stale), a newer one's and one of the same transaction are taken. That is right in the order
of the topic: a key lives in one partition, there its events come in order, so the last one of a transaction is
applied last, also when both come again. Until it has come, a replay can show the key as it was inside its own
transaction, never an older one's state. 52 bits hold 4 PiB of PostgreSQL's log, and of MySQL's a million files; 11
bits hold 2,047 epochs; beyond that: an error.

The engine forgets a deleted document's version after 60 s (``index.gc_deletes``). The job hands no late event over
(`Complete.late_before`). A replay from the beginning can show the document again until it reaches the delete, which the
topic holds as well.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError, OpenSearchException, RequestError
from opensearchpy.helpers import scan
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.machine.hosts import is_local
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.model.completeness import Mark
from spark_apply.model.document import document_id, with_document
from spark_apply.model.foresight import Foreseen
from spark_apply.model.identity import identity_of, stamp
from spark_apply.model.store import Applied, Batch, Due, Refused, StoredRow, only_options
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import index_name
from spark_apply.stores.opensearch_bulk import MISSING, SENT, STALE, Bulk, reason, requests, translated
from spark_apply.stores.opensearch_fields import (
    ENCODED,
    NAMES,
    column_name,
    field_name,
    fields_needed,
    mapping,
)

MAX_NAME_BYTES = 255 - len(".") - 32  # of an alias: the number of an index comes behind it

_READ_AT_ONCE = 2_000
_FIRST_WAIT_S = 0.1
_LIMIT, _LIMIT_DEFAULT, _LIMIT_ROOM = "index.mapping.total_fields.limit", 1_000, 500
_READY_WITHIN_S = 5.0
_IDENTITY = "cdc_identity"
_FIRST = "0" * 32
"""The number of a table's first index, which replaces no other."""
_NO_INDEX, _NOT_READY = "index_not_found_exception", "no_shard_available_action_exception"
_Note = Mapping[str, str]
_POSITION, _COMPLETE, _DUE, _CAUGHT_UP, _REPLACED = "", "complete", "due", "caught-up", "replaced"
"""The kinds of notes that are kept about an index."""

_NO_PIPELINES: Final = {"default_pipeline": "_none", "final_pipeline": "_none"}
_NO_TEMPLATES: Final = {"_source": {"enabled": True, "includes": [], "excludes": []}, "_routing": {"required": False}}
"""What a template of the cluster could say otherwise: documents would be changed, dropped, refused or not be read."""

_OPTIONS = ("username", "password", "ca_certs", "verify_certs", "shards", "replicas")

log: Final = logging.getLogger("cdc.apply")


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> OpenSearchStore:
    """Connect to the server at the url of `config`; create nothing. Raises OperatorError when it does not answer."""
    del spark
    only_options(config, name, _OPTIONS)
    if config.url is None:
        raise ConfigError(f"stores.{name}: url is missing", hint="url: http://127.0.0.1:9200")
    url = urlsplit(config.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"stores.{name}.url does not begin with http:// or https://", hint="url: http://127.0.0.1:9200"
        )
    if prefix[0] in "-_":
        msg = f"stores.{name}: an index cannot be named after topic_prefix “{prefix}”"
        raise ConfigError(msg, hint="a prefix that begins with a letter or a digit")
    if url.scheme == "http" and not is_local(url.hostname or "", ""):
        log.warning(
            "OpenSearch of stores.%s: http sends password and rows to another host unencrypted; use https", name
        )
    options: dict[str, Any] = dict(config.options)
    settings = {f"number_of_{kind}": options.pop(kind) for kind in ("shards", "replicas") if kind in options}
    if "username" in options:
        options["http_auth"] = (str(options.pop("username")), str(options.pop("password", "")))
    client = OpenSearch(config.url, timeout=60, max_retries=0, **options)
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)  # it prints requests; failures are raised as ours
    try:
        client.info()
    except OpenSearchException as exc:
        msg = f"OpenSearch of stores.{name} does not answer ({reason(exc)})"
        raise OperatorError(msg, hint="is it up, are url, username and password right? cdc dev up opensearch") from exc
    return OpenSearchStore(client, prefix, settings)


class OpenSearchStore:
    """A `spark_apply.model.store.Store`."""

    def __init__(self, client: OpenSearch, prefix: str, settings: Mapping[str, object], suffix: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._settings = settings
        self._suffix = suffix
        self._beside: dict[str, str] = {}
        self._positions = f"{index_name(prefix)}.cdc-applied"

    def foresee(self, table: TargetTable) -> Foreseen:
        alias = self.index(table)
        with _translated(f"index {alias} cannot be looked at"):
            if not self._exists(alias):
                return Foreseen(None)
            _, about = _alone(alias, self._client.indices.get_mapping(index=alias))
            identity = identity_of(self._identity(alias), table, f"index {alias}")
        added = self._added(table, alias, about["mappings"])
        return Foreseen(identity, tuple(f"add column {name} {_type_of(field)}" for name, field in added.items()))

    @staticmethod
    def _added(table: TargetTable, alias: str, there: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are missing in a table's index. Raises OperatorError for one that has another type."""
        had, added = there.get("properties", {}), {}
        encoded = any(field_name(column.name) != column.name for column in table.columns)
        if encoded and there["_meta"].get(NAMES) != ENCODED:
            msg = f"index {alias} was made by an earlier release, which named the fields of some columns otherwise"
            raise OperatorError(msg, hint=f"cdc rebuild APPLY.yaml --table {table.qualified}")
        for name, field in mapping(table)["properties"].items():
            if name not in had:
                added[name] = field
            elif _type_of(had[name]) != _type_of(field):
                is_, would = _type_of(had[name]), _type_of(field)
                msg = f"index {alias}, column {column_name(name)}: it is {is_} and would have to be {would}"
                raise OperatorError(msg, hint=f"cdc rebuild APPLY.yaml --table {table.qualified}")
        return added

    def open(self, table: TargetTable) -> str:
        alias = self.index(table)
        try:
            if not self._client.indices.exists_alias(name=alias):
                if self._client.indices.exists(index=alias):
                    raise self._foreign(alias)
                with _ignore_existing():  # two jobs give the first index the same name
                    self._make(table, alias, stamp(table), _FIRST)
            identity_of(self._identity(alias), table, f"index {alias}")
            self._evolve(table, alias)
            if not self._client.indices.exists(index=self._positions):  # many servers do not create it by themselves
                with _ignore_existing():
                    self._client.indices.create(index=self._positions, body=self._body({"dynamic": False}, {}))
            return identity_of(self._identity(alias), table, f"index {alias}")
        except OpenSearchException as exc:
            error = translated(exc, f"index {alias} cannot hold {table.qualified}", alias)
            hint = error.hint or f"cdc rebuild APPLY.yaml --table {table.qualified}  # another index, beside this one"
            raise type(error)(error.message, hint=hint) from exc

    def _evolve(self, table: TargetTable, alias: str) -> None:
        """Add fields for new columns, and let the index have so many."""
        _, about = _alone(alias, self._client.indices.get_mapping(index=alias))
        added = self._added(table, alias, about["mappings"])
        if not added:
            return
        needed = fields_needed(about["mappings"].get("properties", {}) | added)
        _, settings = _alone(alias, self._client.indices.get_settings(index=alias, name=_LIMIT, flat_settings=True))
        if needed > int(settings["settings"].get(_LIMIT, _LIMIT_DEFAULT)):
            self._client.indices.put_settings(index=alias, body={_LIMIT: needed + _LIMIT_ROOM})
        self._client.indices.put_mapping(index=alias, body={"properties": added})

    def apply(self, batch: Batch) -> Applied:
        index = self.index(batch.table)
        with _translated(f"index {index} cannot be looked at"):
            identity_of(self._identity(index), batch.table, f"index {index}")  # a rebuild may have swapped another in
        rows = with_document(batch.rows, batch.table, field_name).select(*SENT).toLocalIterator()
        statuses: dict[tuple[str, int], int] = {}
        bulk = Bulk(self._client, index)
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
        self._note(batch.table, {"position": newest, "index": index}, _POSITION)

        def count(wanted: str) -> int:
            return sum(n for (action, status), n in statuses.items() if action == wanted and status < MISSING)

        stale = sum(n for (_, status), n in statuses.items() if status == STALE)
        return Applied(count("index"), count("delete"), stale)

    def position(self, table: TargetTable) -> str | None:
        (found,) = self._noted(self.index(table), _POSITION)
        return None if found is None else str(found["position"])

    def mark(self, table: TargetTable) -> Mark | None:
        found, *owed = self._noted(self.index(table), _COMPLETE, _DUE, _CAUGHT_UP)
        return None if found is None or _due(*owed) is not None else Mark.from_json(found["complete"])

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        self._note(table, {"complete": mark.to_json()}, _COMPLETE)

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        index = self.index(table)
        asked = list(ids or ())
        parts = [asked[at : at + _READ_AT_ONCE] for at in range(0, len(asked), _READ_AT_ONCE)]
        queries = [{"match_all": {}}] if ids is None else [{"ids": {"values": part}} for part in parts]
        try:
            self._client.indices.refresh(index=index)
            for query in queries:
                for hit in scan(self._client, index=index, query={"query": query}, size=_READ_AT_ONCE):
                    document = {column_name(name): value for name, value in hit["_source"].items()}
                    yield StoredRow(hit["_id"], orjson.dumps(document).decode())
        except OpenSearchException as exc:
            msg = f"index {index} cannot be read ({reason(exc)})"
            raise OperatorError(msg, hint="has the apply job made it? cdc apply") from exc

    def id_of(self, event_key: str, document_key: str) -> str:
        del document_key
        return document_id(event_key)

    def beside(self, table: TargetTable) -> OpenSearchStore:
        alias = self.index(table)
        copy = OpenSearchStore(self._client, self._prefix, self._settings, ".beside")
        with _translated(f"an index beside {alias} cannot be made"):
            names = self._client.indices.get_alias(index=f"{alias}.*", expand_wildcards="all")
            kept = {alias, f"{alias}.previous"}
            for index, about in names.items():
                if not kept & set(about["aliases"]):
                    self._client.indices.delete(index=index)
            self._beside[table.qualified] = self._make(
                table, copy.index(table), stamp(table, self._identity(alias)), uuid.uuid4().hex
            )
        return copy

    def swap(self, table: TargetTable, due: Due) -> None:
        alias, made = self.index(table), self._beside.pop(table.qualified)
        beside, previous = f"{alias}.beside", f"{alias}.previous"
        with _translated(f"alias {alias} cannot be moved"):
            if made not in self._named(beside):
                msg = f"index {made}: another rebuild has taken the place of this one"
                raise OperatorError(msg, hint="the live index is as it was; let one rebuild run at a time")
            live, _ = _alone(alias, dict.fromkeys(self._named(alias)))
            self._client.indices.refresh(index=made)
            self._note(table, {"due": due.to_json()}, _DUE, index=made)
            self._note(table, {"at": dt.datetime.now(dt.UTC).isoformat()}, _REPLACED, index=live)
            actions = [{"remove_index": {"index": index}} for index in self._named(previous)]
            actions += [{verb: {"index": live, "alias": name}} for verb, name in (("remove", alias), ("add", previous))]
            actions += [{verb: {"index": made, "alias": name}} for verb, name in (("remove", beside), ("add", alias))]
            self._client.indices.update_aliases(body={"actions": actions})

    def previous(self, table: TargetTable) -> dt.datetime | None:
        name = f"{self.index(table)}.previous"
        with _translated(f"alias {name} cannot be read"):
            found = [note for index in self._named(name) for note in self._noted(index, _REPLACED)]
        return dt.datetime.fromisoformat(found[0]["at"]) if found and found[0] else None

    def roll_back(self, table: TargetTable, due: Due) -> None:
        alias, previous = self.index(table), f"{self.index(table)}.previous"
        with _translated(f"alias {alias} cannot be moved"):
            (live, _), (kept, _) = (_alone(name, dict.fromkeys(self._named(name))) for name in (alias, previous))
            self._note(table, {"due": due.to_json()}, _DUE, index=kept)
            actions: list[dict[str, dict[str, str]]] = [{"remove_index": {"index": live}}]
            actions += [{verb: {"index": kept, "alias": name}} for verb, name in (("remove", previous), ("add", alias))]
            self._client.indices.update_aliases(body={"actions": actions})

    def due(self, table: TargetTable) -> Due | None:
        return _due(*self._noted(self.index(table), _DUE, _CAUGHT_UP))

    def caught_up(self, table: TargetTable, due: Due) -> None:
        self._note(table, {"id": due.id}, _CAUGHT_UP)

    def close(self) -> None:
        self._client.close()

    def index(self, table: TargetTable) -> str:
        """Return the alias of the table's index."""
        name = ".".join((index_name(self._prefix), index_name(table.schema), index_name(table.copy_name)))
        if len(name) > MAX_NAME_BYTES:
            name = f"{name[: MAX_NAME_BYTES - 65]}-{hashlib.sha256(name.encode()).hexdigest()}"
        return name + self._suffix

    def _make(self, table: TargetTable, alias: str, identity: str, number: str) -> str:
        """Create an index, named by `alias`; returns its own name."""
        name = f"{alias.removesuffix('.beside')}.{number}"
        fields = mapping(table)
        limit = {_LIMIT: max(_LIMIT_DEFAULT, fields_needed(fields["properties"]) + _LIMIT_ROOM)}
        mappings = {**fields, "_meta": {_IDENTITY: identity, NAMES: ENCODED}}
        self._client.indices.create(index=name, body={**self._body(mappings, limit), "aliases": {alias: {}}})
        return name

    def _body(self, mappings: Mapping[str, Any], limit: Mapping[str, int]) -> dict[str, Any]:
        """Return what an index is made with, whatever templates of the cluster say."""
        settings = {"index": {**_NO_PIPELINES, **self._settings}, **limit}
        return {"settings": settings, "mappings": {**_NO_TEMPLATES, **mappings}}

    def _identity(self, alias: str) -> str:
        name, about = _alone(alias, self._client.indices.get_mapping(index=alias))
        identity = about["mappings"].get("_meta", {}).get(_IDENTITY)
        if identity is None:
            raise self._foreign(name)
        return str(identity)

    @staticmethod
    def _foreign(name: str) -> OperatorError:
        msg = f"index {name} is there already and was not made by this toolkit"
        return OperatorError(msg, hint="give the job another topic_prefix, or that index another name")

    def _named(self, alias: str) -> list[str]:
        """Return the indexes that an alias names: one or none."""
        return list(self._client.indices.get_alias(name=alias, ignore=MISSING)) if self._exists(alias) else []

    def _exists(self, alias: str) -> bool:
        return bool(self._client.indices.exists_alias(name=alias))

    def _note(self, table: TargetTable, note: _Note, kind: str, *, index: str | None = None) -> None:
        """Write a note about an index (None: the copy's) under its unique id: the note is lost with the index."""
        with _translated("the applied position cannot be written"):
            number = self._uuid(index or self.index(table))
            self._client.index(index=self._positions, id=_note_id(number, kind), body=note)

    def _noted(self, index: str, *kinds: str) -> list[_Note | None]:
        """Read the last note of each kind about an index; None where note or index do not exist."""
        with _translated("the applied position cannot be read"):
            try:
                number = self._uuid(index)
            except NotFoundError:
                return [None for _ in kinds]
            return self._got([_note_id(number, kind) for kind in kinds])

    def _uuid(self, index: str) -> str:
        _, about = _alone(index, self._client.indices.get_settings(index=index, name="index.uuid"))
        return str(about["settings"]["index"]["uuid"])

    def _got(self, ids: Sequence[str]) -> list[_Note | None]:
        """Fetch notes; waits until an index that was just created is ready."""
        until = time.monotonic() + _READY_WITHIN_S
        while True:
            answers = self._client.mget(index=self._positions, body={"ids": ids})["docs"]
            failed = {answer["error"]["type"] for answer in answers if "error" in answer} - {_NO_INDEX}
            if not failed:
                return [answer["_source"] if answer.get("found") else None for answer in answers]
            if failed != {_NOT_READY} or time.monotonic() > until:
                msg = f"index {self._positions}: the applied position cannot be read ({', '.join(sorted(failed))})"
                hint = f"curl <url>/_cat/shards/{self._positions}?v says why; go on when its primary is STARTED"
                raise OperatorError(msg, hint=hint)
            time.sleep(_FIRST_WAIT_S)


def _alone(alias: str, found: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the one index that an alias names, and what was found of it. Raises OperatorError for several."""
    if len(found) != 1:
        msg = f"alias {alias} names several indexes: {', '.join(sorted(found))}"
        raise OperatorError(msg, hint="take it off those that this toolkit has not made: they have no cdc_identity")
    ((name, about),) = found.items()
    return name, about


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Translate the driver's exceptions to ours."""
    try:
        yield
    except OpenSearchException as exc:
        raise translated(exc, what) from exc


@contextmanager
def _ignore_existing() -> Iterator[None]:
    """Go on if another process has created the index meanwhile."""
    try:
        yield
    except RequestError as exc:
        if exc.error != "resource_already_exists_exception":
            raise


def _type_of(field: Mapping[str, Any]) -> str:
    return str(field.get("type", "object"))


def _note_id(number: str, kind: str) -> str:
    return ".".join(filter(None, (number, kind)))


def _due(owed: _Note | None, done: _Note | None) -> Due | None:
    """Return the catch-up that these notes say is due."""
    due = None if owed is None else Due.from_json(owed["due"])
    return None if due is None or (done is not None and done["id"] == due.id) else due
