"""Writes a pattern as SQL: windows over the rows of a unit, one level for each row that follows another.

Rows of a unit are in the order of (time, key). A match begins at each row that satisfies the first element, and takes,
of all ways to complete it, the one whose rows come first. It is found from the end to the beginning: once it is known
at which rows the rest of the pattern can begin, a row goes on with the first of these that comes after it, and with
none if that one is too late or comes behind an absence's row, for then all others are, too.

So for two rows at which the rest can begin, none of what follows the earlier one is later than what follows the later
one. That is why the smallest time of any row to come is the time of the first one, column by column (`_first_after`),
and why a limit for the whole pattern need be compared with the way that is found alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cdc.config.view_pattern import Element, PatternConfig

_AT, _NUMBER = "_at", "_n"
_UNITS = (("DAYS", 86_400_000_000), ("SECONDS", 1_000_000), ("MICROSECONDS", 1))


@dataclass(slots=True)
class _Levels:
    """The CTEs of the query, each over the one before."""

    ctes: list[str] = field(default_factory=list)

    def add(self, columns: Sequence[str], where: str = "", read: str | None = None) -> None:
        over = read or f"_l{len(self.ctes) - 1}"
        self.ctes.append(f"_l{len(self.ctes)} AS (\n  SELECT {', '.join(columns)}\n  FROM {over}{where})")

    @property
    def last(self) -> str:
        return f"_l{len(self.ctes) - 1}"


def pattern_sql(pattern: PatternConfig, time: str, key: Sequence[str]) -> str:
    """Return the SELECT that a pattern is, over a table with this time column and this key."""
    return _Query(pattern, time, key).text()


class _Query:
    def __init__(self, pattern: PatternConfig, time: str, key: Sequence[str]) -> None:
        self._pattern = pattern
        self._time = time
        self._key = key
        self._elements = pattern.elements
        self._is = {name: f"_is_{name}" for name in pattern.define}
        self._by = [f"_by{number}" for number in range(len(pattern.by))]
        self._numbered = any(none.for_us is None for each in self._elements for none in each.absences)
        self._order = [_AT, *(f"_key{number}" for number in range(len(key)))]
        number = [_NUMBER] if self._numbered else []
        self._own = [*self._by, *self._order, *number, *self._is.values()]
        self._levels = _Levels()

    def text(self) -> str:
        self._rows()
        times: tuple[str, ...] = ()
        for element in reversed(self._elements):
            times = self._element(element, times)
        first, last = times[0], times[-1]
        within = self._pattern.within_us
        late = f" AND {last} <= {_later(_AT, within)}" if within is not None else ""
        by = [f"{own} AS {_quoted(name)}" for own, name in zip(self._by, self._pattern.by, strict=True)]
        columns = [name for each in self._elements for name in each.columns]
        shown = [f"{first} AS {_quoted(columns[0])}"]
        shown += [f"min({at}) AS {_quoted(name)}" for at, name in zip(times[1:], columns[1:], strict=True)]
        group = ", ".join([*self._by, first])
        ctes = ",\n".join(self._levels.ctes)
        selected = ", ".join([*by, *shown])
        return f"WITH {ctes}\nSELECT {selected}\nFROM {self._levels.last}\nWHERE _ok{late}\nGROUP BY {group}"

    def _rows(self) -> None:
        """The rows that satisfy a condition, with their time."""
        conditions = {name: f"({condition.strip()}\n)" for name, condition in self._pattern.define.items()}
        columns = [f"{_quoted(name)} AS {own}" for own, name in zip(self._by, self._pattern.by, strict=True)]
        columns.append(f"{_quoted(self._time)} AS {_AT}")
        if self._numbered:
            by = ", ".join(map(_quoted, self._pattern.by))
            order = ", ".join(map(_quoted, (self._time, *self._key)))
            columns.append(f"row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS {_NUMBER}")
        columns += [f"{_quoted(name)} AS _key{number}" for number, name in enumerate(self._key)]
        columns += [f"{condition} AS {self._is[name]}" for name, condition in conditions.items()]
        where = f"\n  WHERE {_quoted(self._time)} IS NOT NULL AND ({' OR '.join(conditions.values())})"
        self._levels.add(columns, where, read=".".join(map(_quoted, self._pattern.of.split(".", 1))))

    def _element(self, element: Element, times: tuple[str, ...]) -> tuple[str, ...]:
        """Add the levels that say at which rows the pattern can go on with an element; return its rows' times.

        `times` are those of what follows, at the rows where that can begin.
        """
        here, last = self._is[element.name], not times
        follows = tuple(f"_f{number}" for number in range(len(times)))
        windows = [f"{self._first_after('_ok', at)} AS {name}" for at, name in zip(times, follows, strict=True)]
        numbers, conditions = [], [here]
        if not last:
            conditions.append(f"{follows[0]} IS NOT NULL")
        for number, none in enumerate(element.absences):
            at = f"_none{number}"
            if none.for_us is not None:
                windows.append(f"{self._first_after(self._is[none.name], _AT)} AS {at}")
                conditions.append(f"({at} IS NULL OR {at} > {_later(_AT, none.for_us)})")
                conditions.append(f"{_later(_AT, none.for_us)} < clock()")
            else:
                windows.append(f"{self._first_after(self._is[none.name], _NUMBER)} AS {at}")
                numbers.append(f"({at} IS NULL OR {at} >= _next)")
        if numbers:
            windows.append(f"{self._first_after('_ok', _NUMBER)} AS _next")
        bound = self._bound_after(element)
        if bound is not None:
            conditions.append(f"{follows[0]} <= {_later(_AT, bound)}")
        if windows:
            self._levels.add([*self._own, *windows])
        self._levels.add([*self._own, *follows, f"coalesce({' AND '.join([*conditions, *numbers])}, false) AS _ok"])
        if element.count == 1:
            return (_AT, *follows)
        return self._repeated(element, follows, simple=not windows)

    def _bound_after(self, element: Element) -> int | None:
        number = next(number for number, each in enumerate(self._elements) if each is element)
        following = self._elements[number + 1 : number + 2]
        return following[0].within_us if following else None

    def _repeated(self, element: Element, follows: tuple[str, ...], *, simple: bool) -> tuple[str, ...]:
        """Add the levels of the rows before an element's last one; `_ok` says of a row that it can be that last one."""
        here = self._is[element.name]
        found = ("_last", *(f"_g{number}" for number in range(len(follows))))
        more = element.count - 1
        read = (_AT, *follows)
        if not simple:  # the last row is the first of those that can be it, behind the last but one
            windows = [f"{self._first_after('_ok', at)} AS {name}" for at, name in zip(read, found, strict=True)]
            self._levels.add([*self._own, *windows])
            more, read = more - 1, found
        if more:
            ahead = ", ".join(self._by)
            order = ", ".join(self._order)
            over = f"OVER (PARTITION BY {ahead}, {here} ORDER BY {order})"
            leads = [f"lead({at}, {more}) {over} AS {name}" for at, name in zip(read, found, strict=True)]
            self._levels.add([*self._own, *leads])
        ok = f"coalesce({here} AND _last IS NOT NULL, false) AS _ok"
        self._levels.add([*self._own, *found, ok])
        return (_AT, *found)

    def _first_after(self, which: str, value: str) -> str:
        """Return the value of the first row to come of which a column is true.

        Rows are read backwards, since Spark begins again at each row where a frame ends with the partition.
        """
        order = ", ".join(f"{name} DESC" for name in self._order)
        return (
            f"min(CASE WHEN {which} THEN {value} END) OVER (PARTITION BY {', '.join(self._by)} "
            f"ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )


def _later(at: str, us: int) -> str:
    """Return an instant that is later, in steps that an interval of Spark can have."""
    rest, found = us, at
    for unit, size in _UNITS:
        number, rest = divmod(rest, size)
        if number:
            found += f" + INTERVAL {number} {unit}"
    return found


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
