"""What a connector keeps in a database, and how it stands, as those who follow and check any database see it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from cdc.config.source_config import SourceConfig
from cdc.model.change import Change, Offset, Table
from cdc.model.errors import BugError, OperatorError, VerdictError
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.other_names import Another, refuse_other_names
from connectors import captured_tables

CLOSE_THE_GAP: Final = (
    "what happened since is not in Kafka: cdc snapshot start CONNECTOR.yaml --after-gap, then run it: it makes new "
    "change tables, reads every table again and deletes what has gone; or restore database and topics to one point"
)


class Captured(Protocol):
    """Is a captured table, as a catalog has found it."""

    @property
    def table(self) -> Table: ...


C = TypeVar("C", bound=Captured)
C_co = TypeVar("C_co", bound=Captured, covariant=True)


class Catalog(Protocol[C_co]):
    """Finds tables."""

    def captured(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]], leave: captured_tables.Leave
    ) -> tuple[C_co, ...]:
        """Return the tables the patterns name; `leave` is called for those that cannot be captured."""

    def brought(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of the tables that the patterns name, whether or not they can be captured."""


class ChangeTables(Protocol[C]):
    """Is what a connector keeps in the database."""

    @property
    def catalog(self) -> Catalog[C]: ...

    @property
    def place(self) -> str:
        """What holds the changes, as messages call it."""

    def exists(self) -> bool:
        """Whether anything of it is there."""

    def renamed(self, name: str) -> str | None:
        """Return what a table that was followed is called now, as what was made for it tells; None: it does not.

        Raises OperatorError where what was made for it is lost.
        """

    def refusals(self, at: Offset) -> Iterator[OperatorError]:
        """Give why the change tables cannot be followed from a position without a gap."""

    def install(self, wanted: Sequence[C], captured: Sequence[C]) -> None:
        """Make the triggers of tables, in place of theirs; those of others do nothing any more."""


class Look(Protocol):
    """Is how tables and their triggers stand at one time."""

    @property
    def standing(self) -> Mapping[str, str | None]:
        """In a word, by table; None: not as they were made."""

    def entries(self, then: Mapping[str, str]) -> dict[str, str]:
        """Return what is kept with the position of each table whose triggers are as they were made.

        `then` is what was kept before, of the tables whose rows are as the topic has them.
        """

    def differences(self, then: Mapping[str, str]) -> dict[str, str]:
        """Return the tables whose rows may have changed without being written down, with the reason of each."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Is a `Look` whose words say all."""

    standing: Mapping[str, str | None]
    otherwise: str
    """What has happened to triggers that stand otherwise than they did."""

    def entries(self, then: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002 - the words say all
        return {name: stands for name, stands in self.standing.items() if stands is not None}

    def differences(self, then: Mapping[str, str]) -> dict[str, str]:
        return {
            name: self._reason(then.get(name), stands)
            for name, stands in self.standing.items()
            if then.get(name) != stands or not stands
        }

    def _reason(self, then: str | None, stands: str | None) -> str:
        if stands is None:
            return "it was altered, or its triggers are not as they were made"
        return "nothing is known of its triggers" if then is None else self.otherwise


class Place(Protocol):
    """Is a place among the changes."""

    @property
    def commit(self) -> int:
        """As a commit position."""

    def offset(self) -> Offset:
        """Return it as it is kept."""


class Rounds(Protocol):
    """Reads changes in the order of commits."""

    @property
    def place(self) -> Place:
        """Where to resume once everything that was given is safe."""


def number_of(change: Change) -> int:
    """Return the place of a change among those of its database."""
    if isinstance(change.lsn, tuple):
        raise BugError("a change's number has one part")
    return change.lsn


def refuse_weaker_rules(
    of: SourceConfig, followed: Iterable[str], captured: Collection[str], changes: ChangeTables[C]
) -> None:
    """Raise OperatorError for tables that were followed and are captured under names whose rules hide less.

    Where change tables are lost, nothing tells what has become of a table: it may be any that was not followed.
    """
    rules, others, known = CaptureRules.of_source(of), list[Another](), {*followed}
    for name in (name for name in known if name not in captured and rules.each(name)):
        try:
            now = changes.renamed(name)
        except OperatorError:
            how = f"{name} is gone, and so is what would tell whether it is called {{}} now"
            others += (Another(name, new, how.format(new)) for new in sorted({*captured} - known))
        else:
            others += [Another(name, now)] if now is not None and of.captures(now) else ()
    refuse_other_names(rules, others)


def unused_refusals(changes: ChangeTables[C], connector: str) -> Iterator[OperatorError]:
    """Give why a connector without a position cannot make its change tables: it cannot have made those there are."""
    if changes.exists():
        yield VerdictError(
            f"change tables re-made or foreign: {changes.place} is there already, and there is no position of "
            f"connector {connector}",
            hint="if the connector has run before, its position is lost (a topic, or a file): begin under a new name. "
            "docs/triggers.md says how what the old one has made is taken away",
        )


def too_wide(name: str, columns: int, most: int) -> OperatorError:
    """Return the error of a table with more columns than a change table can have beside its own."""
    return OperatorError(
        f"table {name} has {columns} columns, and a change table can be made for {most} at most",
        hint=f'leave it out: source.tables: […, "!{name}"]',
    )
