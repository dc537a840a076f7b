"""Binds YAML to frozen dataclasses; an error says file, line, path, what was found and what is allowed.

PyYAML parses (safe tags only); this binds its nodes, because only nodes know their lines. ``${NAME}`` (or, as with
Kafka Connect, ``${env:NAME}``), ``${NAME:-default}`` and ``${file:/path}`` are replaced inside string values, after
parsing: a variable's value is never read as YAML, and no error repeats it.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import yaml

from cdc.model.errors import ConfigError

T = TypeVar("T")

BOUND_AS: Final = "bound as"
"""A key of a field's metadata: the type that its YAML is bound to, if the class converts it; None: it has no YAML."""

WRITTEN: Final = "written"
"""A key of a field's metadata: its name in YAML, where Python keeps that word for itself."""

_KINDS: Final = {
    "views": ("a view job", "cdc view run"),
    "stores": ("an apply job", "cdc apply"),
    "fleet": ("a fleet's member", "cdc fleet run --config"),
    "sink": ("a connector", "cdc run"),
}
"""The key by which a file is known, the first of these; what it is of, and the command that takes it."""

_REFERENCE = re.compile(r"\$?\$\{([^}]*)\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{).)*))?", re.DOTALL)


def load(
    path: Path,
    cls: type[T],
    *,
    aliases: Mapping[str, str] | None = None,
    text: str | None = None,
    references: Callable[[str], str] | None = None,
) -> T:
    """Read one YAML file into `cls`. Raises ConfigError for everything that is wrong with it.

    `text` is its content, where `path` is only what messages call it. `references` replaces the references in a value,
    in place of `expand`.
    """
    node = _compose(path, text)
    if node is None:
        raise ConfigError(f"{path}: the file is empty", hint=f"it needs the keys {_names(cls)}")
    _require_kind(path, node, {each.name for each in dataclasses.fields(cls)})  # type: ignore[arg-type]
    binder = _Binder(path, aliases or {}, references or expand)
    try:
        return cast("T", binder.bind(node, cls, ""))
    except RecursionError:
        raise ConfigError(f"{path}: an alias (*name) stands inside what it names", hint="write it out") from None


def as_list(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return what a key that takes one name or several was given."""
    return (given,) if isinstance(given, str) else tuple(given)


def _require_kind(path: Path, node: yaml.Node, keys: set[str]) -> None:
    """Refuse a file of another kind as that: its keys are right, and it is the command that is wrong."""
    given = {str(key.value) for key, _ in node.value} if isinstance(node, yaml.MappingNode) else set()
    wanted, found = (next((key for key in _KINDS if key in of), None) for of in (keys, given))
    if wanted is not None and found is not None and wanted not in given:
        kind, command = _KINDS[found]
        raise ConfigError(
            f"{path}: this is the file of {kind}, and that of {_KINDS[wanted][0]} is needed here",
            hint=f"it is for {command}; cdc COMMAND --help says which file a command takes",
        )


def top_level_keys(path: Path) -> set[str]:
    """Read the names of a file's top-level keys. Raises ConfigError for a file that is not YAML."""
    node = _compose(path)
    return {str(key.value) for key, _ in node.value} if isinstance(node, yaml.MappingNode) else set()


def text_at(path: Path, *keys: str, text: str | None = None) -> str | None:
    """Read the text of one key of a file, as it is written; None if it is not there. Raises ConfigError if no YAML."""
    node = _compose(path, text)
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for name, value in pairs if name.value == key), None)
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _compose(path: Path, text: str | None = None) -> yaml.Node | None:
    try:
        text = path.read_text(encoding="utf-8") if text is None else text
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from exc
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise ConfigError(f"{path}: lists or keys are nested too deeply to be read") from None
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(exc, "problem", None) or "it cannot be parsed"
        raise ConfigError(f"{where}: this is not YAML: {problem}") from exc


def expand(value: str) -> str:
    """Replace the references in one string value; ``$${NAME}`` stays as ``${NAME}``."""

    def replace(match: re.Match[str]) -> str:
        if match.group().startswith("$$"):
            return match.group()[1:]
        inner = match.group(1)
        if inner.startswith("file:"):
            return _secret_file(Path(inner.removeprefix("file:")))
        variable = _VARIABLE.fullmatch(inner.removeprefix("env:"))
        if variable is None:
            raise ConfigError(
                f"${{{inner}}} is not a reference", hint="write ${NAME}, ${NAME:-default} or ${file:/path}"
            )
        name, default = variable.groups()
        found = os.environ.get(name)
        if default is not None:
            return found or default
        if found is None:
            raise ConfigError(f"environment variable {name} is not set", hint=f"export {name}=…")
        return found

    return _REFERENCE.sub(replace, value)


def _secret_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"${{file:{path}}} cannot be read: {reason}") from exc


class _Binder:
    """Binds nodes of one file to types; holds what its errors need."""

    def __init__(self, path: Path, aliases: Mapping[str, str], references: Callable[[str], str]) -> None:
        self._path = path
        self._aliases = aliases
        self._references = references

    def bind(self, node: yaml.Node, wanted: Any, at: str) -> object:  # noqa: ANN401 - a type form has no static type
        origin = typing.get_origin(wanted)
        arguments = typing.get_args(wanted)
        if origin in (typing.Union, types.UnionType):
            if node.tag == "tag:yaml.org,2002:null" and type(None) in arguments:
                return None
            forms = [a for a in arguments if a is not type(None)]
            listed = next((a for a in forms if typing.get_origin(a) is tuple), None)
            if isinstance(node, yaml.SequenceNode) and listed is not None:
                return self.bind(node, listed, at)
            keyed = isinstance(node, yaml.MappingNode)
            return self.bind(node, next((a for a in forms if dataclasses.is_dataclass(a) == keyed), forms[0]), at)
        if dataclasses.is_dataclass(wanted):
            return self._dataclass(node, cast("type[object]", wanted), at)
        if origin is tuple:
            if not isinstance(node, yaml.SequenceNode):
                raise self._error(node, at, f"a list is needed here, found {_kind(node)}", "write [a, b]")
            return tuple(self.bind(child, arguments[0], f"{at}[{i}]") for i, child in enumerate(node.value))
        if origin is not None and issubclass(origin, Mapping):
            return {key: self.bind(child, arguments[1], _join(at, key)) for key, _, child in self._items(node, at)}
        if wanted in (object, Any):
            return self._anything(node, at)
        return self._scalar(node, wanted, at)

    def _dataclass(self, node: yaml.Node, cls: type[object], at: str) -> object:
        hints = typing.get_type_hints(cls)
        fields = {name_in_yaml(f): f for f in _fields(cls)}
        values: dict[str, object] = {}
        for written, key_node, child in self._items(node, at):
            key = self._aliases.get(written, written)
            if key not in fields:
                near = difflib.get_close_matches(written, fields, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"allowed here: {_names(cls)}"
                raise self._error(key_node, _join(at, written), "unknown key", hint)
            if key in values:
                raise self._error(key_node, _join(at, written), f"given twice (as {key})", "keep one of them")
            field = fields[key]
            values[key] = self.bind(child, field.metadata.get(BOUND_AS, hints[field.name]), _join(at, key))
        for name, field in fields.items():
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if required and name not in values:
                raise self._error(node, _join(at, name), "this key is missing", None)
        try:
            return cls(**{fields[key].name: value for key, value in values.items()})
        except ConfigError as exc:
            raise self._error(node, at, exc.message, exc.hint) from exc

    def _items(self, node: yaml.Node, at: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, at, f"keys and values are needed here, found {_kind(node)}", None)
        seen: set[str] = set()
        items: list[tuple[str, yaml.Node, yaml.Node]] = []
        for key_node, child in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, at, "a key must be a plain name", None)
            if key_node.value in seen:
                raise self._error(key_node, _join(at, key_node.value), "given twice", "keep one of them")
            seen.add(key_node.value)
            items.append((key_node.value, key_node, child))
        return items

    def _anything(self, node: yaml.Node, at: str) -> object:
        if isinstance(node, yaml.MappingNode):
            return {key: self._anything(child, _join(at, key)) for key, _, child in self._items(node, at)}
        if isinstance(node, yaml.SequenceNode):
            return [self._anything(child, f"{at}[{i}]") for i, child in enumerate(node.value)]
        value = self._construct(node, at)
        return self._expand(node, value, at) if isinstance(value, str) else value

    def _scalar(self, node: yaml.Node, wanted: type, at: str) -> object:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, at, f"{_NAMES[wanted]} is needed here, found {_kind(node)}", None)
        if wanted is str and node.tag != "tag:yaml.org,2002:null":
            return self._expand(node, node.value, at)  # 007 and yes stay what was written
        value = self._construct(node, at)
        referenced = isinstance(value, str) and "${" in value
        if isinstance(value, str):
            value = self._expand(node, value, at)
        if wanted in (int, float) and referenced:
            try:
                value = wanted(str(value))
            except ValueError:
                pass  # reported below, by its type
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            found = "what the reference holds" if referenced else f"“{node.value}”"
            raise self._error(node, at, f"{_NAMES[wanted]} is needed here, found {found}", None)
        return value

    def _construct(self, node: yaml.Node, at: str) -> object:
        loader = yaml.SafeLoader("")
        try:
            return cast("object", loader.construct_object(node, deep=True))
        except (yaml.YAMLError, ValueError) as exc:
            raise self._error(node, at, f"the value cannot be read as {node.tag.rpartition(':')[2]}", None) from exc

    def _expand(self, node: yaml.Node, value: str, at: str) -> str:
        try:
            return self._references(value)
        except ConfigError as exc:
            raise self._error(node, at, exc.message, exc.hint) from exc

    def _error(self, node: yaml.Node, at: str, what: str, hint: str | None) -> ConfigError:
        line = node.start_mark.line + 1
        return ConfigError(f"{self._path}:{line}: {at + ': ' if at else ''}{what}", hint=hint)


_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _names(cls: type) -> str:
    return ", ".join(map(name_in_yaml, _fields(cls)))


def name_in_yaml(field: dataclasses.Field[Any]) -> str:
    """Return what a field is called in a file."""
    return str(field.metadata.get(WRITTEN, field.name))


def _fields(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cast("Any", cls)) if f.metadata.get(BOUND_AS, f.type) is not None]


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "keys and values"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
