"""The language of patterns: ``placed !paid{10m}``, as its elements. Pure.

pattern   = element { element }
element   = name [ "{" count "}" ] [ "{" duration "}" ]     a row that satisfies the name's condition
          | "!" name [ "{" duration "}" ]                   no such row
count     = 2 … 100
duration  = 10m, 1h30m, 500ms, 7d
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc.config.yaml.yaml_binding import BOUND_AS, as_list
from cdc.model.errors import ConfigError

MOST_ROWS: Final = 100
"""So often an element may be repeated."""
MOST_ELEMENTS: Final = 10

_ELEMENT: Final = re.compile(r"(!?)([^\s!{}]+)((?:\{[^{}]*\})*)")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_UNITS: Final = {
    "us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000
}  # fmt: skip
_DURATION: Final = re.compile(r"(?:\d{1,9}(?:us|ms|s|m|h|d))+")
_LONGEST_US: Final = 3_660 * _UNITS["d"]
_OPEN: Final = re.compile(r"[+*?]$|\{\d*,\d*\}")


def duration_us(text: str) -> int | None:
    """Return how many microseconds ``1h30m`` is; None for what is no duration, nothing, or longer than ten years."""
    if not _DURATION.fullmatch(text):
        return None
    found = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(us|ms|s|m|h|d)", text))
    return found if 0 < found <= _LONGEST_US else None


@dataclass(frozen=True, slots=True)
class Absence:
    """No row that satisfies a condition."""

    name: str
    for_us: int | None
    """So long after the row before; None: until the next element's row."""


@dataclass(frozen=True, slots=True)
class Element:
    """A row of a pattern, or several that satisfy one condition, and what must not follow it."""

    name: str
    column: str
    """What its output columns begin with: the name, with a number where the pattern has it again."""
    count: int = 1
    within_us: int | None = None
    """At most so long after the row before."""
    absences: tuple[Absence, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The output columns: when its first row was, and where it has several, its last one."""
        return (f"{self.column}_at",) if self.count == 1 else (f"{self.column}_at", f"{self.column}_last_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternConfig:
    """Rows of a table that follow each other, or do not."""

    of: str
    """The table, or another view."""
    by: tuple[str, ...] = field(metadata={BOUND_AS: str | tuple[str, ...]})
    """Columns whose values belong together: each of their units is looked at on its own."""
    match: str
    define: Mapping[str, str]
    """By name, a condition over the table's columns, in Spark's SQL."""
    time: str | None = None
    """The column that says when a row happened; None: the table's only timestamp."""
    within: str | None = None
    """The longest time from the first row to the last one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", as_list(self.by))
        if not self.by:
            raise ConfigError("by is empty", hint="by: customer")
        if len({name.casefold() for name in self.by}) != len(self.by):
            raise ConfigError("by names a column twice", hint="keep one of them")
        elements = self.elements
        used = {name for each in elements for name in (each.name, *(none.name for none in each.absences))}
        for name in sorted(used - set(self.define)):
            raise ConfigError(
                f"match: “{name}” is not defined", hint=f"define: {{{name}: \"status = '{name}'\"}}, or correct match"
            )
        if len({name.casefold() for name in self.define}) != len(self.define):
            raise ConfigError("define: two names differ in upper and lower case alone", hint="rename one of them")
        for name, condition in self.define.items():
            if name not in used:
                raise ConfigError(f"define: match does not use “{name}”", hint="leave it out, or use it in match")
            if not condition.strip():
                raise ConfigError(f"define: the condition of “{name}” is empty", hint=f"{name}: \"status = '{name}'\"")
        columns = [name.casefold() for name in self.columns]
        for name in self.columns:
            if columns.count(name.casefold()) > 1:
                raise ConfigError(f"two columns of the view would be “{name}”", hint="give the element another name")
        if self.within is not None and duration_us(self.within) is None:
            raise ConfigError(f"within: “{self.within}” is no duration", hint="within: 10m, or 1h30m, 500ms, 7d")
        if self.within is not None and len(elements) == 1 and elements[0].count == 1:
            raise ConfigError("within: the pattern has one row alone", hint="leave it out")

    @property
    def elements(self) -> tuple[Element, ...]:
        """The pattern, taken apart. Raises ConfigError for what is no pattern."""
        return parse_pattern(self.match)

    @property
    def within_us(self) -> int | None:
        return None if self.within is None else duration_us(self.within)

    @property
    def columns(self) -> tuple[str, ...]:
        """The output columns, in order."""
        return (*self.by, *(name for each in self.elements for name in each.columns))


def parse_pattern(text: str) -> tuple[Element, ...]:
    """Return the elements of a pattern. Raises ConfigError for what is none, with the way out."""
    found: list[Element] = []
    seen: dict[str, int] = {}
    for part in text.split():
        is_absent, name, count, duration = _element(part)
        if is_absent:
            if not found:
                raise _refused(f"it begins with an absence, {part}", "begin with a row: placed !paid{10m}")
            last = found[-1]
            found[-1] = Element(
                last.name, last.column, last.count, last.within_us, (*last.absences, Absence(name, duration))
            )
            continue
        if duration is not None and not found:
            raise _refused(f"there is no row before {part}", f"leave its duration out: {name}; or say `within:`")
        if duration is not None and count > 1:
            raise _refused(f"{part} has a count and a duration", "say within: for the whole pattern")
        seen[name] = seen.get(name, 0) + 1
        column = name if seen[name] == 1 else f"{name}_{seen[name]}"
        found.append(Element(name, column, count, duration))
    if not found:
        raise _refused("it is empty", "match: placed !paid{10m}")
    if len(found) + sum(len(each.absences) for each in found) > MOST_ELEMENTS:
        raise _refused(f"it has more than {MOST_ELEMENTS} elements", "make a view of its first part, and read that")
    for none in found[-1].absences:
        if none.for_us is None:
            raise _refused(
                f"!{none.name} stands at the end without a duration: it would never be known",
                f"say for how long: !{none.name}{{10m}}",
            )
    return tuple(found)


def _element(part: str) -> tuple[bool, str, int, int | None]:
    """Return one element: whether it is an absence, its name, count and duration."""
    if _OPEN.search(part):
        raise _refused(
            f"{part} has no fixed number of rows",
            "rows between elements are skipped: write failed{2} for two or more, and leave out what may be missing",
        )
    read = _ELEMENT.fullmatch(part)
    if read is None or not _NAME.fullmatch(read[2]):
        raise _refused(f"“{part}” is no element", "a name of define:, as in placed !paid{10m} or failed{3}")
    count, duration = 1, None
    for inner in re.findall(r"\{([^{}]*)\}", read[3]):
        if inner.isdigit() and count == 1 and duration is None and not read[1]:
            count = int(inner)
            if not 1 < count <= MOST_ROWS:
                raise _refused(f"{part}: {inner} is out of range", f"a count from 2 to {MOST_ROWS}")
        elif duration is None and (duration := duration_us(inner)) is not None:
            continue
        else:
            raise _refused(f"{part}: “{inner}” is no duration", "10m, or 1h30m, 500ms, 7d; a count stands before it")
    return bool(read[1]), read[2], count, duration


def _refused(what: str, hint: str) -> ConfigError:
    return ConfigError(f"match: {what}", hint=hint)
