"""Finds the pairs of a match as a whole, by an index: the other way to the same answer, for `cdc view verify`.

Nothing is shared with how the job finds them but the words of a text and how a search is read. Texts are indexed by
tantivy, some thousands at a time, and each search is a query of its own over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import tantivy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql.types import StructField, StructType

from cdc.model.change import Kind
from spark_apply.model.types import spark_type
from spark_apply.spark.names import quoted
from spark_apply.views.model.values import Columns
from spark_apply.views.search.plan import Match
from spark_apply.views.search.query import Asked, Every, Search, Some, Without, Words, read_search
from spark_apply.views.search.words import analyzer, normal

_AT_ONCE: Final = 20_000
_TOKENIZER: Final = "words"
_NUMBER: Final = "number"

Key = tuple[Any, ...]


def pairs_of(
    match: Match, queries: Iterable[tuple[Key, str | None]], docs: Iterator[tuple[Key, Sequence[str | None]]]
) -> Iterator[Key]:
    """Yield the keys of each search and each text that it finds."""
    read = [(key, read_search(text)) for key, text in queries if text is not None]
    searches = [(key, asked.search) for key, asked in read if isinstance(asked, Asked)]
    fields = [f"field_{number}" for number in range(len(match.fields))]
    while some := list(itertools.islice(docs, _AT_ONCE)):
        index = _index(fields, [texts for _, texts in some])
        searcher = index.searcher()
        for key, search in searches:
            query = _query(index.schema, fields, search)
            for _, address in searcher.search(query, limit=len(some), count=False).hits:
                (number,) = searcher.doc(address)[_NUMBER]
                yield (*key, *some[number][0])


def _index(fields: Sequence[str], rows: Sequence[Sequence[str | None]]) -> tantivy.Index:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field(_NUMBER, stored=True)
    for name in fields:
        builder.add_text_field(name, tokenizer_name=_TOKENIZER, index_option="position")
    index = tantivy.Index(builder.build())
    index.register_tokenizer(_TOKENIZER, analyzer())
    writer = index.writer(num_threads=1)
    for number, texts in enumerate(rows):
        document = tantivy.Document()
        document.add_unsigned(_NUMBER, number)
        for name, text in zip(fields, texts, strict=True):
            if text is not None:
                document.add_text(name, normal(text))
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index


def _query(schema: tantivy.Schema, fields: Sequence[str], search: Search) -> tantivy.Query:
    match search:
        case Words((word,)):
            found = [tantivy.Query.term_query(schema, name, word) for name in fields]
        case Words(of):
            found = [tantivy.Query.phrase_query(schema, name, list(of)) for name in fields]
        case Some(parts):
            found = [_query(schema, fields, part) for part in parts]
        case Every(parts):
            return _boolean([(tantivy.Occur.Must, _query(schema, fields, part)) for part in parts])
        case Without(what):
            every = (tantivy.Occur.Must, tantivy.Query.all_query())
            return _boolean([every, (tantivy.Occur.MustNot, _query(schema, fields, what))])
    return _boolean([(tantivy.Occur.Should, each) for each in found])


def _boolean(parts: Sequence[tuple[tantivy.Occur, tantivy.Query]]) -> tantivy.Query:
    return tantivy.Query.boolean_query(list(parts))


def no_searches(spark: SparkSession, match: Match, columns: Columns, queries: DataFrame, why: str) -> DataFrame | None:
    """Return the keys of rows of these that are no searches, with the reason as `why`; None where there are none."""
    kinds = dict(columns)
    rows = _keyed(kinds, queries, match.queries.change_columns, match.query_columns, (match.query,)).collect()
    bad = [(*key, f"no search, {found}") for *key, text in rows if isinstance(found := read_search(text or ""), str)]
    schema = StructType([StructField(name, spark_type(kinds[name])) for name in match.query_columns]).add(why, "string")
    return spark.createDataFrame(bad, schema) if bad else None


def _keyed(
    kinds: Mapping[str, Kind], rows: DataFrame, key: Sequence[str], names: Sequence[str], texts: Sequence[str]
) -> DataFrame:
    """Return rows with the columns of their key, by these names, and texts of them."""
    keys = [F.col(quoted(c)).cast(spark_type(kinds[n])).alias(n) for c, n in zip(key, names, strict=True)]
    return rows.select(*keys, *(F.col(quoted(c)).alias(f"_text{number}") for number, c in enumerate(texts)))


def matched(spark: SparkSession, match: Match, columns: Columns, queries: DataFrame, docs: DataFrame) -> DataFrame:
    """Return the rows that a match has over these rows of its relations."""
    kinds = dict(columns)
    searches = _keyed(kinds, queries, match.queries.change_columns, match.query_columns, (match.query,)).collect()
    texts = _keyed(kinds, docs, match.docs.change_columns, match.doc_columns, match.fields)
    of_query, of_doc = len(match.query_columns), len(match.doc_columns)
    found = pairs_of(
        match,
        ((tuple(row[:of_query]), row[of_query]) for row in searches),
        ((tuple(row[:of_doc]), row[of_doc:]) for row in texts.toLocalIterator()),
    )
    places = [match.columns.index(name) for name in kinds]
    schema = StructType([StructField(name, spark_type(kind)) for name, kind in columns])
    return spark.createDataFrame([tuple(pair[place] for place in places) for pair in found], schema)
