"""Refuses what would be published under another name than its table had, by rules that hide less."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cdc.config.published.column_rules import ColumnRules
from cdc.config.table_patterns import LEFT_OUT
from cdc.model.errors import OperatorError
from cdc.rules.capture_rules import CaptureRules, TableRules


class Another(NamedTuple):
    """Says that what a table had is published under another name now."""

    was: str
    now: str
    how: str = ""
    """What has become of it, if it was not renamed."""


def refuse_other_names(rules: CaptureRules, others: Iterable[Another]) -> None:
    """Raise one OperatorError for all that have weaker rules under the names that they have now."""
    weaker = [other for other in others if lets_out(rules, other)]
    if not weaker:
        return
    said = (of.how or f"table renamed: {of.was} is {of.now} now" for of in weaker)
    was, now = (list(dict.fromkeys(names)) for names in ((of.was for of in weaker), (of.now for of in weaker)))
    without = ", ".join(f'"{LEFT_OUT}{name}"' for name in now)
    raise OperatorError(
        f"{'; '.join(said)}, which source.tables names, and the rules that source.columns and source.where have for "
        f"{', '.join(was)} are not all there for {', '.join(now)}: what must not be published would be",
        hint=f"give {', '.join(now)} the rules of {', '.join(was)}; or say that it is left out, and do not name it: "
        f"source.tables: […, {without}]",
    )


def lets_out(rules: CaptureRules, other: Another) -> bool:
    """Whether the rules of the name that a table has now hide less than those of the one that it had."""
    then = rules.each(other.was) if other.was != other.now else []
    now = rules.of(other.now) if then else None
    return any(now is None or _is_weaker(now, one) for one in then)


def _is_weaker(now: TableRules, then: TableRules) -> bool:
    """Tell whether rules let values or rows be seen that others hide."""
    were, are = then.columns or ColumnRules(include=("*",)), now.columns or ColumnRules(include=("*",))
    everything = now.columns is None or not are.include

    def shows(name: str) -> bool:
        return name not in are.exclude and name not in are.changed and (everything or name in are.include)

    if then.condition is not None and now.condition is None:
        return True
    if then.columns is None:
        return False
    if were.include and (everything or not set(are.include) <= set(were.include)):
        return True
    return any(map(shows, then.named))
