"""Messages of Protobuf for a table's keys, rows and events, as Confluent's ProtobufData makes them. Pure.

| here | Confluent's converter, with `optional.for.nullables` |
|---|---|
| `<topic>.Envelope`, `.Value`, `.Key` | the package is the topic, the message the last part; others are nested in it |
| what may be null | ``optional``; a list is ``repeated``, and null is none |
| ``int16`` | ``int32`` with ``connect.type`` |
| a decimal | ``confluent.type.Decimal`` with ``precision`` and ``scale`` |

Numbers are not the places of columns, which move when a column goes. A field keeps its number for good
(`numbered`): the schema topic has each that was ever given, the registry those of the newest schema. A column that is
gone leaves its field, which is marked ``deprecated`` and never written: registries differ in whether a field may go,
and none minds one that stays. A column of another type has another number, so that no reader takes the bytes of one
type for another's; whole numbers that become wider keep theirs, as Protobuf has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdc.formats.schema import DECIMAL, KIND, TIMES, Schema, adjusted
from cdc.model.change import Table

CDC_NAME: Final = "cdc.name"
"""A field's parameter: its column's name, if Protobuf does not have such names."""
DECIMAL_MESSAGE: Final = "confluent.type.Decimal"
_ENVELOPE: Final = {"before": 1, "after": 2, "source": 3, "transaction": 4, "op": 5, "ts_ms": 6}
_SOURCE: Final = {
    "version": 1, "connector": 2, "name": 3, "ts_ms": 4, "snapshot": 5, "db": 6, "schema": 7, "table": 8,
    "txId": 9, "lsn": 10, "server_id": 11, "gtid": 12, "file": 13, "pos": 14, "row": 15,
    "position": 16, "schema_version": 17,
}  # fmt: skip
"""Numbers for good: a member that is added later gets the next."""
_FIXED: Final[Mapping[str, Mapping[str, int]]] = {"Envelope": _ENVELOPE, "Source": _SOURCE}
_SCALARS: Final = {
    "boolean": "bool", "int16": "int32", "int32": "int32", "int64": "int64", "float32": "float", "float64": "double",
    "string": "string", "bytes": "bytes",
}  # fmt: skip
GEOMETRY: Final = "Geometry"
DOUBLES: Final = "repeated double"
WHOLE: Final = ("int32", "int64")
"""Types that share a number: each reads what the other has written, as far as it has room."""
NUMBER: Final = "number"
"""What a whole number counts that is no time."""
_RESERVED_NUMBERS: Final = range(19_000, 20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a message."""

    name: str
    """The member's name: of a row the column's."""
    written: str
    """Its name in Protobuf."""
    number: int
    type: str
    """A scalar type, or the name of a message."""
    label: str = ""
    """``optional``, ``repeated``, or nothing."""
    message: Message | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    deprecated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message, its fields in the order in which they are written."""

    name: str
    fields: tuple[Field, ...] = ()
    reserved: tuple[int, ...] = ()


class Numbered(NamedTuple):
    """A number that was given."""

    column: str
    """Empty: nobody knows what it was of; it is never given again."""
    written: str
    type: str
    """A scalar type, or the name of a message; of a whole number with what it counts, ``int64:timestamp_micros``."""
    number: int


@dataclass(frozen=True, slots=True)
class FieldNumbers:
    """All numbers that were ever given in a table's messages: the schema topic has them."""

    key: tuple[Numbered, ...] = ()
    row: tuple[Numbered, ...] = ()

    def to_json(self) -> dict[str, list[list[str | int]]]:
        return {"key": [list(of) for of in self.key], "row": [list(of) for of in self.row]}

    @classmethod
    def of_json(cls, found: Mapping[str, Sequence[Sequence[str | int]]]) -> FieldNumbers:
        def of(part: str) -> tuple[Numbered, ...]:
            return tuple(Numbered(str(c), str(w), str(t), int(n)) for c, w, t, n in found.get(part, ()))

        return cls(of("key"), of("row"))


def types(table: Table, row: Schema) -> dict[str, str]:
    """Return the type of each field of a row: of its columns, then of its metadata."""
    kinds = {column.name: column.kind.name for column in table.columns}

    def told(name: str, of: Schema) -> str:
        kind, type_ = kinds.get(name, ""), _type(of)
        if kind == "uint64":
            return kind
        return f"{type_}:{kind if kind in TIMES else NUMBER}" if type_ in WHOLE else type_

    return {name: told(name, of) for name, of in row.fields}


def _type(of: Schema) -> str:
    if of.name == DECIMAL:
        return DECIMAL_MESSAGE
    if of.type == "struct":
        return GEOMETRY
    return DOUBLES if of.items is not None else _SCALARS[of.type]


def numbered(wanted: Mapping[str, str], known: Sequence[Numbered]) -> tuple[Numbered, ...]:
    """Give the numbers of these columns of these types, besides all that were given before."""
    found = list(known)
    for name, type_ in wanted.items():
        fit = [i for i, of in enumerate(found) if of.column == name and _family(of.type) == _family(type_)]
        alike = [i for i in fit if _meaning(found[i].type) == _meaning(type_)]
        at = next(iter(alike or [i for i in fit if not _meaning(found[i].type)]), None)
        if at is None:
            number = max((of.number for of in found), default=0) + 1
            number = _RESERVED_NUMBERS.stop if number in _RESERVED_NUMBERS else number
            found.append(Numbered(name, _written(name, number, found), type_, number))
        elif _scalar(type_) == "int64" or not alike:  # never narrower again: what is written stays readable
            wide = _scalar(found[at].type) == "int64" and _meaning(type_)
            found[at] = found[at]._replace(type=f"int64:{wide}" if wide else type_)
    return tuple(found)


def joined(known: Sequence[Numbered], others: Sequence[Numbered]) -> tuple[Numbered, ...]:
    """Add those of the others whose numbers are free, and whose columns of such a type have none."""
    numbers = {of.number for of in known}
    columns = {(of.column, _family(of.type), _meaning(of.type)) for of in known if of.column}
    more = [
        of
        for of in others
        if of.number not in numbers and (of.column, _family(of.type), _meaning(of.type)) not in columns
    ]
    return (*known, *more)


def _family(type_: str) -> str:
    """Return what stands for all types whose bytes are read alike."""
    type_ = _scalar(type_)
    return WHOLE[0] if type_ in WHOLE else type_


def _scalar(type_: str) -> str:
    return type_.partition(":")[0]


def _meaning(type_: str) -> str:
    """Return what a whole number counts; empty: nobody has noted it, or it is none."""
    return type_.partition(":")[2]


def _written(name: str, number: int, known: Sequence[Numbered]) -> str:
    """Name a field: the names of a message differ in more than case and underscores, as protoc demands for JSON."""
    for of in known:
        if of.column == name:
            return of.written  # of another type, whose field is there no more
    taken = {"", *(_alike(of.written) for of in known)}
    simple = adjusted(name)
    told = next((of for of in (simple, adjusted(name, "u")) if _alike(of) not in taken), None)
    if told is None:
        spelt = "".join(c if c.isascii() and c.isalnum() and not c.isupper() else f"_u{ord(c):04x}" for c in name)
        told = spelt if spelt[:1].isalpha() or spelt[:1] == "_" else f"_{spelt}"
    while _alike(told) in taken:
        told = f"{told}_{number}"
    return told


def _alike(written: str) -> str:
    return written.replace("_", "").lower()


def row_message(row: Schema, wanted: Mapping[str, str], given: Sequence[Numbered], *, name: str) -> Message:
    """Return the message of rows, or of keys, with these columns; `given` are all their numbers."""
    by_name = {
        of.column: of
        for of in given
        if (type_ := wanted.get(of.column)) is not None
        and (_family(of.type), _meaning(of.type)) == (_family(type_), _meaning(type_))
    }
    gone = {of.column: of for of in given if of.column and of.column not in wanted}
    kept = {of.number for of in (*by_name.values(), *gone.values())}
    geometry = GEOMETRY
    while any(of.written == geometry for of in given):
        geometry += "Message"
    required = {n for n, of in row.fields if not of.optional}
    fields = [_column(by_name[n], of, geometry, label="" if n in required else "optional") for n, of in row.fields]
    label = "" if required else "optional"
    fields += [_column(of, None, geometry, label=label) for of in gone.values()]
    reserved = sorted(of.number for of in given if of.number not in kept)
    return Message(name=name, fields=tuple(fields), reserved=tuple(reserved))


def _column(given: Numbered, of: Schema | None, geometry: str, *, label: str) -> Field:
    """Return the field of a column; without a schema, of one that is gone."""
    params = {CDC_NAME: given.column} if given.written != given.column else {}
    params |= {KIND: counts} if (counts := _meaning(given.type)) in TIMES else {}
    type_, message = _scalar(given.type), None
    if of is not None and given.type == DECIMAL_MESSAGE:
        params |= {"precision": of.parameters["connect.decimal.precision"], "scale": of.parameters["scale"]}
    if of is not None and of.type == "int16" and type_ == "int32":
        params["connect.type"] = of.type
    if type_ == DOUBLES:
        label, type_ = DOUBLES.split()
    if type_ == GEOMETRY:
        type_, message = geometry, _geometry(geometry)
    return Field(
        name=given.column, written=given.written, number=given.number, type=type_, label=label, message=message,
        params=params, deprecated=of is None,
    )  # fmt: skip


def _geometry(name: str) -> Message:
    wkb = Field(name="wkb", written="wkb", number=1, type="bytes")
    return Message(
        name=name, fields=(wkb, Field(name="srid", written="srid", number=2, type="int32", label="optional"))
    )


def event_message(event: Schema, row: Message) -> Message:
    """Return the message of events with such rows."""
    return _struct(event, (event.name or "").rpartition(".")[2], row)


def _struct(of: Schema, name: str, row: Message) -> Message:
    numbers = _FIXED.get(name) or {member: number for number, (member, _) in enumerate(of.fields, 1)}
    fields = []
    for member, inner in of.fields:
        nested = None
        if inner.type == "struct":
            called = (inner.name or "").rpartition(".")[2]
            nested = row if member in ("before", "after") else _struct(inner, called, row)
        fields.append(
            Field(
                name=member, written=member, number=numbers[member],
                type=nested.name if nested else _SCALARS[inner.type],
                label="optional" if inner.optional else "", message=nested,
            )
        )  # fmt: skip
    return Message(name=name, fields=tuple(fields))


def source_number(member: str) -> int:
    """Return the number of a member of the source block."""
    return _SOURCE[member]
