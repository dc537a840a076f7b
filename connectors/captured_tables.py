"""Judges which tables can be captured, where PostgreSQL and MySQL do so alike: names, patterns, keys.

In: what a catalog has found. Out: errors with the statement that helps. Each connector's catalog imports it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from cdc.config.findings import Finding, Level, left_out, refused
from cdc.config.published.outbox import OutboxConfig
from cdc.config.table_patterns import LEFT_OUT, is_pattern, matches
from cdc.model.errors import CdcError, ChangedError, LeftOutError, OperatorError, RetryableError, raise_first

log = logging.getLogger("cdc")


class Qualified(Protocol):
    """Has a name."""

    @property
    def qualified(self) -> str:
        """Return ``schema.table``."""


class Found(Qualified, Protocol):
    """Is a table, or something of that name, in a catalog."""

    @property
    def schema(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def sql(self) -> str:
        """Return the name as SQL writes it."""


_F = TypeVar("_F", bound=Found)


class _OfTable(Protocol):
    @property
    def table(self) -> Qualified: ...


_C = TypeVar("_C", bound=_OfTable)


class Unmatched(NamedTuple):
    """Is an item of `source.tables`, a name or a pattern, for which there is no table."""

    qualified: str
    error: Callable[[], OperatorError]
    """Says so, with names that are like it, which takes long among many."""


Leave: TypeAlias = Callable[[Qualified, OperatorError], None]
"""Leaves out a table that cannot be captured, or raises the error."""


Reasons: TypeAlias = Mapping[str, CdcError]
"""Why tables are left out, by ``schema.table``."""


def refuse(_found: Qualified, error: OperatorError) -> None:
    """Leave out no table."""
    raise error


class LeftOut:
    """Leaves out what cannot be captured: whether the others go on without what the file names, a start says."""

    def __init__(self, items: Sequence[str], outbox: OutboxConfig | None = None) -> None:
        self._items = frozenset(items)
        self._outbox = outbox.table if outbox is not None else None
        self.found: dict[str, CdcError] = {}
        """The errors of those that were left out, by ``schema.table``, or by the pattern that matches nothing."""
        self.may_pass: set[str] = set()
        """Those to be judged again while the others are followed: also those that no pattern brings."""

    def brings(self, name: str) -> bool:
        """Tell whether it is a pattern alone that brings a table of this name."""
        return name not in self._items

    def __call__(self, found: Qualified, error: OperatorError) -> None:
        brought, hint = self.brings(found.qualified), error.hint
        if brought and found.qualified != self._outbox:  # which the file must not leave out
            hint = f'{error.hint}; or say that it is left out: source.tables: […, "!{found.qualified}"]'
        if isinstance(error, LeftOutError) or not (brought or is_pattern(found.qualified)):
            self.may_pass.add(found.qualified)
        self.found.setdefault(found.qualified, LeftOutError(error.message, hint=hint))

    def for_now(self, found: Qualified, error: RetryableError) -> None:
        """Leave out a table until what is in its way has passed."""
        self.found.setdefault(found.qualified, error)

    def refuse_all(self, captured: Collection[object]) -> None:
        """Raise OperatorError if nothing is `captured` because all was left out."""
        if not captured:
            raise_first(self.found.values())

    def tell(self, *, but: Container[str]) -> None:
        """Log what is left out while others are followed, `but` these. A start says itself what it leaves out."""
        for name, error in self.found.items():
            if name not in but:
                log.warning("%s: it is left out; %s", error.message, error.hint)


@contextmanager
def looking_again() -> Iterator[None]:
    """Let a table that can no longer be captured end the session: the next one leaves it out."""
    try:
        yield
    except OperatorError as exc:
        raise ChangedError(f"{exc.message}: looking again") from exc


class _Catalog(Protocol):
    def brought(self, patterns: Sequence[str]) -> list[str]: ...

    def captured(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]], leave: Leave
    ) -> Iterable[_OfTable]: ...


def back(left_out: Collection[str], catalog: _Catalog, keys: Mapping[str, Sequence[str]]) -> set[str]:
    """Return those that were left out for a time and can be captured by now, of those that are there."""
    there = catalog.brought([*left_out]) if left_out else []
    return {one.table.qualified for one in catalog.captured(there, keys, LeftOut([]))} if there else set()


def matched(
    patterns: Sequence[str],
    everything: Sequence[_F],
    is_table: Callable[[_F], bool],
    nothing: Callable[[str], _F | Unmatched],
    compared: Callable[[str], str] = lambda name: name,
) -> Iterator[_F | Unmatched]:
    """Give what each pattern names, in their order; for one that names nothing, what `nothing` makes of it.

    One whose tables are all left out names something, unless nothing is left at all. `compared` gives what the server
    compares of a name. Patterns match what `is_table`; a name matches what cannot be captured, too, which is told so.
    """
    without = [compared(pattern.removeprefix(LEFT_OUT)) for pattern in patterns if pattern.startswith(LEFT_OUT)]
    names = [(compared(found.qualified), found) for found in everything]
    left = [of for of in names if not any(matches(pattern, of[0]) for pattern in without)]

    def of(pattern: str, among: Iterable[tuple[str, _F]]) -> Iterator[_F]:
        wanted, wild = compared(pattern), is_pattern(pattern)
        return (found for name, found in among if matches(wanted, name) and (is_table(found) or not wild))

    told, hidden = False, list[str]()
    for pattern in patterns:
        if pattern.startswith(LEFT_OUT):
            continue
        there = list(of(pattern, left))
        if not there and any(of(pattern, names)):
            hidden.append(pattern)
            continue
        told = True
        if not there:
            yield nothing(pattern)
        yield from there
    for pattern in [] if told else hidden:
        yield nothing(pattern)


def chosen(
    matched: Iterable[_F | Unmatched], judge: Callable[[_F], Iterator[OperatorError]], leave: Leave = refuse
) -> list[_F]:
    """Return what was matched, once and sorted by name; `leave` is called for what cannot be captured."""
    found_by_name: dict[str, _F] = {}
    for found in matched:
        if isinstance(found, Unmatched):
            leave(found, found.error())
            continue
        other = found_by_name.setdefault(found.qualified, found)
        if (other.schema, other.name) != (found.schema, found.name):
            raise OperatorError(
                f"tables {other.sql} and {found.sql} have the same name, {found.qualified}, where a dot is put between "
                "its parts",
                hint="leave one of them out of source.tables, or rename it",
            )
    for found in list(found_by_name.values()):
        for error in judge(found):
            leave(found, error)
            del found_by_name[found.qualified]
            break
    return sorted(found_by_name.values(), key=lambda found: (found.schema, found.name))


def refusals(
    matched: Iterable[_F | Unmatched], judge: Callable[[_F], Iterator[OperatorError]]
) -> Iterator[tuple[str, OperatorError | None]]:
    """Give every pattern or table, and each reason why it cannot be captured; None where there is none."""
    seen: set[str] = set()
    for found in matched:
        if isinstance(found, Unmatched):
            yield found.qualified, found.error()
        elif found.qualified not in seen:
            seen.add(found.qualified)
            reasons: list[OperatorError | None] = list(judge(found))
            yield from ((found.qualified, reason) for reason in reasons or [None])


def sorted_out(
    refusals: Iterable[tuple[str, OperatorError | None]],
    patterns: Sequence[str],
    known: Collection[str],
) -> tuple[list[str], list[Finding]]:
    """Return the tables that can be captured, and what `cdc check` finds of the others.

    `refusals` has tables and patterns, each with its error or None; `known` are captured already.
    """
    good, bad = list[str](), list[tuple[str, OperatorError]]()
    for name, refusal in refusals:
        if refusal is not None:
            bad.append((name, refusal))
        elif name not in good:
            good.append(name)
    return good, [
        refused(f"table {name}", refusal)
        if (name in patterns and not known) or not good
        else left_out(f"table {name}", refusal, named=name in patterns)
        for name, refusal in bad
    ]


def all_of(names: Sequence[str], captured: Callable[[Sequence[str]], Iterable[_C]]) -> list[_C]:
    """Return tables by their names, in that order: one look at the catalog, however many there are."""
    asked = [name for name in names if not name.startswith(LEFT_OUT)]
    found = {one.table.qualified: one for one in captured(asked)}
    return [found[name] for name in asked if name in found]


def did_you_mean(name: str, names: Collection[str], *, most: int = 1) -> str | None:
    """Return a hint with the names that are most like this one, if any are."""
    near = difflib.get_close_matches(name, names, n=most, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else None


def nothing_matches(pattern: str, names: Sequence[str]) -> OperatorError:
    """Say that a name or pattern of the configuration names no table; `names` are those of the tables there are."""
    near = did_you_mean(pattern, names, most=3)
    what = "matches no table" if is_pattern(pattern) else "does not exist"
    return OperatorError(f"table {pattern} {what}", hint=near or f"tables here: {', '.join(names[:10]) or 'none'}")


def no_primary_key(found: Found, names: Sequence[str]) -> OperatorError:
    """Return the error of a table that has no primary key, where the configuration gives no key either."""
    return OperatorError(
        f"table {found.qualified} has no primary key: its rows cannot be told apart in a topic",
        hint=f"ALTER TABLE {found.sql} ADD PRIMARY KEY (…); or name the columns that tell them apart: "
        f"tables: [{{table: {found.qualified}, key: [{', '.join(names[:2])}]}}]; "
        "or leave it out of tables",
    )


def no_key_of_its_own(table: str) -> OperatorError:
    """Return the error of a key that the configuration gives for a table that is captured by triggers."""
    return OperatorError(
        f"table {table}: a key in source.tables means nothing to triggers, which go by the primary key",
        hint=f"tables: [{table}]",
    )


def no_primary_key_for_triggers(found: Found) -> OperatorError:
    """Return the error of a table that triggers cannot capture, for it has no primary key."""
    return OperatorError(
        f"table {found.qualified} has no primary key: its rows cannot be told apart in a topic",
        hint=f"ALTER TABLE {found.sql} ADD PRIMARY KEY (…); or leave it out of tables",
    )


def check_key(
    found: Found,
    key: Sequence[str],
    names: Sequence[str],
    nullable: Collection[str],
    not_null: Callable[[Sequence[str]], str],
) -> None:
    """Raise OperatorError unless each column of the configuration's key is there and never null.

    `not_null` gives the statements that make columns so.
    """
    shown = ", ".join(key)
    for name in key:
        if name not in names:
            raise OperatorError(
                f"table {found.qualified}: its key ({shown}) names {name}, which is not a column of it",
                hint=did_you_mean(name, names) or f"its columns: {', '.join(names)}",
            )
    null = [name for name in key if name in nullable]
    if null:
        columns = f"column{'s' if null[1:] else ''} {', '.join(null)}"
        raise OperatorError(
            f"table {found.qualified}: {columns} of its key ({shown}) may be null, and a key never is",
            hint=not_null(null),
        )


def not_unique(qualified: str, key: Sequence[str]) -> Finding:
    """Say of a table that the configuration's key may not tell its rows apart."""
    shown = ", ".join(key)
    what = f"nothing makes its key ({shown}) unique: of rows that share one, the topic keeps the newest"
    return Finding(Level.WARNING, f"table {qualified}", what)


def tell(findings: Iterable[Finding | None]) -> None:
    """Log what `cdc check` finds and a run goes on with."""
    for found in findings:
        if found is not None:
            what = found.what.removeprefix(f"{found.about}: ")
            log.warning("%s: %s%s", found.about, what, f"; {found.fix}" if found.fix else "")
