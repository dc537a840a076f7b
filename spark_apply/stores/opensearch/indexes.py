"""Makes indexes, finds them by their aliases, and gives them the fields that they must have."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from opensearchpy import OpenSearch

from cdc.model.errors import OperatorError
from cdc.model.hints import rebuild
from spark_apply.model.document import forms_of, require_same_forms
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import index_name
from spark_apply.stores.opensearch.bulk import MISSING
from spark_apply.stores.opensearch.failures import ignore_existing
from spark_apply.stores.opensearch.fields import (
    ENCODED,
    NAMES,
    column_name,
    field_name,
    fields_needed,
    mapping,
    type_of_field,
)

MAX_NAME_BYTES = 255 - len(".") - 32  # of an alias: the number of an index comes behind it

_LIMIT, _LIMIT_DEFAULT, _LIMIT_ROOM = "index.mapping.total_fields.limit", 1_000, 500
_WINDOW: Final = "index.max_result_window"
_READ_AT_ONCE: Final = 2_000
_IDENTITY, _FORMS = "cdc_identity", "cdc_forms"
ASKED_WITHIN_S: Final = 10
"""So long the first request about an index waits for an answer: a firewall may drop what is sent to it."""
_FINAL: Final = "index.final_pipeline"
_SEARCHES: Final = "index.search.default_pipeline"
_REPLICAS: Final = "index.replication.type"
_DURABILITY: Final = "index.translog.durability"
_NONE: Final = "_none"
_OURS: Final = {"default_pipeline": _NONE, "final_pipeline": _NONE, "translog.durability": "request"}
_NO_TEMPLATES: Final = {"_source": {"enabled": True, "includes": [], "excludes": []}, "_routing": {"required": False}}
"""What a template of the cluster could say otherwise: documents would be changed, dropped, refused or not be read, or
be lost by a crash of the server behind the position that says they are there."""


def alias_of(prefix: str, table: TargetTable) -> str:
    """Return the alias of a table's live index."""
    name = ".".join((index_name(prefix), index_name(table.schema), index_name(table.copy_name)))
    if len(name) > MAX_NAME_BYTES:
        name = f"{name[: MAX_NAME_BYTES - 65]}-{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def is_ours(index: str, alias: str) -> bool:
    """Whether an index has a name as `Indexes.make` gives it, and no other hand: a clone may lie beside it."""
    return re.fullmatch(re.escape(alias) + r"\.[0-9a-f]{32}", index) is not None


def alone(alias: str, found: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the one index that an alias names, and what was found of it. Raises OperatorError for several."""
    if len(found) != 1:
        msg = f"alias {alias} names several indexes: {', '.join(sorted(found))}"
        raise OperatorError(msg, hint="take it off those that this toolkit has not made: they have no cdc_identity")
    ((name, about),) = found.items()
    return name, about


class Indexes:
    """The indexes of a store. Raises the driver's exceptions."""

    def __init__(self, client: OpenSearch, settings: Mapping[str, object]) -> None:
        """`settings` are for new indexes."""
        self._client = client
        self._settings = settings

    def make_first(self, table: TargetTable, alias: str, identity: str) -> str | None:
        """Create an index for an alias that names none; None if another job has done so.

        Two jobs give it the same name: the first that is free. Those that others have taken the alias off, or that were
        there before a rebuild, have theirs.
        """
        made, number = None, 0
        while made is None:
            with ignore_existing():
                made = self.make(table, alias, identity, f"{number:032x}")
            if self.exists(alias):
                break
            number += 1
        return made

    def make(self, table: TargetTable, alias: str, identity: str, number: str = "") -> str:
        """Create an index, named by `alias`; returns its own name."""
        name = f"{alias.removesuffix('.beside')}.{number or uuid.uuid4().hex}"
        fields = mapping(table)
        limit = {_LIMIT: max(_LIMIT_DEFAULT, fields_needed(fields["properties"]) + _LIMIT_ROOM)}
        mappings = {**fields, "_meta": {_IDENTITY: identity, NAMES: ENCODED, _FORMS: forms_of(table)}}
        self._client.indices.create(index=name, body={**self._body(mappings, limit), "aliases": {alias: {}}})
        return name

    def make_plain(self, name: str) -> None:
        """Create an index without searchable fields, if it does not exist: many servers do not by themselves."""
        if not self._client.indices.exists(index=name):
            with ignore_existing():
                self._client.indices.create(index=name, body=self._body({"dynamic": False}, {}))

    def _body(self, mappings: Mapping[str, Any], limit: Mapping[str, int]) -> dict[str, Any]:
        """Return what an index is made with, whatever templates of the cluster say."""
        settings = {"index": {**_OURS, **self._settings}, **limit}
        return {"settings": settings, "mappings": {**_NO_TEMPLATES, **mappings}}

    def missing_fields(self, table: TargetTable, alias: str) -> tuple[dict[str, Any], int]:
        """Return the fields that a table's index does not have yet, and how many it needs with them.

        Raises OperatorError for one that has another type.
        """
        _, about = alone(alias, self._client.indices.get_mapping(index=alias))
        there = about["mappings"]
        had, added = there.get("properties", {}), {}
        encoded = any(field_name(column.name) != column.name for column in table.columns)
        if encoded and there["_meta"].get(NAMES) != ENCODED:
            msg = f"index {alias} was made by an earlier release, which named the fields of some columns otherwise"
            raise OperatorError(msg, hint=rebuild(table.qualified))
        for name, field in mapping(table)["properties"].items():
            if name not in had:
                added[name] = field
            elif type_of_field(had[name]) != type_of_field(field):
                is_, would = type_of_field(had[name]), type_of_field(field)
                msg = f"index {alias}, column {column_name(name)}: it is {is_} and would have to be {would}"
                raise OperatorError(msg, hint=rebuild(table.qualified))
        require_same_forms(table, there["_meta"].get(_FORMS, {}), f"index {alias}")
        return added, fields_needed(had | added)

    def evolve(self, table: TargetTable, alias: str) -> None:
        """Add fields for new columns, and let the index have so many."""
        added, needed = self.missing_fields(table, alias)
        if not added:
            return
        _, settings = alone(alias, self._client.indices.get_settings(index=alias, name=_LIMIT, flat_settings=True))
        if needed > int(settings["settings"].get(_LIMIT, _LIMIT_DEFAULT)):
            self._client.indices.put_settings(index=alias, body={_LIMIT: needed + _LIMIT_ROOM})
        _, about = alone(alias, self._client.indices.get_mapping(index=alias))
        meta = about["mappings"]["_meta"]
        forms = {name: form for name, form in forms_of(table).items() if field_name(name) in added}
        meta = {**meta, _FORMS: {**meta.get(_FORMS, {}), **forms}}
        self._client.indices.put_mapping(index=alias, body={"properties": added, "_meta": meta})

    def identity(self, alias: str) -> str:
        """Return what an index was stamped with. Raises OperatorError for one that is not ours."""
        name, about = alone(alias, self._client.indices.get_mapping(index=alias, request_timeout=ASKED_WITHIN_S))
        identity = about["mappings"].get("_meta", {}).get(_IDENTITY)
        if identity is None:
            raise self._foreign(name)
        return str(identity)

    def standing(self, alias: str) -> tuple[str, bool]:
        """Return the id that the server has given to the index of an alias, and whether a crash loses what it took.

        It does by ``index.translog.durability: async``, which another hand may have given it.

        Raises OperatorError for what another hand has given it: a pipeline that may change or drop documents behind the
        last look at them (its default one is passed by, see `spark_apply.stores.opensearch.bulk`), or a routing of the
        alias, by which another shard than the one that has a document would get the next version, or the delete.
        """
        names = f"index.uuid,{_FINAL},{_DURABILITY}"
        found = self._client.indices.get_settings(
            index=alias, name=names, flat_settings=True, request_timeout=ASKED_WITHIN_S
        )
        index, about = alone(alias, found)
        pipeline = about["settings"].get(_FINAL, _NONE)
        if pipeline != _NONE:
            msg = f"index {alias} has the final_pipeline {pipeline}, which may change or drop documents"
            hint = (
                f"curl -X PUT '<url>/{index}/_settings' -H 'Content-Type: application/json' "
                f'-d \'{{"{_FINAL}": "{_NONE}"}}\'  # then it goes on by itself'
            )
            raise OperatorError(msg, hint=hint)
        _, about_alias = alone(
            alias, self._client.indices.get_alias(index=alias, name=alias, request_timeout=ASKED_WITHIN_S)
        )
        if "index_routing" in about_alias["aliases"][alias]:
            plain = {"actions": [{"add": {"index": index, "alias": alias}}]}
            raise OperatorError(
                f"alias {alias} has a routing: versions of a document would lie in several shards",
                hint="give readers an alias of their own for that, and take it off here: curl -X POST '<url>/_aliases' "
                f"-H 'Content-Type: application/json' -d '{json.dumps(plain)}'  # then it goes on by itself",
            )
        late = str(about["settings"].get(_DURABILITY, "request")).lower() != "request"
        return str(about["settings"]["index.uuid"]), late

    def read_at_once(self, alias: str) -> tuple[str, int, dict[str, Any]]:
        """Return the index of an alias, which may be shown by a filter, how many documents to ask for at once, and how.

        A template, or another hand, may allow few, or have a pipeline leave documents or fields out of what is found.
        Replicas that get segments copied show a refresh later than the primaries that have made it.
        """
        names = f"index.uuid,{_WINDOW},{_SEARCHES},{_REPLICAS}"  # one without any of them is not in the answer
        index, about = alone(alias, self._client.indices.get_settings(index=alias, name=names, flat_settings=True))
        how: dict[str, Any] = {"search_pipeline": _NONE} if about["settings"].get(_SEARCHES, _NONE) != _NONE else {}
        if about["settings"].get(_REPLICAS) == "SEGMENT":
            how["preference"] = "_primary"
        return index, min(_READ_AT_ONCE, int(about["settings"].get(_WINDOW, _READ_AT_ONCE))), how

    def require_free(self, name: str) -> None:
        """Raise OperatorError where an index has the name of an alias that is to be made."""
        if self._client.indices.exists(index=name):
            raise self._foreign(name)

    @staticmethod
    def _foreign(name: str) -> OperatorError:
        msg = f"index {name} is there already and was not made by this toolkit"
        return OperatorError(msg, hint="give the job another topic_prefix, or that index another name")

    def named(self, alias: str) -> list[str]:
        """Return the indexes that an alias names: one or none."""
        if not self.exists(alias):
            return []
        return list(self._client.indices.get_alias(index=alias, name=alias, ignore=MISSING))

    def handed_on(self, index: str) -> list[tuple[str, Any]]:
        """Return the aliases of an index with how each shows it: also what others have given it, with their filters.

        Those would show what nobody writes to any more, and go with that index.
        """
        return list(self._client.indices.get_alias(index=index)[index]["aliases"].items())

    def exists(self, alias: str) -> bool:
        """Whether an alias names an index.

        It alone is asked for: without, all indexes of the server are, and one that somebody has blocked refuses that.
        """
        return bool(self._client.indices.exists_alias(index=alias, name=alias, request_timeout=ASKED_WITHIN_S))
