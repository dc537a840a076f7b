"""Keeps an embedded full-text index for each source table: a folder, one writer, no server.

    <path>/<schema>/<table>             a link to the live index
    <path>/<schema>/<table>.previous    a link to the previous index
    <path>/<schema>/<table>.<number>/   an index
    <path>/<schema>/<table>.<number>/cdc-mark.json    how far it is complete, replaced after a commit

    field              type                              what
    _cdc_key           text, raw, stored                 the key's JSON; its SHA-256 where it is over 512 bytes
    _cdc_row           bytes, stored                     position and document, as a JSON array
    _cdc_text          text, default tokenizer           every text column: what a plain query searches
    <column>           by kind: text, integer, unsigned, the column, for ``status:paid`` or ``total:[10 TO 20]``;
                       float, boolean, date              decimals are indexed as floats, dates within 1678 to 2261
                                                         infinite numbers as the greatest; NaN not at all

One further document, keyed ``applied``, holds the identity and the applied position, and is replaced with each commit:
the batch and its position are both in the index, or neither. New columns need a new schema: the index is then copied
from its own documents, and the link is moved. Open readers go on with the index that they have opened.
"""

from __future__ import annotations

import base64
import datetime as dt
import fcntl
import math
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import tantivy
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.typed import KEY, OP, POSITION
from spark_apply.model.completeness import Mark
from spark_apply.model.document import DOCUMENT, document_id, with_document
from spark_apply.model.foresight import Foreseen
from spark_apply.model.identity import identity_of, stamp
from spark_apply.model.store import Applied, Batch, Due, StoredRow, only_options
from spark_apply.model.target_table import TargetTable
from spark_apply.model.types import spark_type
from spark_apply.spark.names import folder_name
from spark_apply.spark.paths import local

FIELD_KEY, FIELD_ROW, FIELD_TEXT = "_cdc_key", "_cdc_row", "_cdc_text"

_MARK, _DUE, _CAUGHT_UP = "cdc-mark.json", "cdc-due.json", "cdc-caught-up"
_APPLIED = "applied"  # differs from every key's JSON, which begins with {
_WRITER_BYTES = 120_000_000  # with less, more segments are merged
_SLICE = 20_000
_DATE_YEARS = range(1678, 2262)  # the engine counts nanoseconds in 64 bits
_YEAR = re.compile(r"\d{4}-")
_DATE_LENGTH = len("2024-02-29")
_GREATEST = sys.float_info.max


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> TantivyStore:
    """Open the indexes below the folder of `config`; create nothing."""
    del prefix, spark
    only_options(config, name, ())
    if config.path is None:
        raise ConfigError(f"stores.{name}: path is missing", hint="path: ./search")
    folder = local(config.path)
    if folder is None:
        msg = f"stores.{name}.path: an index lies on a disk of the machine that the job is started on"
        raise ConfigError(msg, hint="path: ./search")
    return TantivyStore(folder)


@dataclass(slots=True)
class _OpenIndex:
    index: tantivy.Index
    writer: tantivy.IndexWriter
    fields: Mapping[str, str]
    identity: str
    position: str | None


class TantivyStore:
    """A `spark_apply.model.store.Store`; with `folder`, of the one index in it."""

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self._path = path
        self._folder = folder
        self._open: dict[str, _OpenIndex] = {}
        self._beside: dict[str, TantivyStore] = {}

    def foresee(self, table: TargetTable) -> Foreseen:
        link, fields = self.folder(table), _fields(table)
        if not link.exists():
            return Foreseen(None)
        stamped, _, had = _applied(_existing(link), link)
        other = sorted(name for name in fields.keys() | had.keys() if fields.get(name) != had.get(name))
        changes = (f"index its rows again, for {', '.join(other)}",) if other else ()
        return Foreseen(identity_of(stamped, table, f"the index in {link}"), changes)

    def open(self, table: TargetTable) -> str:
        link, fields = self.folder(table), _fields(table)
        self._close_index(table.qualified)
        link.parent.mkdir(parents=True, exist_ok=True)
        with _locked(link):
            if not link.exists():
                made = _new_folder(link)
                _create(made, fields, identity=stamp(table), rows=(), position=None)
                _point_link(link, made)
            folder = _live(link)
            index = _existing(folder)
            stamped, position, had = _applied(index, folder)
            identity = identity_of(stamped, table, f"the index in {link}")
            if had != fields:
                made = _new_folder(link)
                _create(made, fields, identity=stamped, rows=_rows(index), position=position)
                for name in (_MARK, _DUE, _CAUGHT_UP):
                    if (folder / name).exists():
                        shutil.copy(folder / name, made)
                del index
                _point_link(link, made)
                shutil.rmtree(folder)
                index, folder = _existing(made), made
        self._open[table.qualified] = _OpenIndex(index, _writer(index, folder), fields, stamped, position)
        return identity

    def apply(self, batch: Batch) -> Applied:
        opened = self._open[batch.table.qualified]
        read = with_document(batch.rows, batch.table).select(KEY, POSITION, OP, DOCUMENT).toArrow()
        before = opened.position
        written = deleted = stale = 0
        try:
            for part in read.to_batches(max_chunksize=_SLICE):
                keys, positions, ops, documents = (column.to_pylist() for column in part.columns)
                ids = [document_id(key) for key in keys]
                known = {} if before is None else _positions(opened.index, _asked(ids, positions, ops, before))
                for id_, position, op, document in zip(ids, positions, ops, documents, strict=True):
                    if position <= known.get(id_, ""):
                        stale += 1
                        continue
                    if before is not None:
                        opened.writer.delete_documents_by_term(FIELD_KEY, id_)
                    if op != "d":
                        opened.writer.add_json(_document(id_, position, document, opened.fields))
                        written += 1
                    elif id_ in known:
                        deleted += 1
            opened.position = max(opened.position or "", batch.position)
            _mark(opened.writer, opened.identity, opened.position, opened.fields)
            opened.writer.commit()
        except BaseException:
            opened.writer.rollback()
            raise
        opened.index.reload()
        return Applied(written, deleted, stale)

    def position(self, table: TargetTable) -> str | None:
        if not self.folder(table).exists():
            return None
        return _applied(_existing(self.folder(table)), self.folder(table))[1]

    def mark(self, table: TargetTable) -> Mark | None:
        if self.due(table) is not None:
            return None
        try:
            return Mark.from_json((self.folder(table) / _MARK).read_bytes())
        except FileNotFoundError:
            return None

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        _write(self.folder(table).resolve() / _MARK, mark.to_json())

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        index = _existing(self.folder(table))
        if ids is None:
            return (StoredRow(id_, document) for id_, _, document in _rows(index))
        query = tantivy.Query.term_set_query(index.schema, FIELD_KEY, list(ids))
        found = _found(index, query, limit=index.searcher().num_docs)
        return (StoredRow(id_, document) for id_, _, document in found)

    def id_of(self, event_key: str, document_key: str) -> str:
        del document_key
        return document_id(event_key)

    def search(self, table: str, words: str, *, limit: int = 10) -> list[str]:
        """Return the documents of ``schema.table`` that match a query in the engine's language, best first.

        Plain words are searched in all text columns, ``status:paid`` in one.
        """
        schema, _, name = table.partition(".")
        index = _existing(self._path / folder_name(schema) / folder_name(name))
        query = index.parse_query(words, [FIELD_TEXT])
        return [document for _, _, document in _found(index, query, limit=limit)]

    def beside(self, table: TargetTable) -> TantivyStore:
        link, fields = self.folder(table), _fields(table)
        with _locked(link):
            live = _live(link)
            identity = stamp(table, _applied(_existing(live), live)[0])
            named = {live, _previous(link).resolve()}
            for folder in _folders(link):
                if folder.resolve() not in named:
                    shutil.rmtree(folder)
            made = _new_folder(link)
            _create(made, fields, identity=identity, rows=(), position=None)
        copy = self._beside[table.qualified] = TantivyStore(self._path, made)
        index = _existing(made)
        copy._open[table.qualified] = _OpenIndex(index, _writer(index, made), fields, identity, position=None)
        return copy

    def swap(self, table: TargetTable, due: Due) -> None:
        link, copy = self.folder(table), self._beside.pop(table.qualified)
        made = copy.folder(table)
        copy.close()
        _write(made / _DUE, due.to_json())
        with _locked(link):
            replaced, kept = link.resolve(), _previous(link).resolve()
            _point_link(_previous(link), replaced)
            _point_link(link, made)
            if kept in _folders(link) and kept != replaced:
                shutil.rmtree(kept)

    def previous(self, table: TargetTable) -> dt.datetime | None:
        link = self.folder(table)
        previous = _previous(link)
        if not previous.exists() or previous.resolve() == link.resolve():  # the same: an unfinished swap
            return None
        return dt.datetime.fromtimestamp(previous.lstat().st_mtime, dt.UTC)

    def roll_back(self, table: TargetTable, due: Due) -> None:
        link = self.folder(table)
        with _locked(link):
            kept = _previous(link).resolve()
            _write(kept / _DUE, due.to_json())
            _point_link(link, kept)
            _previous(link).unlink()  # the replaced index may still have a writer: the next `beside` removes it

    def due(self, table: TargetTable) -> Due | None:
        folder = self.folder(table).resolve()
        if not (folder / _DUE).exists():
            return None
        due = Due.from_json((folder / _DUE).read_text())
        done = folder / _CAUGHT_UP
        return None if done.exists() and done.read_text() == due.id else due

    def caught_up(self, table: TargetTable, due: Due) -> None:
        _write(self.folder(table).resolve() / _CAUGHT_UP, due.id)

    def close(self) -> None:
        for copy in self._beside.values():
            copy.close()
        self._beside.clear()
        for table in list(self._open):
            self._close_index(table)

    def _close_index(self, table: str) -> None:
        opened = self._open.pop(table, None)
        if opened is not None:
            opened.writer.wait_merging_threads()  # closes the writer, which releases its lock on the folder

    def folder(self, table: TargetTable) -> Path:
        """Return the link to the table's live index."""
        return self._folder or self._path / folder_name(table.schema) / folder_name(table.copy_name)


def _live(link: Path) -> Path:
    """Return the folder of the live index."""
    if not link.is_symlink():  # created by a release without links
        folder = link.rename(_new_folder(link))
        _point_link(link, folder)
    return link.resolve()


def _previous(link: Path) -> Path:
    return link.with_name(f"{link.name}.previous")


def _new_folder(link: Path) -> Path:
    return link.with_name(f"{link.name}.{uuid.uuid4().hex}")


def _folders(link: Path) -> list[Path]:
    """Return the folders of a table's indexes, also those without a link."""
    folder = link.parent.resolve()
    return [path for path in folder.iterdir() if re.fullmatch(re.escape(link.name) + r"\.[0-9a-f]{32}", path.name)]


def _point_link(link: Path, folder: Path) -> None:
    """Point the link to the folder beside it, atomically."""
    unfinished = link.with_name(f"{link.name}.link")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(folder.name)
    unfinished.replace(link)


def _write(file: Path, text: str) -> None:
    unfinished = file.with_name(f"{file.name}.new")
    with unfinished.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)


@contextmanager
def _locked(link: Path) -> Iterator[None]:
    """Lock the table's links and folders against other processes."""
    with link.with_name(f"{link.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _create(
    folder: Path,
    fields: Mapping[str, str],
    *,
    identity: str,
    rows: Iterable[tuple[str, str, str]],
    position: str | None,
) -> None:
    folder.mkdir(parents=True)
    index = tantivy.Index(_schema(fields), path=str(folder))
    writer = _writer(index, folder)
    for id_, row_position, document in rows:
        writer.add_json(_document(id_, row_position, document, fields))
    _mark(writer, identity, position, fields)
    writer.commit()
    writer.wait_merging_threads()


def _existing(folder: Path) -> tantivy.Index:
    try:
        return tantivy.Index.open(str(folder))
    except (ValueError, OSError) as exc:
        msg = f"{folder} is there and holds no index that can be opened"
        raise OperatorError(msg, hint="move it away: the index is filled again from the topics") from exc


def _writer(index: tantivy.Index, folder: Path) -> tantivy.IndexWriter:
    try:
        return index.writer(heap_size=_WRITER_BYTES, num_threads=1)
    except ValueError as exc:
        msg = f"the index in {folder} has a writer already"
        raise OperatorError(msg, hint="stop the apply job that writes it; an index has one writer") from exc


def _fields(table: TargetTable) -> dict[str, str]:
    """Return the searchable columns, and the types of their fields."""
    found = {column.name: _field_type(column.kind) for column in table.columns}
    return {name: kind for name, kind in found.items() if kind and tantivy.SchemaBuilder.is_valid_field_name(name)}


def _field_type(kind: Kind) -> str | None:
    if kind.name == "array" and kind.element is not None:
        return _field_type(kind.element) if kind.element.name != "array" else None
    if kind.name == "decimal":
        return "float"
    if kind.name in ("geometry", "vector", "bytes"):
        return None
    stored_as = spark_type(kind).typeName()
    by_type = {"integer": "integer", "long": "integer", "decimal": "unsigned", "float": "float", "double": "float"}
    by_type |= {"boolean": "boolean", "date": "date", "timestamp": "date", "timestamp_ntz": "date", "string": "text"}
    return by_type[stored_as]


def _schema(fields: Mapping[str, str]) -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(FIELD_KEY, stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field(FIELD_ROW, stored=True)
    builder.add_text_field(FIELD_TEXT)
    for name, kind in fields.items():
        if kind == "text":
            builder.add_text_field(name)
        else:
            getattr(builder, f"add_{kind}_field")(name, indexed=True, fast=True)
    return builder.build()


def _document(id_: str, position: str, document: str, fields: Mapping[str, str]) -> str:
    """Return what the engine indexes of a row, in its own JSON: faster than a call for each value."""
    texts: list[str] = []
    row = base64.b64encode(orjson.dumps([position, document])).decode()
    made: dict[str, object] = {FIELD_KEY: id_, FIELD_ROW: row, FIELD_TEXT: texts}
    values = orjson.loads(document)
    for name, kind in fields.items():
        value = values.get(name)
        if value is None:
            continue
        read = _READ_AS.get(kind)
        if isinstance(value, list):
            value = [item for item in value if item is not None]
            made[name] = value if read is None else [item for item in map(read, value) if item is not None]
            if kind == "text":
                texts += value
        elif kind == "text":
            made[name] = value
            texts.append(value)
        elif (found := value if read is None else read(value)) is not None:
            made[name] = found
    return orjson.dumps(made).decode()


def _number(text: str | float) -> float | None:
    """Return a float that JSON can hold: the greatest one for infinity; None for NaN, which has no order."""
    number = float(text)
    return None if math.isnan(number) else max(-_GREATEST, min(number, _GREATEST))


def _moment(text: str) -> str | None:
    """Return a date or a time as RFC 3339, if it is in the engine's range."""
    if not _YEAR.match(text) or int(text[:4]) not in _DATE_YEARS:
        return None
    return f"{text}T00:00:00Z" if len(text) == _DATE_LENGTH else f"{text.removesuffix('Z')}Z"


_READ_AS: Final[Mapping[str, Callable[[Any], object]]] = {"float": _number, "date": _moment}


def _mark(writer: tantivy.IndexWriter, identity: str, position: str | None, fields: Mapping[str, str]) -> None:
    writer.delete_documents_by_term(FIELD_KEY, _APPLIED)
    made = tantivy.Document()
    made.add_text(FIELD_KEY, _APPLIED)
    made.add_bytes(FIELD_ROW, orjson.dumps({"identity": identity, "position": position, "fields": dict(fields)}))
    writer.add_document(made)


def _applied(index: tantivy.Index, folder: Path) -> tuple[str, str | None, dict[str, str]]:
    searcher = index.searcher()
    hits = searcher.search(tantivy.Query.term_query(index.schema, FIELD_KEY, _APPLIED), limit=1).hits
    if not hits:
        msg = f"the index in {folder} was not made by this toolkit"
        raise OperatorError(msg, hint="give the store another path")
    mark = orjson.loads(bytes(searcher.doc(hits[0][1]).get_first(FIELD_ROW) or b""))
    return mark["identity"], mark["position"], mark["fields"]


def _asked(ids: Sequence[str], positions: Sequence[str], ops: Sequence[str], applied: str) -> list[str]:
    """Return the documents to look up: the others are newer than everything in the index."""
    each = zip(ids, positions, ops, strict=True)
    return [id_ for id_, position, op in each if op == "d" or position <= applied]


def _positions(index: tantivy.Index, ids: list[str]) -> dict[str, str]:
    """Return the positions of those documents that the index has."""
    if not ids:
        return {}
    query = tantivy.Query.term_set_query(index.schema, FIELD_KEY, ids)
    return {id_: position for id_, position, _ in _found(index, query, limit=len(ids))}


def _rows(index: tantivy.Index) -> Iterator[tuple[str, str, str]]:
    """Yield id, position and document of every row."""
    return _found(index, tantivy.Query.all_query(), limit=index.searcher().num_docs)


def _found(index: tantivy.Index, query: tantivy.Query, *, limit: int) -> Iterator[tuple[str, str, str]]:
    searcher = index.searcher()
    for _, address in searcher.search(query, limit=max(limit, 1), count=False).hits:
        stored = searcher.doc(address)
        id_ = str(stored.get_first(FIELD_KEY))
        if id_ != _APPLIED:
            position, document = orjson.loads(bytes(stored.get_first(FIELD_ROW) or b""))
            yield id_, position, document
