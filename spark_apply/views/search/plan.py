"""From a match of views.yaml to the plan of a view: pairs of the keys of searches and texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from cdc.config.views import MatchConfig
from cdc.model.errors import ConfigError
from spark_apply.views.search.kept import KeptSearches
from spark_apply.views.search.query import read_search
from spark_apply.views.sql.expressions.engines.dialects import DIALECTS, Dialect
from spark_apply.views.sql.expressions.types import type_of
from spark_apply.views.sql.reading.names import find
from spark_apply.views.sql.reading.written import did_you_mean
from spark_apply.views.sql.view_plan import Node, Read, Relation, ViewPlan, found_by

VERSION: Final = "2"
"""Of what searches find: where it is something else than before, or some of it was lost, views are computed again."""


@dataclass(frozen=True, slots=True)
class Match:
    """A match, with the relations that it names."""

    view: str
    queries: Relation
    query: str
    docs: Relation
    fields: tuple[str, ...]

    @property
    def query_columns(self) -> tuple[str, ...]:
        """The output columns that are the key of a search, in key order."""
        return _columns("query", self.queries)

    @property
    def doc_columns(self) -> tuple[str, ...]:
        return _columns("doc", self.docs)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.query_columns, *self.doc_columns)

    @property
    def sql(self) -> str:
        """A SELECT in Spark's SQL with the columns that the view has, of all pairs."""
        sides = (("q", self.queries, self.query_columns), ("d", self.docs, self.doc_columns))
        selected = [
            f"{alias}.{_ticked(column)} AS {_ticked(name)}"
            for alias, relation, names in sides
            for column, name in zip(relation.change_columns, names, strict=True)
        ]
        read = [f"{'.'.join(map(_ticked, of.name.split('.', 1)))} {alias}" for alias, of, _ in sides]
        return f"SELECT {', '.join(selected)} FROM {' CROSS JOIN '.join(read)}"

    def check(self, relations: Mapping[str, Relation]) -> None:
        """Raise ConfigError where relations as they are now do not have what is read of them."""
        for part, of, names in (("query", self.queries, (self.query,)), ("fields", self.docs, self.fields)):
            for name in names:
                _text(self.view, part, name, relations[of.name])


def _columns(name: str, relation: Relation) -> tuple[str, ...]:
    key = relation.change_columns
    return (name,) if len(key) == 1 else tuple(f"{name}_{column}" for column in key)


def match_of(view: str, config: MatchConfig, key: Sequence[str], relations: Mapping[str, Relation]) -> Match:
    """Check a match against the columns of tables. Raises ConfigError."""
    queries, docs = (
        _relation(view, part, asked, relations) for part, asked in (("queries", config.queries), ("docs", config.docs))
    )
    query = _text(view, "query", config.query, queries)
    fields = tuple(_text(view, "fields", name, docs) for name in config.fields)
    if len(set(fields)) != len(fields):
        raise ConfigError(f"views.{view}.match.fields: a column is named twice", hint="keep one of them")
    found = Match(view, queries, query, docs, fields)
    if sorted(key) != sorted(found.columns):
        said = ", ".join(found.columns)
        msg = f"views.{view}.key: the rows of a match are told apart by {said}, all of them"
        raise ConfigError(msg, hint=f"key: [{said}]")
    return found


def _relation(view: str, part: str, asked: str, relations: Mapping[str, Relation]) -> Relation:
    name = find(asked, relations)
    if name is None:
        msg = f"views.{view}.match.{part}: the table {asked} is not captured"
        raise ConfigError(msg, hint=did_you_mean(asked, relations))
    return relations[name]


def _text(view: str, part: str, asked: str, relation: Relation) -> str:
    name = find(asked, relation.columns)
    if name is None:
        msg = f"views.{view}.match.{part}: {relation.name} has no column {asked}"
        raise ConfigError(msg, hint=did_you_mean(asked, relation.columns))
    kind = type_of(relation.columns[name])
    if kind != "string":
        texts = [column for column, of in relation.columns.items() if type_of(of) == "string"]
        msg = f"views.{view}.match.{part}: column {name} of {relation.name} is no text"
        raise ConfigError(msg, hint=f"texts of it are: {', '.join(texts)}" if texts else "it has no text")
    return name


def plan_match(match: Match, key: Sequence[str], *, engine: str = "duckdb") -> ViewPlan:
    """Return how an engine keeps a match up to date."""
    written = _Statements(DIALECTS[engine])
    columns = written.listed(match.columns)
    found = f"SELECT DISTINCT {columns} FROM {written.place('work', found_by(match.view))}"
    before = written.place("before", f"view.{match.view}")

    def touched_by(changed: str, relation: Relation, names: Sequence[str]) -> str:
        same = written.same(zip(relation.change_columns, names, strict=True), "c", "v")
        where = f"EXISTS (SELECT 1 FROM {changed} c WHERE {same})"
        return f"SELECT {columns} FROM {before} v WHERE {where} UNION ALL {found}"

    by_query, by_doc = (
        touched_by(written.place("changed", relation.name), relation, names)
        for relation, names in ((match.queries, match.query_columns), (match.docs, match.doc_columns))
    )
    by_search = touched_by(f"({written.other_searches(match)})", match.queries, match.query_columns)
    node = Node(
        name=match.view,
        reads=tuple(dict.fromkeys((match.queries.name, match.docs.name))),
        columns=match.columns,
        units=match.columns,
        touched=(by_search, by_doc),
        derived=(by_query, by_doc),
        due=(),
        next_due=(),
        restricted=found,
        whole=found,
        computed=_Pairs(match, written),
        held_by=match.query_columns,
        divided_by=match.columns,
    )
    reads = tuple(sorted(node.reads))
    return ViewPlan(match.view, tuple(key), (node,), reads, uses_clock=False, null_keys=True)


@dataclass(frozen=True, slots=True)
class _Statements:
    """Parts of statements of an engine."""

    dialect: Dialect

    def quoted(self, name: str) -> str:
        return exp.to_identifier(name, quoted=True).sql(self.dialect.name)

    def place(self, schema: str, relation: str) -> str:
        return self.dialect.table(schema, relation)

    def listed(self, columns: Sequence[str]) -> str:
        return ", ".join(map(self.quoted, columns))

    def keys(self, alias: str, relation: Relation, names: Sequence[str]) -> str:
        """Return the key's columns of a relation under these names."""
        pairs = zip(relation.change_columns, names, strict=True)
        return ", ".join(f"{alias}.{self.quoted(column)} AS {self.quoted(name)}" for column, name in pairs)

    def same(self, columns: Iterable[tuple[str, str]], one: str, other: str) -> str:
        """Return the condition that columns of one alias are what columns of another are, in pairs."""
        return " AND ".join(
            f"{one}.{self.quoted(column)} IS NOT DISTINCT FROM {other}.{self.quoted(name)}" for column, name in columns
        )

    def other_searches(self, match: Match) -> str:
        """Return a query for the keys of the searches whose text is another one than before, or that are new or gone.

        What else changes in a search's row changes nothing of what it finds, and no text is looked through for it.
        """
        queries, text = match.queries, self.quoted(match.query)
        changed, before, after = (self.place(schema, queries.name) for schema in ("changed", "before", "after"))
        keys = ", ".join(f"k.{self.quoted(column)}" for column in queries.change_columns)
        return (
            f"SELECT {keys} FROM {changed} k LEFT JOIN {before} b ON {self.same_key(queries, 'b', 'k')} "
            f"LEFT JOIN {after} a ON {self.same_key(queries, 'a', 'k')} WHERE b.{text} IS DISTINCT FROM a.{text}"
        )

    def same_key(self, relation: Relation, one: str, other: str) -> str:
        return self.same(zip(relation.change_columns, relation.change_columns, strict=True), one, other)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Finds the pairs of searches and texts that match."""

    match: Match
    written: _Statements

    def __call__(self, read: Read, changed: Collection[str], *, whole: bool) -> tuple[pa.Table, pa.Table]:
        queries = read(self._queries()).read_all()
        every, new = KeptSearches(), KeptSearches()
        bad: list[tuple[int, str]] = []
        rows = zip(queries.column("_text").to_pylist(), queries.column("_changed").to_pylist(), strict=True)
        for number, (text, is_new) in enumerate(rows):
            asked = read_search(text)
            if isinstance(asked, str):
                bad.append((number, asked))
            elif asked is not None:
                every.add(number, asked)
                if is_new:
                    new.add(number, asked)
        pairs: list[pa.Table] = []
        if whole or self.match.docs.name in changed:
            pairs += self._found(read, every, queries, only="" if whole else self._is_changed())
        if not whole and new and self.match.queries.name in changed:
            pairs += self._found(read, new, queries, only="")
        names = list(self.match.query_columns)
        held = queries.select(names).take(pa.array([number for number, _ in bad], pa.int64()))
        held = held.append_column("reason", pa.array([why for _, why in bad], pa.string()))
        return pa.concat_tables([self._beside(queries, [], self._no_docs(read)), *pairs]), held

    def _queries(self) -> str:
        """All searches, and whether they are new or have another text than before."""
        written, queries = self.written, self.match.queries
        keys, text = written.keys("q", queries, self.match.query_columns), f"q.{written.quoted(self.match.query)}"
        return (
            f"SELECT {keys}, {text} AS _text, c._other IS NOT NULL AS _changed "
            f"FROM {written.place('after', queries.name)} q "
            f"LEFT JOIN (SELECT *, true AS _other FROM ({written.other_searches(self.match)}) o) c "
            f"ON {written.same_key(queries, 'c', 'q')} WHERE {text} IS NOT NULL"
        )

    def _is_changed(self) -> str:
        docs, changed = self.match.docs, self.written.place("changed", self.match.docs.name)
        return f" WHERE EXISTS (SELECT 1 FROM {changed} c WHERE {self.written.same_key(docs, 'c', 'd')})"

    def _found(self, read: Read, searches: KeptSearches, queries: pa.Table, *, only: str) -> list[pa.Table]:
        """Return the pairs of these searches with texts, a table for each batch of texts."""
        match = self.match
        texts = ", ".join(f"d.{self.written.quoted(name)} AS _text{number}" for number, name in enumerate(match.fields))
        statement = f"SELECT {self._doc_keys()}, {texts} FROM {self._docs} d{only}"
        found = []
        with read(statement) as reader:  # closed whatever happens: the connection can do nothing else before
            for batch in reader:
                of_query, of_doc = list[int](), list[int]()
                columns = [batch.column(f"_text{number}").to_pylist() for number in range(len(match.fields))]
                for row, values in enumerate(zip(*columns, strict=True)):
                    numbers = list(searches.finding(values))
                    of_query += numbers
                    of_doc += [row] * len(numbers)
                if of_query:
                    docs = pa.Table.from_batches([batch.select(list(match.doc_columns))]).take(
                        pa.array(of_doc, pa.int64())
                    )
                    found.append(self._beside(queries, of_query, docs))
        return found

    def _beside(self, queries: pa.Table, numbers: list[int], docs: pa.Table) -> pa.Table:
        made = queries.select(list(self.match.query_columns)).take(pa.array(numbers, pa.int64()))
        for name in self.match.doc_columns:
            made = made.append_column(name, docs.column(name))
        return made

    def _no_docs(self, read: Read) -> pa.Table:
        return read(f"SELECT {self._doc_keys()} FROM {self._docs} d LIMIT 0").read_all()

    @property
    def _docs(self) -> str:
        return self.written.place("after", self.match.docs.name)

    def _doc_keys(self) -> str:
        return self.written.keys("d", self.match.docs, self.match.doc_columns)


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
