"""The text of a message's ``.proto`` file, and back. Pure. https://protobuf.dev/reference/protobuf/proto3-spec

`parse` reads what `text` has written, also as registries write it again: without comments, with other spaces. What it
does not know it refuses, for it would read records wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cdc.formats.proto.proto_message import (
    CDC_NAME,
    DECIMAL_MESSAGE,
    DOUBLES,
    GEOMETRY,
    NUMBER,
    WHOLE,
    Field,
    Message,
    Numbered,
)  # fmt: skip
from cdc.formats.schema import KIND

_META: Final = "confluent/meta.proto"
_DECIMAL: Final = "confluent/type/decimal.proto"
_SCALARS: Final = frozenset({"bool", "int32", "int64", "uint64", "float", "double", "string", "bytes"})
_DEEPEST: Final = 8
_LABELS: Final = ("optional", "repeated")
_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>\.?[A-Za-z_][\w.]*|\d+)|(?P<mark>\S)""",
    re.DOTALL | re.ASCII,
)
_ESCAPE: Final = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_SHORT: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def text(message: Message, package: str) -> str:
    """Write the file of a message."""
    all_fields = list(_every(message))
    imports = [_META] if any(of.params for of in all_fields) else []
    imports += [_DECIMAL] if any(of.type == DECIMAL_MESSAGE for of in all_fields) else []
    head = ['syntax = "proto3";', f"package {package};", *(f'import "{name}";' for name in imports)]
    root = "." if "confluent" in package.split(".")[1:] else ""
    return "\n".join([*head, "", *_message(message, "", root), ""])


def _every(message: Message) -> Iterator[Field]:
    for of in message.fields:
        yield of
        if of.message is not None:
            yield from _every(of.message)


def _message(message: Message, indent: str, root: str) -> Iterator[str]:
    """Write a message. `root` stands before Confluent's names where the package has one of its own like them."""
    yield f"{indent}message {message.name} {{"
    inner = indent + "  "
    if message.reserved:
        yield f"{inner}reserved {', '.join(map(str, message.reserved))};"
    for of in message.fields:
        type_ = root + of.type if of.type == DECIMAL_MESSAGE else of.type
        yield f"{inner}{of.label + ' ' if of.label else ''}{type_} {of.written} = {of.number}{_options(of, root)};"
    nested = {of.message.name: of.message for of in message.fields if of.message is not None}
    for each in nested.values():
        yield from _message(each, inner, root)
    yield f"{indent}}}"


def _options(of: Field, root: str) -> str:
    told = ["deprecated = true"] if of.deprecated else []
    if of.params:
        pairs = ", ".join(f"{{key: {_quoted(key)}, value: {_quoted(value)}}}" for key, value in of.params.items())
        told.append(f"({root}confluent.field_meta) = {{params: [{pairs}]}}")
    return f" [{', '.join(told)}]" if told else ""


def _quoted(name: str) -> str:
    told = "".join(c if c.isprintable() and c not in '"\\' else "".join(f"\\{b:03o}" for b in c.encode()) for c in name)
    return f'"{told}"'


def parse(written: str) -> tuple[str, Message]:
    """Return the package and the first message of a file. Raises ValueError for what `text` does not write."""
    tokens = _Tokens(written)
    package, messages = "", dict[str, _Parsed]()
    while (word := tokens.next()) is not None:
        if word == "message":
            made = _parsed(tokens)
            messages[made.name] = made
        elif word == "package":
            package = tokens.take()
            tokens.take(";")
        elif word in ("syntax", "import", "option"):
            tokens.skip_statement()
        elif word != ";":
            raise ValueError("a file of more than messages")
    if not messages:
        raise ValueError("a file without a message")
    return package, _resolved(next(iter(messages.values())), [messages])


@dataclass(slots=True)
class _Tokens:
    """The tokens of a file, one behind the other."""

    written: str
    at: int = 0

    def next(self) -> str | None:
        while self.at < len(self.written):
            found = _TOKEN.match(self.written, self.at)
            if found is None:
                break
            self.at = found.end()
            if found.lastgroup is not None:
                return found[0]
        return None

    def take(self, wanted: str | None = None) -> str:
        found = self.next()
        if found is None or (wanted is not None and found != wanted):
            raise ValueError("another token was expected")
        return found

    def number(self) -> int:
        found = self.take()
        if not (found.isascii() and found.isdecimal()):
            raise ValueError("a number was expected")
        return int(found)

    def quoted(self) -> str:
        found = self.take()
        if found[0] not in "\"'":
            raise ValueError("a string was expected")
        return _ESCAPE.sub(_unescaped, found[1:-1].encode()).decode()

    def skip_statement(self) -> None:
        while self.take() != ";":
            pass


@dataclass(slots=True)
class _Parsed:
    """A message whose fields' types are names."""

    name: str
    fields: list[Field] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    nested: dict[str, _Parsed] = field(default_factory=dict)


def _parsed(tokens: _Tokens) -> _Parsed:
    made = _Parsed(tokens.take())
    tokens.take("{")
    while (word := tokens.take()) != "}":
        if word == "message":
            inner = _parsed(tokens)
            made.nested[inner.name] = inner
        elif word == "reserved":
            made.reserved += _reserved(tokens)
        elif word == "option":
            tokens.skip_statement()
        elif word != ";":
            made.fields.append(_field(tokens, word))
    return made


def _reserved(tokens: _Tokens) -> Iterator[int]:
    mark = ","
    while mark == ",":
        yield tokens.number()
        mark = tokens.take()
    if mark != ";":
        raise ValueError("reserved numbers without an end")


def _field(tokens: _Tokens, word: str) -> Field:
    label, type_ = (word, tokens.take()) if word in _LABELS else ("", word)
    written = tokens.take()
    tokens.take("=")
    number = tokens.number()
    params, deprecated = dict[str, str](), False
    if (mark := tokens.take()) == "[":
        params, deprecated = _read_options(tokens)
        mark = tokens.take()
    if mark != ";":
        raise ValueError("a field without an end")
    return Field(
        name=params.get(CDC_NAME, written), written=written, number=number, type=type_.removeprefix("."), label=label,
        params=params, deprecated=deprecated,
    )  # fmt: skip


def _read_options(tokens: _Tokens) -> tuple[dict[str, str], bool]:
    params, deprecated, depth, last = dict[str, str](), False, 1, ""
    pair: dict[str, str] = {}
    while depth:
        word = tokens.take()
        depth += (word in "[{(") - (word in "]})")
        if last in ("key", "value") and word in (":", "="):
            pair[last] = tokens.quoted()
        elif word == "}" and len(pair) == len(("key", "value")):
            params[pair["key"]] = pair["value"]
            pair = {}
        elif last == "deprecated" and word == "=":
            deprecated = tokens.take() == "true"
        last = word
    return params, deprecated


def _unescaped(found: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short = found.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    return bytes([int(hexadecimal, 16)]) if hexadecimal is not None else _SHORT.get(short, short)


def _resolved(of: _Parsed, scopes: Sequence[Mapping[str, _Parsed]]) -> Message:
    if len(scopes) > _DEEPEST:
        raise ValueError("a message of itself")
    inside = [of.nested, *scopes]
    fields = []
    for each in of.fields:
        if each.type in _SCALARS or each.type == DECIMAL_MESSAGE:
            fields.append(each)
            continue
        name = each.type.rpartition(".")[2]
        found = next((scope[name] for scope in inside if name in scope), None)
        if found is None:
            raise ValueError("a type that is not there")
        fields.append(replace(each, message=_resolved(found, inside)))
    return Message(name=of.name, fields=tuple(fields), reserved=tuple(of.reserved))


def given(message: Message) -> tuple[Numbered, ...]:
    """Return the numbers that a message of rows or keys has, so that another one goes on with them."""
    found = [Numbered(of.name, of.written, _type(of), of.number) for of in message.fields]
    return (*found, *(Numbered("", "", "", number) for number in message.reserved))


def _type(of: Field) -> str:
    if of.message is not None:
        return GEOMETRY
    if of.type in WHOLE:
        return f"{of.type}:{of.params.get(KIND, NUMBER)}"
    return DOUBLES if of.label == "repeated" else of.type


def image_of(event: Message) -> Message | None:
    """Return the message of rows in an event's."""
    return next((of.message for of in event.fields if of.name == "after"), None)
