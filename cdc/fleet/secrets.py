"""Finds secrets that stand in a connector's file, where a fleet takes references alone. Pure; repeats no value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from cdc.config.yaml.secret_names import names_secret

_REFERENCE: Final = re.compile(r"\$\{(?:file:[^}]+|(?:env:)?[A-Za-z_][A-Za-z0-9_]*(?::-)?)\}")
"""One that holds nothing by itself: a default that is not empty would be a value."""
_NAMES: Final = ("source.columns", "source.where", "sink.formats", "sink.topic_config")
"""Below these, keys are names of tables, columns and topics' properties."""
_HASH: Final = re.compile(r"source\.columns\..*\.hash\.salt")
_LOGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^?]*)@", re.DOTALL)
_PARAMETER: Final = re.compile(r"[?&;]([^=&;]+)=([^&;]*)")
_WORD: Final = re.compile(r"(?:^|[\s,;])([A-Za-z_.-]+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s,;]+)")
"""As libpq takes a connection in place of a URL: ``host=db password=…``."""


def literal_secrets(node: yaml.Node | None) -> list[str]:
    """Return the paths of the keys whose secret is written out, in the file's order."""
    return list(dict.fromkeys(_below(node, ""))) if node is not None else []


def _below(node: yaml.Node, at: str) -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            yield from _below(value, f"{at}.{name}" if at else name)
    elif isinstance(node, yaml.SequenceNode):
        for number, child in enumerate(node.value):
            yield from _below(child, f"{at}[{number}]")
    elif isinstance(node, yaml.ScalarNode) and _is_secret(str(node.value), at):
        yield at


def _is_secret(value: str, at: str) -> bool:
    if _is_named_secret(at) and _rest(value):
        return True
    login = _LOGIN.match(value)
    if login is not None:
        password = _marked(login[1]).partition(":")[2]
        if _rest(password):
            return True
    pattern = _PARAMETER if "://" in value else _WORD
    if pattern is _WORD and at.startswith(_NAMES):  # a condition compares columns, which may be called anything
        return False
    found = pattern.findall(_marked(value))
    return any(names_secret(name) and _rest(given) for name, given in found)


def _is_named_secret(at: str) -> bool:
    if at.startswith(_NAMES):
        return _HASH.fullmatch(at) is not None
    return names_secret(at.rpartition(".options.")[2] if ".options." in at else at.rpartition(".")[2])


def _marked(value: str) -> str:
    """Write a NUL for each reference, whose own : and / mean nothing here."""
    return _REFERENCE.sub("\0", value)


def _rest(value: str) -> str:
    return _REFERENCE.sub("", value).replace("\0", "").strip()
