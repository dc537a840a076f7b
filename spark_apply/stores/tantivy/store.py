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

import datetime as dt
import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tantivy
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.typed import KEY, OP, POSITION
from spark_apply.model.altered import put_back
from spark_apply.model.completeness import NEW, Mark
from spark_apply.model.document import DOCUMENT, document_id, forms_of, require_same_forms, with_document
from spark_apply.model.foresight import Foreseen
from spark_apply.model.identity import identity_of, stamp
from spark_apply.model.kept_mark import kept_mark
from spark_apply.model.store import Applied, Batch, Due, StoredRow, only_options
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import folder_name
from spark_apply.spark.paths import local
from spark_apply.stores.tantivy.documents import FIELD_KEY, FIELD_TEXT, document_of, fields_of, require_same_values
from spark_apply.stores.tantivy.folders import (
    index_folders,
    live_index,
    locked,
    new_folder,
    point_link,
    previous_link,
    reached,
    unreached,
    write_durably,
)
from spark_apply.stores.tantivy.index import (
    Shape,
    applied,
    create_index,
    existing,
    found_by,
    note_applied,
    positions_of,
    rows_of,
    to_look_up,
    writer_of,
)

_MARK, _DUE, _CAUGHT_UP = "cdc-mark.json", "cdc-due.json", "cdc-caught-up"
_POSITION = "position"
"""In a mark, that of the documents that it speaks of."""
_SLICE = 20_000


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


def _shape(table: TargetTable) -> Shape:
    return Shape(fields_of(table), forms_of(table))


@dataclass(slots=True)
class _OpenIndex:
    index: tantivy.Index
    writer: tantivy.IndexWriter
    shape: Shape
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
        link, fields = self.folder(table), fields_of(table)
        if not link.exists():
            return Foreseen(None)
        stamped, _, shape = applied(existing(link), link)
        had = shape.fields
        require_same_values(table, had, f"the index in {link}")
        require_same_forms(table, shape.forms, f"the index in {link}")
        other = sorted(name for name in fields.keys() | had.keys() if fields.get(name) != had.get(name))
        changes = (f"index its rows again, for {', '.join(other)}",) if other else ()
        return Foreseen(identity_of(stamped, table, f"the index in {link}"), changes)

    def open(self, table: TargetTable) -> str:
        with reached(self.folder(table)):
            link, shape = self.folder(table), _shape(table)
            self._close_index(table.qualified)
            link.parent.mkdir(parents=True, exist_ok=True)
            with locked(link):
                if not link.exists():
                    made = new_folder(link)
                    create_index(made, shape, identity=stamp(table), rows=(), position=None)
                    write_durably(made / _MARK, NEW.to_json())
                    point_link(link, made)
                if not link.is_dir():  # somebody's file, which stays where it is
                    existing(link)
                folder = live_index(link)
                index = existing(folder)
                stamped, position, had = applied(index, folder)
                identity = identity_of(stamped, table, f"the index in {link}")
                require_same_values(table, had.fields, f"the index in {link}")
                require_same_forms(table, had.forms, f"the index in {link}")
                if had.fields != shape.fields:
                    made = new_folder(link)
                    create_index(made, shape, identity=stamped, rows=rows_of(index), position=position)
                    for name in (_MARK, _DUE, _CAUGHT_UP):
                        if (folder / name).exists():
                            shutil.copy(folder / name, made)
                    del index
                    point_link(link, made)
                    shutil.rmtree(folder)
                    index, folder = existing(made), made
            self._open[table.qualified] = _OpenIndex(index, writer_of(index, folder), shape, stamped, position)
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
                known = {} if before is None else positions_of(opened.index, to_look_up(ids, positions, ops, before))
                for id_, position, op, document in zip(ids, positions, ops, documents, strict=True):
                    if position <= known.get(id_, ""):
                        stale += 1
                        continue
                    if before is not None:
                        opened.writer.delete_documents_by_term(FIELD_KEY, id_)
                    if op != "d":
                        opened.writer.add_json(document_of(id_, position, document, opened.shape.fields))
                        written += 1
                    elif id_ in known:
                        deleted += 1
            opened.position = max(opened.position or "", batch.position)
            note_applied(opened.writer, opened.identity, opened.position, opened.shape)
            opened.writer.commit()
        except (OSError, ValueError) as exc:  # its writer is closed by the next `open`
            raise unreached(self.folder(batch.table), exc) from exc
        except BaseException:
            opened.writer.rollback()
            raise
        opened.index.reload()
        return Applied(written, deleted, stale)

    def position(self, table: TargetTable) -> str | None:
        with reached(self.folder(table), "read"):
            if not self.folder(table).exists():
                return None
            return applied(existing(self.folder(table)), self.folder(table))[1]

    def mark(self, table: TargetTable) -> Mark | None:
        if self.due(table) is not None:
            return None
        with reached(self.folder(table), "read"):
            try:
                text = (self.folder(table) / _MARK).read_bytes()
            except (FileNotFoundError, NotADirectoryError):  # `open` says what is there instead
                return None
        found = kept_mark(text, f"the index in {self.folder(table)}")
        spoken_of = "" if found is None else json.loads(text).get(_POSITION) or ""
        if spoken_of == "":
            return found
        try:  # a copy of the folder that was made while it was written may have a newer mark than its documents
            return found if (self.position(table) or "") >= spoken_of else None
        except OperatorError:  # to read documents takes a lock, for which not every reader of marks may make a file
            return found

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        with reached(self.folder(table)):
            has, opened = self.position(table), self._open.get(table.qualified)
            if opened is not None and has != opened.position and self.due(table) is None:
                raise put_back(f"the index in {self.folder(table)}")
            text = json.dumps({**json.loads(mark.to_json()), _POSITION: has})
            write_durably(self.folder(table).resolve() / _MARK, text)

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        index = existing(self.folder(table))
        if ids is None:
            return (StoredRow(id_, document) for id_, _, document in rows_of(index))
        query = tantivy.Query.term_set_query(index.schema, FIELD_KEY, list(ids))
        found = found_by(index, query, limit=index.searcher().num_docs)
        return (StoredRow(id_, document) for id_, _, document in found)

    def id_of(self, event_key: str, document_key: str) -> str:
        del document_key
        return document_id(event_key)

    def search(self, table: str, words: str, *, limit: int = 10) -> list[str]:
        """Return the documents of ``schema.table`` that match a query in the engine's language, best first.

        Plain words are searched in all text columns, ``status:paid`` in one.
        """
        schema, _, name = table.partition(".")
        index = existing(self._path / folder_name(schema) / folder_name(name))
        query = index.parse_query(words, [FIELD_TEXT])
        return [document for _, _, document in found_by(index, query, limit=limit)]

    def beside(self, table: TargetTable) -> TantivyStore:
        with reached(self.folder(table)):
            link, shape = self.folder(table), _shape(table)
            with locked(link):
                live = live_index(link)
                identity = stamp(table, applied(existing(live), live)[0])
                named = {live, previous_link(link).resolve()}
                for folder in index_folders(link):
                    if folder.resolve() not in named:
                        shutil.rmtree(folder)
                made = new_folder(link)
                create_index(made, shape, identity=identity, rows=(), position=None)
            copy = self._beside[table.qualified] = TantivyStore(self._path, made)
            index = existing(made)
            copy._open[table.qualified] = _OpenIndex(index, writer_of(index, made), shape, identity, position=None)
            return copy

    def swap(self, table: TargetTable, due: Due) -> None:
        with reached(self.folder(table)):
            link, copy = self.folder(table), self._beside.pop(table.qualified)
            made = copy.folder(table)
            copy.close()
            write_durably(made / _DUE, due.to_json())
            with locked(link):
                replaced, kept = link.resolve(), previous_link(link).resolve()
                point_link(previous_link(link), replaced)
                point_link(link, made)
                if kept in index_folders(link) and kept != replaced:
                    shutil.rmtree(kept)

    def previous(self, table: TargetTable) -> dt.datetime | None:
        with reached(self.folder(table), "read"):
            link = self.folder(table)
            previous = previous_link(link)
            if not previous.exists() or previous.resolve() == link.resolve():  # the same: an unfinished swap
                return None
            return dt.datetime.fromtimestamp(previous.lstat().st_mtime, dt.UTC)

    def roll_back(self, table: TargetTable, due: Due) -> None:
        with reached(self.folder(table)):
            link = self.folder(table)
            with locked(link):
                kept = previous_link(link).resolve()
                write_durably(kept / _DUE, due.to_json())
                point_link(link, kept)
                previous_link(link).unlink()  # the replaced index may still have a writer: the next `beside` removes it

    def due(self, table: TargetTable) -> Due | None:
        with reached(self.folder(table), "read"):
            folder = self.folder(table).resolve()
            if not (folder / _DUE).exists():
                return None
            due = Due.from_json((folder / _DUE).read_text())
            done = folder / _CAUGHT_UP
            return None if done.exists() and done.read_text() == due.id else due

    def caught_up(self, table: TargetTable, due: Due) -> None:
        with reached(self.folder(table)):
            write_durably(self.folder(table).resolve() / _CAUGHT_UP, due.id)

    def close(self) -> None:
        for copy in self._beside.values():
            copy.close()
        self._beside.clear()
        for table in list(self._open):
            self._close_index(table)

    def _close_index(self, table: str) -> None:
        opened = self._open.pop(table, None)
        if opened is not None:
            with suppress(OSError, ValueError):  # of what it could not write: that was told by the commit
                opened.writer.wait_merging_threads()  # closes the writer, which releases its lock on the folder

    def folder(self, table: TargetTable) -> Path:
        """Return the link to the table's live index."""
        return self._folder or self._path / folder_name(table.schema) / folder_name(table.copy_name)
