"""Makes and reads one index: its rows, and the document that says up to where they are applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
import tantivy

from cdc.model.errors import OperatorError
from spark_apply.stores.tantivy.documents import FIELD_KEY, FIELD_ROW, document_of, schema

_APPLIED = "applied"  # differs from every key's JSON, which begins with {
_WRITER_BYTES = 120_000_000  # with less, more segments are merged


class Shape(NamedTuple):
    """What an index has of its table."""

    fields: Mapping[str, str]
    """The searchable columns, and the types of their fields."""
    forms: Mapping[str, str]
    """The columns, and the types that documents have their values in; of an earlier release's index not known."""


def create_index(
    folder: Path,
    shape: Shape,
    *,
    identity: str,
    rows: Iterable[tuple[str, str, str]],
    position: str | None,
) -> None:
    """Make an index of these rows."""
    folder.mkdir(parents=True)
    index = tantivy.Index(schema(shape.fields), path=str(folder))
    writer = writer_of(index, folder)
    for id_, row_position, document in rows:
        writer.add_json(document_of(id_, row_position, document, shape.fields))
    note_applied(writer, identity, position, shape)
    writer.commit()
    writer.wait_merging_threads()


def existing(folder: Path) -> tantivy.Index:
    """Open an index. Raises OperatorError where there is none."""
    try:
        return tantivy.Index.open(str(folder))
    except (ValueError, OSError) as exc:
        msg = f"{folder} is there and holds no index that can be opened"
        raise OperatorError(msg, hint="move it away: the index is filled again from the topics") from exc


def writer_of(index: tantivy.Index, folder: Path) -> tantivy.IndexWriter:
    """Return the one writer of an index. Raises OperatorError while another process has it."""
    try:
        return index.writer(heap_size=_WRITER_BYTES, num_threads=1)
    except ValueError as exc:
        msg = f"the index in {folder} has a writer already"
        raise OperatorError(msg, hint="stop the apply job that writes it; an index has one writer") from exc


def note_applied(writer: tantivy.IndexWriter, identity: str, position: str | None, shape: Shape) -> None:
    """Replace the document that says what the index is of, and up to where events are applied."""
    said = {"identity": identity, "position": position, "fields": dict(shape.fields), "forms": dict(shape.forms)}
    writer.delete_documents_by_term(FIELD_KEY, _APPLIED)
    made = tantivy.Document()
    made.add_text(FIELD_KEY, _APPLIED)
    made.add_bytes(FIELD_ROW, orjson.dumps(said))
    writer.add_document(made)


def applied(index: tantivy.Index, folder: Path) -> tuple[str, str | None, Shape]:
    """Return identity, applied position and shape of an index. Raises OperatorError for one that is not ours."""
    searcher = index.searcher()
    hits = searcher.search(tantivy.Query.term_query(index.schema, FIELD_KEY, _APPLIED), limit=1).hits
    if not hits:
        msg = f"the index in {folder} was not made by this toolkit"
        raise OperatorError(msg, hint="give the store another path")
    mark = orjson.loads(bytes(searcher.doc(hits[0][1]).get_first(FIELD_ROW) or b""))
    return mark["identity"], mark["position"], Shape(mark["fields"], mark.get("forms", {}))


def to_look_up(ids: Sequence[str], positions: Sequence[str], ops: Sequence[str], applied: str) -> list[str]:
    """Return the documents to look up: the others are newer than everything in the index."""
    each = zip(ids, positions, ops, strict=True)
    return [id_ for id_, position, op in each if op == "d" or position <= applied]


def positions_of(index: tantivy.Index, ids: list[str]) -> dict[str, str]:
    """Return the positions of those documents that the index has."""
    if not ids:
        return {}
    query = tantivy.Query.term_set_query(index.schema, FIELD_KEY, ids)
    return {id_: position for id_, position, _ in found_by(index, query, limit=len(ids))}


def rows_of(index: tantivy.Index) -> Iterator[tuple[str, str, str]]:
    """Yield id, position and document of every row."""
    return found_by(index, tantivy.Query.all_query(), limit=index.searcher().num_docs)


def found_by(index: tantivy.Index, query: tantivy.Query, *, limit: int) -> Iterator[tuple[str, str, str]]:
    """Yield id, position and document of the rows that a query finds."""
    searcher = index.searcher()
    for _, address in searcher.search(query, limit=max(limit, 1), count=False).hits:
        stored = searcher.doc(address)
        id_ = str(stored.get_first(FIELD_KEY))
        if id_ != _APPLIED:
            position, document = orjson.loads(bytes(stored.get_first(FIELD_ROW) or b""))
            yield id_, position, document
