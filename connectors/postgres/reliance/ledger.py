"""Knows what a captured table's rows in the topic rely on, as the catalog has it, and what a difference means.

A table's events tell its rows as long as the publication carries it, all of it, all the time, and as long as nothing
but events changes what its rows say. Neither is told by the log. So the position record has an entry for each table
(`Facts.record`), and each look at the catalog compares it (`difference`): at a start, and every few seconds while the
log is followed. What differs asks for the table's rows to be read again, or for nothing; what cannot be followed at
all is refused in `slot`. The entry, with a space between its parts:

    oid       of the table
    paths     by which it is in the publication, each with numbers that are new when it joins
    changed   the transaction that last changed the publication's own row: any ALTER of its options
    files     a hash of the files of all its partitions
    made      a hash of the transactions that made the columns that events have, or gave them another expression
              a tilde: since the last look the log had rows of other columns than the catalog, see `told_columns`
    columns   by attnum: hashes of the name, and of how values are printed or that it is generated; a point: no column
    parts     partitions that hold rows, or the table: oid, hashes of when it was attached, its file, its TOAST table
              one that the log has told of since the last look has points in place of the hashes: `with_parts`
    types     enums and composite types in its columns: oid, number of labels, hash, hash of who named the labels
    left      names that columns have lost since, each a hash and the attnum: rows may have values under them
    unique    a hash of the key's attnums, and oids of the constraints and indexes that make it unique
    marks     of indexes that may have been a partition's replica identity: see `identity_marks`

Descriptions in the schema topic tell of some of this too (`cdc.model.table_schema.stale_reason`), in the same words:
they are compared as events come, and know neither which column had which name nor what lies between two of them. Of
defaults they tell alone.

A key that is dropped and made again may have been none for a while, in which a row came and went under the key of
another: the delete of the one is the end of the other in the topic. Each index that is still there of those that made
it unique says that it was unique all the time.

A column that is dropped asks for nothing, nor does one that is added. But between the two the entry may be written, and
a description or none: so a name that was lost is kept until another column has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cdc.model.errors import OperatorError
from cdc.model.table_schema import REWRITTEN, NoneCame, renamed
from connectors.postgres.catalog import queries
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.reliance import entry_text, identity_marks, leaves, told_columns, used_types
from connectors.postgres.reliance.entry_text import hashed as _hash
from connectors.postgres.reliance.entry_text import number as _number
from connectors.postgres.reliance.leaves import Part
from connectors.postgres.reliance.used_types import UsedType

GENERATED: Final = "generated"
"""How a generated column is noted: events have none of it, until it is a column like others (DROP EXPRESSION)."""
_NONE: Final = "."
_NOTHING: Final = "-"
_RULES_OF: Final = "="
_PARTS: Final = 8
"""Of an entry without `left`, which older releases wrote."""
_MADE: Final = 3
_TOLD: Final = "~"
_COLUMNS_AT: Final = 4
"""Which parts behind the first."""
_LONG: Final = 6

_PATHS: Final = """
SELECT c.oid::int8, p.xmin::text, array_remove(ARRAY[
    (SELECT p.oid::text || ':' || r.oid::text FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid),
    CASE WHEN p.puballtables THEN p.oid::text || ':all' END,
    {}
], NULL)
FROM pg_class c, pg_publication p WHERE c.oid = ANY (%s::oid[]) AND p.pubname = %s
"""
_BY_SCHEMA: Final = """
    (SELECT p.oid::text || ':' || s.oid::text || '.' || d.xmin::text
     FROM pg_publication_namespace s
     JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
          AND d.refclassid = 'pg_namespace'::regclass
     WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
"""
"""A table that is moved to another schema and back is out of this one meanwhile: pg_depend tells."""

_COLUMNS: Final = f"""
SELECT a.attrelid::int8, a.attnum, a.attname::text, a.atttypid::int8, a.atttypmod, a.xmin::text, a.attgenerated <> '',
       a.attgenerated = '' OR (a.attgenerated = 's' AND ({queries.GENERATED_COLUMNS}))
FROM pg_attribute a WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2
"""  # noqa: S608 - a constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Holds what the catalog says of one table."""

    oid: int
    paths: Sequence[str]
    changed: str
    made: str
    columns: Mapping[int, tuple[str, str]]
    """By attnum: name, and how its values are printed."""
    parts: Sequence[Part]
    types: Mapping[int, UsedType]
    key: str = ""
    """The attnums of its columns."""
    unique: frozenset[int] = frozenset()
    """What makes the key unique: oids of indexes, and of their constraints."""
    marks: str = identity_marks.NONE

    @property
    def files(self) -> str:
        return _hash(",".join(f"{part.oid}:{part.file}" for part in self.parts), _LONG)

    @property
    def record(self) -> str:
        """Write the table's entry of the position record."""
        numbers = range(1, max(self.columns, default=0) + 1)
        hashed = {n: _hash(name, 4) + _hash(printed, 3) for n, (name, printed) in self.columns.items()}
        columns = "".join(hashed.get(n, _NONE) for n in numbers)
        types = used_types.record(self.types)
        parts = "".join(part.record for part in self.parts)
        return " ".join(
            text or _NOTHING
            for text in (
                str(self.oid),
                ",".join(self.paths),
                self.changed,
                self.files,
                self.made,
                columns,
                parts,
                types,
            )
        )


def look(
    catalog: Catalog,
    publication: str,
    tables: Mapping[int, str],
    then: Mapping[str, str] | None,
    named: Mapping[str, Sequence[str]],
) -> dict[str, Facts]:
    """Return what the catalog says of tables, given and returned by ``schema.table``; one that is gone is not there.

    `then` are the entries that it is to be compared with, as far as they are known; `named` has the keys that the file
    gives, by table.
    """
    oids = list(tables)
    ((version,),) = catalog.rows("reading the version", "SELECT current_setting('server_version_num')::int")
    paths = catalog.rows(
        "reading the publication",
        _PATHS.format(_BY_SCHEMA if version >= queries.SCHEMAS else "NULL"),
        (oids, publication),
    )
    columns: dict[int, dict[int, tuple[str, str]]] = {}
    made: dict[int, list[str]] = {}
    rows = catalog.rows("reading the catalog", _COLUMNS, (publication, oids))
    printed = catalog.printed((type_oid, typmod) for _, _, _, type_oid, typmod, *_ in rows)
    for oid, number, name, type_oid, typmod, xmin, generated, is_in_events in rows:
        columns.setdefault(oid, {})[number] = (name, GENERATED if generated else printed[type_oid, typmod])
        if is_in_events:
            made.setdefault(oid, []).append(xmin)
    parts = leaves.look(catalog, tables, then)
    types = used_types.look(catalog, oids)
    marks = identity_marks.look(catalog.rows, oids)
    unique: dict[int, set[int]] = {}
    keys: dict[int, str] = {}
    by_file = [(oid, column) for oid, name in tables.items() for column in named.get(name, ())]
    asked = ([oid for oid, _ in by_file], [column for _, column in by_file], oids)
    for root, *made_by, keys[root] in catalog.rows("reading the catalog", queries.UNIQUE_BY, asked):
        unique.setdefault(root, set()).update(made_by)
    joined = {oid: (changed, tuple(of)) for oid, changed, of in paths}
    return {
        tables[oid]: Facts(
            oid=oid,
            paths=joined.get(oid, ("", ()))[1],
            changed=joined.get(oid, ("", ()))[0],
            made=_hash(",".join(made.get(oid, ())), _LONG),
            columns=columns[oid],
            parts=parts[oid],
            types=types.get(oid, {}),
            key=keys.get(oid, ""),
            unique=frozenset(unique.get(oid, ())),
            marks=marks.get(oid, identity_marks.NONE),
        )
        for oid in columns
    }


def records(
    found: Mapping[str, Facts], then: Mapping[str, str] = MappingProxyType({}), again: Container[str] = ()
) -> dict[str, str]:
    """Return the entries of the position record that follow those of `then`; of tables `again` all rows are read."""
    return {name: record(facts, "" if name in again else then.get(name, "")) for name, facts in found.items()}


def record(now: Facts, then: str = "") -> str:
    """Return a table's entry that follows `then`."""
    lost = ",".join(f"{name}{number}" for name, number in _lost(then, now).items())
    unique = ",".join((_hash(now.key, 4), *map(_number, sorted(now.unique)))) if now.unique else _had(then, now)
    return f"{now.record} {lost or _NOTHING} {unique} {now.marks}"


def as_told(then: str) -> str:
    """Return the entry of a table that has rows in the log which were told by other columns than the catalog's."""
    oid, *known = then.split(" ")
    return then if len(known) < _PARTS - 1 else " ".join((oid, *known[:_MADE], _TOLD, *known[_MADE + 1 :]))


def tells(then: str, now: Facts, told: Sequence[told_columns.Told]) -> bool:
    """Tell whether columns of the log are those of the catalog, for a table whose entry was `then`."""
    if (gone := _gone(then, now)) is None:
        return True
    generated = _generated(now)
    return told_columns.are_of(
        [(_hash(name, 4), printed) for name, printed in told if name not in generated],
        gone,
        {number: (_hash(name, 4), printed) for number, (name, printed) in now.columns.items() if name not in generated},
    )


def keeps_hidden(then: str, now: Facts, told: Sequence[str], hidden: Collection[str]) -> bool:
    """Tell whether columns of the log that are `hidden` by their names now were so by the names that they had then."""
    if (gone := _gone(then, now)) is None:
        return True
    generated = _generated(now)
    return told_columns.keep_hidden(
        [_hash(name, 4) for name in told if name not in generated],
        gone,
        {number: _hash(name, 4) for number, (name, _) in now.columns.items() if name not in generated},
        {_hash(name, 4) for name in hidden},
    )


def _generated(now: Facts) -> set[str]:
    return {name for name, printed in now.columns.values() if printed == GENERATED}


def _gone(then: str, now: Facts) -> dict[int, str | None] | None:
    """Return the attnums that may have been there and are not now, as `told_columns` has them.

    None for an entry of another table of that name, or of a version that did not know columns.
    """
    oid, *known = then.split(" ")
    if oid != str(now.oid) or len(known) < _PARTS - 1:
        return None
    there = {number for number, (_, printed) in now.columns.items() if printed != GENERATED}
    then_names = _names(entry_text.columns(known[_COLUMNS_AT]))
    gone: dict[int, str | None] = dict.fromkeys(range(max(then_names.values(), default=0) + 1, max(there, default=0)))
    gone |= {number: name for name, number in (_left(known) | then_names).items()}
    return {number: name for number, name in gone.items() if number not in there}


def had_names(then: str, now: Facts, names: Collection[str]) -> dict[str, str]:
    """Return the columns that had some of these names when an entry was written, and what they are called now."""
    oid, *known = then.split(" ")
    if oid != str(now.oid) or len(known) < _PARTS - 1:
        return {}
    named, then_names = {_hash(name, 4): name for name in names}, entry_text.columns(known[_COLUMNS_AT])
    were = {number: named[was] for number, (was, _) in then_names.items() if was in named}
    return {was: now.columns[number][0] for number, was in were.items() if now.columns.get(number, (was,))[0] != was}


def with_parts(entries: Mapping[str, str], told: Mapping[int, tuple[str, str]]) -> Mapping[str, str]:
    """Return entries of tables whose topics have rows of partitions that no look has found yet: see `Followed.parts`.

    One that is attached and detached again between two looks leaves nothing in the catalog.
    """
    new = dict(entries)
    for name in {root for root, _ in told.values()} | {own for _, own in told.values()}:
        known = entries.get(name, "").split(" ")
        if len(known) > entry_text.PARTS_AT:
            there = entry_text.parts(known[entry_text.PARTS_AT])
            more = "".join(entry_text.part(oid) for oid, (root, _) in told.items() if root == name and oid not in there)
            alone = [oid for oid, (_, own) in told.items() if own == name]
            had = "" if known[entry_text.PARTS_AT] == _NOTHING else known[entry_text.PARTS_AT]
            known[entry_text.PARTS_AT] = entry_text.part(alone[0]) if alone else had + more or _NOTHING
            new[name] = " ".join(known)
    return new


def _had(then: str, now: Facts) -> str:
    """Return what made the key unique before it was dropped: it is compared with what does once there is one again."""
    oid, *known = then.split(" ")
    return known[_PARTS] if oid == str(now.oid) and len(known) > _PARTS else _NOTHING


def _lost(then: str, now: Facts) -> dict[str, int]:
    """Return the names, hashed, that columns of the table have lost, each with the attnum it was of."""
    oid, *known = then.split(" ")
    if oid != str(now.oid) or len(known) < _PARTS - 1:
        return {}
    used = {_hash(name, 4) for name, printed in now.columns.values() if printed != GENERATED}
    lost = _left(known) | _names(entry_text.columns(known[_COLUMNS_AT]))
    return {name: number for name, number in lost.items() if name not in used}


def _left(known: Sequence[str]) -> dict[str, int]:
    """Read the last part of an entry."""
    text = known[_PARTS - 1] if len(known) >= _PARTS else _NOTHING
    return {one[:4]: int(one[4:]) for one in text.split(",") if one != _NOTHING}


def _names(columns: Mapping[int, tuple[str, str]]) -> dict[str, int]:
    """Return the attnum of each name, hashed, that events have values of."""
    generated = _hash(GENERATED, 3)
    return {name: number for number, (name, printed) in columns.items() if printed != generated}


def differences(then: Mapping[str, str], now: Mapping[str, Facts], publication: str) -> dict[str, str]:
    """Return the tables whose rows in the topic may not be those of the source, with the reason of each."""
    found = {name: difference(then.get(name, ""), facts, publication) for name, facts in now.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def numbers(then: Mapping[str, str]) -> dict[str, int]:
    """Return the oids of the tables that were followed."""
    oids = {name: entry.partition(" ")[0] for name, entry in then.items()}
    return {name: int(oid) for name, oid in oids.items() if oid.isdecimal()}


def aside(then: Mapping[str, str]) -> dict[int, str]:
    """Return the tables that are captured no more, each with the name whose rules it has: see `Followed.compare`."""
    found = (entry.partition(_RULES_OF) for entry in then.values() if _RULES_OF in entry.partition(" ")[0])
    return {int(oid): name for oid, _, name in found}


def to_aside(owed: Mapping[int, str]) -> dict[str, str]:
    """Return the entries of tables that are captured no more."""
    return {f"{_RULES_OF}{oid}": f"{oid}{_RULES_OF}{name}" for oid, name in owed.items()}


def partitions(then: Mapping[str, str], has_rules: Callable[[str], bool]) -> dict[int, str]:
    """Return the partitions of tables with rules, each with the name of its table."""
    entries = ((name, entry.split(" ")) for name, entry in then.items() if has_rules(name))
    known = ((name, of[entry_text.PARTS_AT]) for name, of in entries if len(of) > entry_text.PARTS_AT)
    return {oid: name for name, parts in known for oid in entry_text.parts(parts)}


def made_again(then: Mapping[str, str], now: Mapping[str, Facts]) -> set[str]:
    """Return the tables that have the names of others which were followed, and that the publication does not carry.

    Nobody has taken them out of it: they were never in it. Their rows are read again all the same, as another table's.
    """
    return {
        name
        for name, facts in now.items()
        if not facts.paths and then.get(name, "").partition(" ")[0] not in ("", str(facts.oid))
    }


def altered(then: str, now: Facts) -> bool:
    """Tell whether a table's columns or key were altered since: its description may tell what has become of its rows.

    The log describes a table at its next row, which may never come.
    """
    oid, *known = then.split(" ")
    if oid != str(now.oid) or len(known) < _PARTS - 1:
        return False
    key, *oids = known[_PARTS].split(",") if len(known) > _PARTS else [""]
    return known[_MADE] != now.made or bool(oids and now.unique and key != _hash(now.key, 4))


def difference(then: str, now: Facts, publication: str) -> str | None:
    """Say why a table's rows may have changed without an event since its entry was `then`; None: they have not.

    An entry of an older release has the first two parts, or one is missing: what is not in it is not compared.
    """
    oid, *known = then.split(" ")
    if oid != str(now.oid):  # an event may have described it since, before the entry was written and more was altered
        return REWRITTEN if oid else None
    paths = set(known[0].split(",")) - {_NOTHING, ""} if known else set()
    if paths and now.paths and not paths & set(now.paths):
        return f"publication {publication} did not carry it all the time"
    if len(known) < _PARTS - 1:
        return None
    changed, files, made, columns, parts, types = known[1 : _PARTS - 1]
    if now.changed and changed not in (now.changed, _NOTHING):
        return f"publication {publication} was altered, and may have left changes out meanwhile"
    of_parts = _of_parts(entry_text.parts(parts), now, rewritten=(rewritten := files != now.files and made != now.made))
    came = None if isinstance(of_parts, NoneCame) else of_parts
    if rewritten:
        return came or NoneCame(REWRITTEN)
    told = _of_columns(entry_text.columns(columns), _left(known), now.columns) or of_parts
    told = (
        told or (made == _TOLD and "its columns had other names or types for a time, and rows came under them") or None
    )
    told = told or used_types.difference(types, now.types) or _of_unique(known[_PARTS:], now)
    return came or (told and NoneCame(told))


def _of_columns(
    then: Mapping[int, tuple[str, str]], left: Mapping[str, int], now: Mapping[int, tuple[str, str]]
) -> str | None:
    generated = _hash(GENERATED, 3)
    now = {number: of for number, of in now.items() if of[1] != GENERATED}
    kept = [name for number, (name, _) in now.items() if then.get(number, ("", ""))[1] == generated]
    if kept:
        return f"column {', '.join(kept)} is not generated any more: older rows have values that no event had"
    were = {**left, **_names(then)}
    others = [
        name
        for number, (name, _) in now.items()
        if then.get(number, ("", ""))[0] != _hash(name, 4) and were.get(_hash(name, 4), number) != number
    ]
    if others:
        return f"column {', '.join(others)} is another column than before under that name"
    named = [name for number, (name, _) in now.items() if number in then and then[number][0] != _hash(name, 4)]
    if named:
        return renamed(named)
    retyped = [
        name for number, (name, printed) in now.items() if number in then and then[number][1] != _hash(printed, 3)
    ]
    return f"column {', '.join(retyped)} has another type, which prints values in another way" if retyped else None


def _of_parts(then: Mapping[int, tuple[str, str, str]], now: Facts, *, rewritten: bool) -> str | None:
    """Compare partitions; that rows have come is told before that some are gone. `rewritten`: so were all of them."""
    less = then.keys() - {part.oid for part in now.parts}
    went = NoneCame("a partition was detached or dropped, and its rows went without events") if less else None
    for part in now.parts:
        if then.get(part.oid, entry_text.UNKNOWN) == entry_text.UNKNOWN:
            if part.oid == now.oid and part.oid in then:
                return "it was a partition of another table for a time, whose topic has its changes"
            if part.brought_rows:
                return f"partition {part.name} was attached with the rows it had, or was not in the log before"
            continue
        attached, file, toast = then[part.oid]
        if attached != _hash(part.attached, 4):
            return f"partition {part.name} was detached and attached again"
        if not rewritten and part.toast and toast not in (_NONE * 4, _hash(str(part.toast), 4)):
            return "its rows were rewritten, or it was not in the log (unlogged) for a time"
        if file != _hash(part.file, 4) and part.emptied and part.oid != now.oid:
            went = went or NoneCame(f"partition {part.name} was truncated, which no event tells if it was by itself")
    return went


def _of_unique(then: Sequence[str], now: Facts) -> str | None:
    """Compare the parts that older releases did not write; of another key the table's description tells."""
    key, *oids = then[0].split(",") if then else [""]
    if oids and now.unique and key == _hash(now.key, 4) and not {int(oid, 36) for oid in oids} & now.unique:
        return "its key was dropped and made again, and may not have been unique all the time"
    return identity_marks.difference(then[1], now.marks) if len(then) > 1 else None


def refusals(found: Mapping[str, Facts]) -> Iterator[OperatorError]:
    """Refuse tables of which a partition is not in the log."""
    for name, facts in found.items():
        yield from leaves.refusals(name, facts.oid, facts.parts)
