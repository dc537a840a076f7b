"""What is published of a view was made by a definition: it is kept beside the position, with the one before it.

So a file that was edited is found out before anything that is published changes, also where the state was lost; and the
generation before can be made again.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import sqlglot
from sqlglot.errors import SqlglotError

from cdc.config.view_pattern import PatternConfig
from cdc.config.views import MatchConfig, ReadConfig, StreamConfig, ViewConfig, ViewsConfig
from cdc.model.errors import ConfigError
from cdc.model.state import State
from spark_apply.views.planning.forms import relations_named
from spark_apply.views.planning.view import relation_of
from spark_apply.views.sql.reading.written import SparkSql

_SHOWN: Final = 5
"""So many pieces of a definition that differ are shown."""
_LONGEST: Final = 120
_STREAM: Final = "stream."
_HOW: Final = frozenset({"refresh", "unit", "unit_limit"})
"""What makes no difference to rows: how they are kept up to date."""

Text = Mapping[str, Any]
"""A view as the file has it, by the file's keys."""


@dataclass(frozen=True, slots=True)
class Definition:
    """By what a view is published."""

    generation: int
    """1 at first; each rebuild and each rollback adds one."""
    text: Text
    before: Text | None = None
    """Of the generation before."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Definition:
        return cls(**json.loads(text))

    def next(self, text: Text) -> Definition:
        """Return what follows where a view is published by `text`: itself, if that means the same."""
        return self if same(self.text, text) else Definition(self.generation + 1, text, self.text)


def texts_of(config: ViewsConfig) -> dict[str, Text]:
    """Return the views of a file by name, with the streams that they name."""
    found: dict[str, Text] = {}
    for name, view in config.views.items():
        named = [of.removeprefix(_STREAM) for of in relations_named(name, view) if of.startswith(_STREAM)]
        streams = {of: asdict(config.streams[of]) for of in sorted(named) if of in config.streams}
        for stream in streams.values():
            del stream["on_loss"]
            _without_none(stream, "sent", "received")  # as it was before there were these
            if stream["format"] == "json":  # as it was before there was another
                del stream["format"]
        found[name] = {**described(view), **({"streams": json.loads(json.dumps(streams))} if streams else {})}
    return found


def with_texts(config: ViewsConfig, texts: Mapping[str, Text]) -> ViewsConfig:
    """Return a file with these definitions of views, and of streams that they read, in place of its own.

    Raises ConfigError where a stream would be read in two ways.
    """
    streams: dict[str, StreamConfig] = {}
    for name, text in {**texts_of(config), **texts}.items():
        for stream, of in text.get("streams", {}).items():
            kept = config.streams[stream].on_loss if stream in config.streams else "stop"
            made = StreamConfig(**{**of, "key": tuple(of["key"])}, on_loss=kept)
            if streams.setdefault(stream, made) != made:
                msg = f"views.{name}: it would read stream {stream} in another way than a view that stays as it is"
                raise ConfigError(msg, hint="rebuild all views that read it together: leave out --view")
    views = {name: view_of(text) for name, text in texts.items()}
    return replace(config, views={**config.views, **views}, streams={**config.streams, **streams})


def described(view: ViewConfig) -> Text:
    """Return a view as the file has it."""
    found = {**asdict(view), "from": {table: asdict(read) for table, read in view.reads.items()}}
    for read in found["from"].values():
        _without_none(read, "sent", "received")
    del found["reads"]
    kept = {name: value for name, value in found.items() if value not in (None, {}, "units", ())}
    return dict(json.loads(json.dumps(kept)))


def _without_none(text: dict[str, Any], *names: str) -> None:
    for name in names:
        if text[name] is None:
            del text[name]


def view_of(text: Text) -> ViewConfig:
    """Return what `described` was given."""
    pattern, match = text.get("pattern"), text.get("match")
    return ViewConfig(
        key=tuple(text["key"]),
        sql=text.get("sql"),
        pattern=PatternConfig(**{**pattern, "by": tuple(pattern["by"])}) if pattern else None,
        match=MatchConfig(**{**match, "fields": tuple(match["fields"])}) if match else None,
        refresh=text.get("refresh", "units"),
        unit=tuple(text.get("unit", ())),
        unit_limit=text.get("unit_limit"),
        reads={table: ReadConfig(**read) for table, read in text.get("from", {}).items()},
    )


def same(one: Text, other: Text) -> bool:
    """Whether two definitions give the same rows, as far as can be told: white space and comments do not count."""
    return _compared(one) == _compared(other)


def _compared(text: Text) -> Text:
    found = {name: value for name, value in text.items() if name not in _HOW}
    if "sql" in found:
        found["sql"] = _plain(found["sql"])
    return found


def _plain(sql: str) -> str:
    try:
        return sqlglot.parse_one(sql, read=SparkSql).sql(dialect="spark", comments=False)
    except SqlglotError:
        return sql


def published(state: State | None) -> dict[str, Definition]:
    """Return by view what it is published by; of what an older release has published nothing is known."""
    if state is None:
        return {}
    begin = relation_of("")
    return {name.removeprefix(begin): Definition.from_json(text) for name, text in state.carried.items()}


def changed(config: ViewsConfig, state: State | None) -> dict[str, Definition]:
    """Return by view the definitions that are published, of those views of which the file has another one."""
    known = published(state)
    return {
        name: known[name]
        for name, text in texts_of(config).items()
        if name in known and not same(known[name].text, text)
    }


def refuse_changed(config: ViewsConfig, state: State | None, asked: Collection[str] = ()) -> None:
    """Raise ConfigError where the file has another definition of a view than is published, and nobody asked for it."""
    found = {name: known for name, known in changed(config, state).items() if name not in asked}
    if not found:
        return
    texts = texts_of(config)
    said = "; ".join(
        f"{name} (generation {known.generation}): {', '.join(_differences(known.text, texts[name]))}"
        for name, known in found.items()
    )
    chosen = f"--view {next(iter(found))} " if len(found) == 1 else ""
    raise ConfigError(
        f"views: the file has other definitions than what is published: {said}",
        hint=f"cdc view rebuild VIEWS.yaml {chosen}--dry-run  # shows which rows would change; without --dry-run it "
        "publishes them. Or write the definition into the file as it was",
    )


def _differences(was: Text, now: Text) -> Iterator[str]:
    one, other = _compared(was), _compared(now)
    for name in sorted(one.keys() | other.keys()):
        before, after = (_words(of.get(name)) for of in (one, other))
        if before == after:
            continue
        pieces = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        shown = [
            f"“{_short(after[now_from:now_to])}” was “{_short(before[was_from:was_to])}”"
            for tag, was_from, was_to, now_from, now_to in pieces
            if tag != "equal"
        ]
        yield f"{name}: {', '.join(shown[:_SHOWN])}{', …' if len(shown) > _SHOWN else ''}"


def _words(value: object) -> list[str]:
    if value is None:
        return []
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)).split()


def _short(words: list[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
