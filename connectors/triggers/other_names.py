"""Knows the tables of rules that were renamed: what triggers were made on tells what it is called now.

Triggers go once a table is captured no more, so what is found is kept with the position, under the name of then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from cdc.config.source_config import SourceConfig
from cdc.config.table_patterns import LEFT_OUT
from cdc.model.change import Table
from cdc.model.errors import OperatorError
from cdc.model.state import State
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.other_names import Another, refuse_other_names
from connectors.triggers.change_tables import C, ChangeTables

log = logging.getLogger("cdc")

_RULES_OF: Final = "="
"""Marks an entry of a table that is captured no more: its name, and the one whose rules hide what it has."""


def compare(
    of: SourceConfig,
    captured: Sequence[Table],
    left_out: Collection[str],
    changes: ChangeTables[C],
    state: State,
) -> dict[str, str]:
    """Say which tables that were followed are there no more: nothing is written to their topics from now on.

    Returns the position's entries of tables that are captured no more, and have rules. Raises TableError for tables
    that are captured, and whose rules are weaker under the names that they have now.
    """
    followed = state.carried
    here, rules = {table.qualified for table in captured}, CaptureRules.of_source(of)
    kept = {entry.removeprefix(_RULES_OF): was for entry, was in followed.items() if entry.startswith(_RULES_OF)}
    gone = sorted(name for name in followed if not name.startswith(_RULES_OF) and name not in here)
    names = {name: changes.renamed(name) if changes.exists() else None for name in gone}
    if lost := [name for name in gone if rules.each(name) and of.captures(name) and not changes.exists()]:
        raise OperatorError(
            f"table {', '.join(lost)} is there no more, and {changes.place}, which would tell its name by now, is gone:"
            " what its rules hide might be published under that name",
            hint="give the rules to its new name, too; then say that the old one is left out: source.tables: […, "
            + ", ".join(f'"{LEFT_OUT}{name}"' for name in lost) + "]",
        )  # fmt: skip
    kept |= {now: name for name, now in names.items() if now is not None and rules.each(name)}
    found = {f"{_RULES_OF}{now}": was for now, was in kept.items()}
    refuse(of, found, here)
    for name, now in names.items():
        if name not in left_out and of.captures(name):
            said = f"{name} is {now} now" if now else "it was dropped"
            log.warning("table %s: %s, and its topic keeps the rows it had", name, said)
    return {entry: was for entry, was in found.items() if entry.removeprefix(_RULES_OF) not in here}


def refuse(of: SourceConfig, entries: Mapping[str, str], captured: Collection[str]) -> None:
    """Raise TableError for tables that are captured, or to be, and have weaker rules than entries say they had."""
    others = [Another(was, entry.removeprefix(_RULES_OF)) for entry, was in sorted(entries.items())]
    refuse_other_names(CaptureRules.of_source(of), [other for other in others if other.now in captured])
