"""What the reference library makes of a registered ``.proto`` file: the file line by line, by nothing of ours.

There is no compiler of Protobuf in Python's own library, so the few forms of lines that are written are read here, and
the library checks what they say: names, numbers, types, and that no two names are the same in JSON.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import Any, Final

from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

_FIELD: Final = re.compile(
    r"(?:(optional|repeated) )?([\w.]+) (\w+) = (\d+)"
    r"(?: \[(deprecated = true)?(?:, )?(?:\(\.?confluent\.field_meta\) = (.*))?\])?;"
)
_PARAM: Final = re.compile(r'\{key: "([^"]*)", value: "([^"]*)"\}')
_OF: Final = descriptor_pb2.FieldDescriptorProto
_IMPORTS: Final = {
    "confluent/meta.proto": [descriptor_pb2, meta_pb2],
    "confluent/type/decimal.proto": [decimal_pb2],
}


def message_class(text: str) -> Any:
    """Return the class of the first message of a file."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3")
    pool = descriptor_pool.DescriptorPool()
    assert lines.pop(0) == 'syntax = "proto3";'
    while lines[0].startswith(("package ", "import ")):
        word, told = lines.pop(0).rstrip(";").split(" ", 1)
        if word == "package":
            file.package = told
        else:
            file.dependency.append(told.strip('"'))
            for module in _IMPORTS[file.dependency[-1]]:
                pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    while lines:
        _message(file.message_type.add(), lines)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{file.message_type[0].name}"))


def _message(made: Any, lines: list[str]) -> None:
    opened = re.fullmatch(r"message (\w+) \{", lines.pop(0))
    assert opened
    made.name = opened[1]
    while (line := lines[0]) != "}":
        if line.startswith("message "):
            _message(made.nested_type.add(), lines)
            continue
        lines.pop(0)
        if line.startswith("reserved "):
            for number in line.removeprefix("reserved ").rstrip(";").split(", "):
                made.reserved_range.add(start=int(number), end=int(number) + 1)
            continue
        found = _FIELD.fullmatch(line)
        assert found, line
        label, type_, name, number, deprecated, params = found.groups()
        field = made.field.add(name=name, number=int(number), label=_OF.LABEL_REPEATED if label == "repeated" else 1)
        if hasattr(_OF, f"TYPE_{type_.upper()}") and type_ != "message":
            field.type = getattr(_OF, f"TYPE_{type_.upper()}")
        else:
            field.type, field.type_name = _OF.TYPE_MESSAGE, type_
        if label == "optional":
            field.proto3_optional, field.oneof_index = True, len(made.oneof_decl)
            made.oneof_decl.add(name=f"X_{name}")
        if deprecated:
            field.options.deprecated = True
        if params:
            field.options.Extensions[meta_pb2.field_meta].params.update(dict(_PARAM.findall(params)))
    lines.pop(0)


def as_object(message: Any) -> Any:
    """Return a message as an object, with null for what is not there; of columns by their own names."""
    if message.DESCRIPTOR.full_name == "confluent.type.Decimal":
        number = int.from_bytes(message.value, "big", signed=True)
        return Decimal((number < 0, tuple(map(int, str(abs(number)))), -message.scale))
    found = {}
    for field in message.DESCRIPTOR.fields:
        if field.GetOptions().deprecated:
            assert not message.HasField(field.name)
            continue
        params = field.GetOptions().Extensions[meta_pb2.field_meta].params
        name = params.get("cdc.name", field.name)
        value = getattr(message, field.name)
        if field.label == _OF.LABEL_REPEATED if hasattr(field, "label") else field.is_repeated:
            found[name] = list(value) or None
        elif field.has_presence and not message.HasField(field.name):
            found[name] = None
        else:
            found[name] = as_object(value) if field.message_type is not None else value
    return found


@cache
def _class(text: str) -> Any:
    return message_class(text)


def read(text: str, data: bytes) -> Any:
    """Read a record of Confluent's wire format, whose schema is the text."""
    assert data[0] == 0
    assert data[5] == 0  # the first message
    made = _class(text)()
    made.ParseFromString(data[6:])
    assert not list(UnknownFieldSet(made))
    return as_object(made)
