"""Judges which tables can be captured, where PostgreSQL and MySQL do so alike: names, patterns, keys.

In: what a catalog has found. Out: errors with the statement that helps. Each connector's catalog imports it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from cdc.config.findings import Finding, Level, left_out, refused
from cdc.config.table_patterns import LEFT_OUT, matches, named
from cdc.model.errors import CdcError, LeftOutError, OperatorError, RetryableError, UncapturableError, raise_first

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


Leave: TypeAlias = Callable[[Qualified, OperatorError], None]
"""Leaves out a table that cannot be captured, or raises the error."""


Reasons: TypeAlias = Mapping[str, CdcError]
"""Why tables are left out, by ``schema.table``."""


def refuse(_found: Qualified, error: OperatorError) -> None:
    """Leave out no table."""
    raise error


class LeftOut:
    """Leaves out the tables that just a pattern brings; one that it names, and cannot be captured, is an error.

    With a `LeftOutError` it is left out all the same: the others go on, if the connector has run before.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._named = frozenset(named(patterns))
        self.found: dict[str, CdcError] = {}
        """The errors of those that were left out, by ``schema.table``."""

    def brings(self, name: str) -> bool:
        """Tell whether it is a pattern alone that brings a table of this name."""
        return name not in self._named

    def __call__(self, found: Qualified, error: OperatorError) -> None:
        kind = type(error) if isinstance(error, LeftOutError) else UncapturableError
        hint = error.hint
        if found.qualified not in self._named:
            hint = f'{error.hint}; or say that it is left out: source.tables: […, "!{found.qualified}"]'
        elif kind is UncapturableError:
            raise kind(error.message, hint=hint) from error
        self.found.setdefault(found.qualified, kind(error.message, hint=hint))

    @property
    def may_pass(self) -> frozenset[str]:
        """Those to be judged again while the others are followed, also where the file names them."""
        return frozenset(name for name, error in self.found.items() if isinstance(error, LeftOutError))

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


class _Catalog(Protocol):
    def brought(self, patterns: Sequence[str]) -> list[str]: ...

    def captured(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]], leave: Leave
    ) -> Iterable[_OfTable]: ...


def back(left_out: Reasons, catalog: _Catalog, keys: Mapping[str, Sequence[str]]) -> set[str]:
    """Return those that were left out for a time and can be captured by now, of those that are there."""
    names = [name for name, error in left_out.items() if isinstance(error, LeftOutError)]
    there = catalog.brought(names) if names else []
    try:
        return {one.table.qualified for one in catalog.captured(there, keys, LeftOut([]))} if there else set()
    except OperatorError:  # one of them has just been dropped
        return set()


def chosen(
    matched: Iterable[_F | OperatorError], judge: Callable[[_F], Iterator[OperatorError]], leave: Leave = refuse
) -> list[_F]:
    """Return what was matched, once and sorted by name. Raises OperatorError for the first that cannot be captured.

    `leave` is called for that instead, and may leave it out.
    """
    found_by_name: dict[str, _F] = {}
    for found in matched:
        if isinstance(found, OperatorError):
            raise UncapturableError(found.message, hint=found.hint) from found
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
    patterns: Sequence[str],
    matched: Callable[[Sequence[str]], Iterable[_F | OperatorError]],
    judge: Callable[[_F], Iterator[OperatorError]],
) -> Iterator[tuple[str, OperatorError | None]]:
    """Give every pattern or table, and each reason why it cannot be captured; None where there is none."""
    seen: set[str] = set()
    without = [pattern for pattern in patterns if pattern.startswith(LEFT_OUT)]
    for pattern in patterns:
        if pattern in without:
            continue
        for found in matched([pattern, *without]):
            if isinstance(found, OperatorError):
                yield pattern, found
            elif found.qualified not in seen:
                seen.add(found.qualified)
                reasons: list[OperatorError | None] = list(judge(found))
                yield from ((found.qualified, reason) for reason in reasons or [None])


def not_left_out(
    found: Iterable[_F], patterns: Sequence[str], compared: Callable[[str], str] = lambda name: name
) -> list[_F]:
    """Return what no pattern leaves out; `compared` gives what the server compares of a name."""
    without = [compared(pattern.removeprefix(LEFT_OUT)) for pattern in patterns if pattern.startswith(LEFT_OUT)]
    return [one for one in found if not any(matches(pattern, compared(one.qualified)) for pattern in without)]


def stops(name: str, patterns: Sequence[str], known: Collection[str]) -> bool:
    """Whether a run stops at what refuses a table or pattern: one that is named, or captured already."""
    return name in patterns or name in known


def sorted_out(
    refusals: Iterable[tuple[str, OperatorError | None]],
    patterns: Sequence[str],
    known: Collection[str],
    outbox: str | None = None,
) -> tuple[list[str], list[Finding]]:
    """Return the tables that can be captured, and what `cdc check` finds of the others.

    `refusals` has tables and patterns, each with its error or None; `known` are captured already.
    """

    def ends(name: str, refusal: OperatorError) -> bool:
        if isinstance(refusal, LeftOutError):
            return name == outbox or (name in patterns and not known)
        return stops(name, patterns, known)

    good, bad = list[str](), list[tuple[str, OperatorError]]()
    for name, refusal in refusals:
        if refusal is not None:
            bad.append((name, refusal))
        elif name not in good:
            good.append(name)
    return good, [
        refused(f"table {name}", refusal)
        if ends(name, refusal) or not good
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
