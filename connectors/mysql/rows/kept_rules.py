"""Remembers which tables have what a rule hides while they are captured no more, whatever they are called meanwhile.

A rule names a table, and a table that is left out may get another name, which a pattern brings: it would be published
without its rule. The catalog of these servers has no number by which a table could be known again, but each RENAME is
in the log, also of tables that are not captured. So the names of tables are followed from the rules' own, and those
whose rules are weaker by now are kept with the position. Where such a table is captured, it is refused until its rules
are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import orjson

from cdc.config.source_config import SourceConfig
from cdc.model.errors import OperatorError
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.other_names import Another, lets_out, refuse_other_names
from connectors.mysql.catalog.names import as_compared
from connectors.mysql.statements.tokens import Name


class KeptRules:
    """Knows, by the names that tables have now, whose rules hide what they have."""

    def __init__(self, config: SourceConfig, captured: Collection[Name], *, folds: bool) -> None:
        """`captured` are the tables that the session has found. `folds`: names are compared in small letters."""
        columns = {as_compared(name, folds=folds): of for name, of in config.columns.items()}
        where = {as_compared(name, folds=folds): of for name, of in config.where.items()}
        self._rules, self._captured = CaptureRules(columns, where), captured
        self._of: dict[Name, frozenset[str]] = {}
        self.carried: Mapping[str, str] = {}
        """The same, to be kept with the position."""

    def begin(self, carried: Mapping[str, str]) -> None:
        """Go on from what was kept. Raises OperatorError for tables that are captured by now, all at once."""
        kept = {(schema, name): frozenset(of) for schema, name, of in map(orjson.loads, carried.values())}
        refuse_other_names(
            self._rules,
            [
                Another(was, now := ".".join(name), f"{was}, or rows of it, is {now} now")
                for name, of in sorted(kept.items())
                if name in self._captured
                for was in sorted(of)
            ],
        )
        self._keep({name: of for name, of in kept.items() if name not in self._captured})

    def renamed(self, pairs: Mapping[Name, Name], is_captured: Callable[[Name, Name], bool]) -> None:
        """Follow tables to the names that they have after a statement. Raises OperatorError for one that is captured.

        `is_captured`: whether what was called so is published by the name that it has now.
        """
        if not self._rules:
            return
        of = {old: self._whose(old) for old in pairs}
        kept = {name: rules for name, rules in self._of.items() if name not in of}
        for old, new in pairs.items():
            if is_captured(old, new):
                refuse_other_names(self._rules, [Another(was, ".".join(new)) for was in sorted(of[old])])
            else:
                kept[new] = of[old]
        self._keep(kept)

    def moved(self, was: Name, now: Name, *, is_captured: bool) -> None:
        """Note that rows of one table are in another one. Raises OperatorError if that is captured."""
        if not self._rules:
            return
        of = self._whose(was)
        if is_captured:
            what = f"rows of {'.'.join(was)} are in {'.'.join(now)} now"
            refuse_other_names(self._rules, [Another(one, ".".join(now), what) for one in sorted(of)])
        else:
            self._keep({**self._of, now: self._of.get(now, frozenset()) | of})

    def gone(self, names: Iterable[Name]) -> None:
        """Note that tables of these names are gone, or made again."""
        without = {*names}
        if not without.isdisjoint(self._of):
            self._keep({name: of for name, of in self._of.items() if name not in without})

    def dropped(self, database: str) -> None:
        """Note that all tables of a database are gone."""
        self.gone([name for name in self._of if name[0] == database])

    def _whose(self, name: Name) -> frozenset[str]:
        """Return the names whose rules hide what a table has: its own, and those that it had."""
        own = ".".join(name)
        return self._of.get(name, frozenset()) | ({own} if self._rules.each(own) else frozenset())

    def _keep(self, of: Mapping[Name, frozenset[str]]) -> None:
        """Keep those of which less is hidden under the name that they have now."""
        weaker = {
            name: frozenset(one for one in rules if self._lets_out(one, ".".join(name))) for name, rules in of.items()
        }
        self._of = {name: rules for name, rules in weaker.items() if rules}
        self.carried = {
            f"={'.'.join(name)}": orjson.dumps([*name, sorted(rules)]).decode() for name, rules in self._of.items()
        }

    def _lets_out(self, was: str, now: str) -> bool:
        try:
            return lets_out(self._rules, Another(was, now))
        except (
            OperatorError
        ):  # two rules are of the name it has now, which a start refuses for a table that is captured
            return True
