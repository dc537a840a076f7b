"""Binds YAML to frozen dataclasses; an error says file, line, path, what was found and what is allowed.

PyYAML parses (safe tags only); this binds its nodes, because only nodes know their lines. References (``${NAME}``) are
replaced inside string values, after parsing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Final, TypeVar, cast

import yaml

from cdc.config.yaml.misspelt import meant
from cdc.config.yaml.references import ELSEWHERE, expand
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

_YAML: Final = "tag:yaml.org,2002:"
_NUMBER: Final = {
    int: re.compile(r"[-+]?(?:0|[1-9]\d*(?:_\d+)*)"),
    float: re.compile(r"[-+]?(?:(?:0|[1-9]\d*(?:_\d+)*)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"),
}
"""Decimal ones alone: YAML takes 010 for 8, and 1:30 for 90."""
_MOST_DIGITS: Final = 100
_SHOWN: Final = 5
_WAYS_OUT: Final = (
    ("'\\t'", "it is a tab: YAML wants spaces"),
    ("another document", "a file is of one thing: take the line --- and what is below it into a file of its own"),
    ("cannot start any token", "put the value in quotes"),
    ("alphabetic or numeric", 'what begins with * or & needs quotes: "*.orders"'),
    ("undefined alias", 'what begins with * needs quotes: "*.orders"'),
    ("expected ',' or", 'within { } and [ ], what has {, }, [, ], a comma or a ! in it needs quotes: "${NAME}"'),
    (
        "mapping values are not allowed",
        "a space behind each colon, keys of one level in one column, and quotes around what has “: ” in it",
    ),
    ("could not find expected ':'", "each key is followed by a colon and a space; a value that goes on needs quotes"),
)
"""What PyYAML says, by words of it, and what is mostly the reason."""


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
    if node is None or _is_null(node):
        keys, does = _required(cls), "needs"
        if not keys:
            keys, does = [name_in_yaml(of) for of in _fields(cls)], "may have"
        raise ConfigError(f"{path}: the file is empty", hint=f"it {does} the keys {', '.join(keys)}")
    _require_kind(path, node, {each.name for each in dataclasses.fields(cls)})  # type: ignore[arg-type]
    binder = _Binder(path, cls, aliases or {}, references or expand)
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
        reason, hint = "it is not UTF-8 text", f"save it as UTF-8: file {quote(str(path))} tells what it is"
        if isinstance(exc, OSError):
            lost = isinstance(exc, (FileNotFoundError, IsADirectoryError))
            reason, hint = (
                str(exc.strerror),
                _beside(path) if lost else f"ls -l {quote(str(path))} tells who may read it",
            )
        raise ConfigError(f"{path}: cannot be read: {reason}", hint=hint) from exc
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise ConfigError(f"{path}: lists or keys are nested too deeply to be read") from None
    except yaml.reader.ReaderError as exc:
        at, code = text.count("\n", 0, exc.position) + 1, int(exc.character)
        raise ConfigError(
            f"{path}:{at}: this is not YAML: it has the character U+{code:04X}, which no YAML may have",
            hint='take it out; where it is meant, write it in double quotes: "\\x01"',
        ) from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(exc, "problem", None) or "it cannot be parsed"
        way_out = next((way for words, way in _WAYS_OUT if words in problem), None)
        raise ConfigError(f"{where}: this is not YAML: {problem}", hint=way_out) from exc


def _beside(path: Path) -> str:
    """Return the hint for a file that is not there: what is."""
    folder = path if path.is_dir() else path.parent
    there = sorted(each.name for each in folder.glob("*.y*ml"))
    near = difflib.get_close_matches(path.name, there, n=1)
    if near:
        return f"did you mean {folder / near[0]}?"
    if not folder.is_dir():
        return f"there is no folder {folder.absolute()}"
    return f"{folder.absolute()} has {', '.join(there[:_SHOWN]) or 'no YAML file'}"


class _ElsewhereError(Exception):
    """A number, or true or false, is in a reference that is resolved elsewhere."""


class _Binder:
    """Binds nodes of one file to types; holds what its errors need."""

    def __init__(
        self, path: Path, root: type[object], aliases: Mapping[str, str], references: Callable[[str], str]
    ) -> None:
        self._path = path
        self._root = root
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
                hint = meant(written, list(fields), at=at, elsewhere=_levels(self._root))
                raise self._error(key_node, _join(at, written), "unknown key", hint)
            if key in values:
                raise self._error(key_node, _join(at, written), f"given twice (as {key})", "keep one of them")
            field = fields[key]
            with contextlib.suppress(_ElsewhereError):  # its default stands in for it
                values[key] = self.bind(child, field.metadata.get(BOUND_AS, hints[field.name]), _join(at, key))
        for name in _required(cls):
            if name not in values:
                hint = f"{name}: {_shape(fields[name].metadata.get(BOUND_AS, hints[fields[name].name]))}"
                raise self._error(node, _join(at, name), "this key is missing", hint)
        try:
            return cls(**{fields[key].name: value for key, value in values.items()})
        except ConfigError as exc:
            raise self._error(self._named_by(node, exc.message) or node, at, exc.message, exc.hint) from exc

    def _named_by(self, node: yaml.Node, message: str) -> yaml.Node | None:
        """Return the key of the file that a message begins with, as far down as it says: ``sink.log.tables: …``."""
        found = None
        while isinstance(node, yaml.MappingNode):
            said = {self._aliases.get(key.value, key.value): (key, value) for key, value in node.value}
            begins = (key for key in said if re.match(rf"{re.escape(key)}(?![A-Za-z0-9_])", message))
            name = max(begins, key=len, default=None)
            if name is None:
                break
            (found, node), message = said[name], message[len(name) :].removeprefix(".")
        return found

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
        if node.tag in _AS_WRITTEN:
            return node.value
        if type(value) in (int, float) and not _NUMBER[float].fullmatch(node.value):  # which may be a password
            raise self._error(
                node, at, "a number that YAML reads as another one", "write decimals, or put it in quotes"
            )
        return self._expand(node, value, at) if isinstance(value, str) else value

    def _scalar(self, node: yaml.Node, wanted: type, at: str) -> object:
        if not isinstance(node, yaml.ScalarNode):
            several = isinstance(node, yaml.SequenceNode) and at.endswith("bootstrap_servers")
            hint = "write them as one text: host1:9092,host2:9092" if several else None
            raise self._error(node, at, f"{_NAMES[wanted]} is needed here, found {_kind(node)}", hint)
        self._refuse_tag(node, at)
        if wanted is str and not _is_null(node):
            return self._expand(node, node.value, at)  # 007 and yes stay what was written
        value = self._construct(node, at)
        if isinstance(value, str) and "${" in value:
            held = self._expand(node, value, at).strip()
            if held == ELSEWHERE:
                raise _ElsewhereError
            if wanted in _NUMBER and _NUMBER[wanted].fullmatch(held) and len(held) < _MOST_DIGITS:
                return wanted(held)
            if wanted is bool and held in _TRUTHS:
                return _TRUTHS[held]
            found = "what the reference holds" if held else "nothing: what the reference names is empty"
            raise self._error(node, at, f"{_NAMES[wanted]} is needed here, found {found}", None)
        if (
            wanted in _NUMBER
            and not node.style
            and _NUMBER[wanted].fullmatch(node.value)
            and len(node.value) < _MOST_DIGITS
        ):
            return wanted(node.value)
        if wanted is bool and type(value) is bool:
            return value
        found = f"“{node.value}”" if node.value or node.style else "nothing"
        raise self._error(node, at, f"{_NAMES[wanted]} is needed here, found {found}", _instead(node, value, wanted))

    def _construct(self, node: yaml.Node, at: str) -> object:
        self._refuse_tag(node, at)
        loader = yaml.SafeLoader("")
        try:
            return cast("object", loader.construct_object(node, deep=True))
        except (yaml.YAMLError, ValueError) as exc:
            raise self._error(node, at, f"the value cannot be read as {node.tag.rpartition(':')[2]}", None) from exc

    def _refuse_tag(self, node: yaml.Node, at: str) -> None:
        if not node.tag.startswith(_YAML):  # the value is not repeated: it may be a password
            raise self._error(node, at, "what begins with ! is a tag of YAML", 'put it in quotes: "!public.tmp_*"')

    def _expand(self, node: yaml.Node, value: str, at: str) -> str:
        try:
            return self._references(value)
        except ConfigError as exc:
            raise self._error(node, at, exc.message, exc.hint) from exc

    def _error(self, node: yaml.Node, at: str, what: str, hint: str | None) -> ConfigError:
        line = node.start_mark.line + 1
        return ConfigError(f"{self._path}:{line}: {at + ': ' if at else ''}{what}", hint=hint)


_NAMES: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_TRUTHS: Final = {"true": True, "false": False}
_AS_WRITTEN: Final = (f"{_YAML}timestamp",)
"""What stays text where a value may be anything."""


def _instead(node: yaml.ScalarNode, value: object, wanted: type) -> str | None:
    """Return what to write in place of a scalar that is not of the type that is needed."""
    if wanted in _NUMBER and node.style and _NUMBER[wanted].fullmatch(node.value):
        return f"without quotes: {node.value}"
    if (
        wanted in _NUMBER
        and type(value) in (int, float)
        and _NUMBER[float].fullmatch(str(value))
        and str(value) != node.value
    ):
        return f"YAML takes it for {value}: write that if it is meant"
    if wanted in _NUMBER and re.fullmatch(r"\d[\d.]*\s*[A-Za-z%]+", node.value):
        return "a number alone, without a unit"
    return "write true or false, without quotes" if wanted is bool and not _is_null(node) else None


def _is_null(node: yaml.Node) -> bool:
    return node.tag == f"{_YAML}null"


def _levels(root: type[object]) -> dict[str, list[str]]:
    """Return the keys of each section of a file, and of its top level, which is called nothing."""
    found = {"": [name_in_yaml(of) for of in _fields(root)]}
    for of in _fields(root):
        for each in _forms(of, typing.get_type_hints(root)):
            if dataclasses.is_dataclass(each):
                found[name_in_yaml(of)] = [name_in_yaml(inner) for inner in _fields(cast("type", each))]
    return found


def _forms(field: dataclasses.Field[Any], hints: Mapping[str, Any]) -> Sequence[Any]:
    """Return the types that a field's YAML may be bound to."""
    form = field.metadata.get(BOUND_AS, hints[field.name])
    return typing.get_args(form) or (form,)


def _shape(form: Any) -> str:  # noqa: ANN401 - a type form has no static type
    """Return what is to be written for a value, with the keys that it needs."""
    arguments = typing.get_args(form)
    if isinstance(origin := typing.get_origin(form), type) and issubclass(origin, Mapping):
        return f"{{NAME: {_shape(arguments[1])}}}"
    if origin is tuple:
        return f"[{_shape(arguments[0])}]"
    of = next((each for each in arguments or (form,) if dataclasses.is_dataclass(each)), None)
    keys = ", ".join(f"{key}: …" for key in _required(of)) if of is not None else ""
    return f"{{{keys}}}" if keys else "…"


def _required(cls: object) -> list[str]:
    """Return the keys that have no default."""
    missing = dataclasses.MISSING
    return [name_in_yaml(f) for f in _fields(cast("type", cls)) if f.default is f.default_factory is missing]


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
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if _is_null(node) else "a single value"
