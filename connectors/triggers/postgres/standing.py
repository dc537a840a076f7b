"""Says in a word how the triggers of a table stand in the catalog, so that two looks can be compared. Pure.

The word has the transactions that have made the rows of triggers and functions there: what was switched off and on
again, or taken away and made again, has others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from connectors.triggers.postgres import triggers
from connectors.triggers.postgres.shape import Shape
from connectors.triggers.postgres.triggers import EVENTS, Names

_CONFIGURED: Final = '{"search_path=pg_catalog, pg_temp",enable_seqscan=off}'
"""What a function has set, as the catalog shows it."""


class Standing:
    """Holds what one look at the catalog has found."""

    def __init__(
        self,
        names: Names,
        *,
        shared: str,
        tables: Mapping[int, int],
        kept_as: Mapping[int, str],
        functions: Mapping[str, tuple[Any, ...]],
        found: Sequence[tuple[Any, ...]],
        hidden: Mapping[int, bool],
        owned: Mapping[int, bool],
        partitions: Mapping[int, Sequence[int]],
        missed: Collection[int],
    ) -> None:
        """`kept_as`: how each change table that is as it was made stands, by its number in the catalog."""
        self._names, self._tables, self._functions = names, tables, functions
        self._shared, self._kept_as = shared, kept_as
        self._owned = owned
        self._hidden, self._partitions, self._missed = hidden, partitions, missed
        self._triggers = {(relation, name): tuple(of) for relation, name, *of in found}

    def stands(self, number: int, shape: Shape) -> str | None:
        """Say in a word how a table's triggers stand; of its partitions, each by itself."""
        oid = self._tables.get(number)
        guard = self._triggers.get((oid, "kept")) if oid is not None else None
        if oid is None or oid not in self._kept_as or guard is None or guard[0] != "A" or number in self._missed:
            return None
        parts = [str(oid), *map(str, guard), str(self._hidden.get(shape.oid)), self._shared, self._kept_as[oid]]
        for event, body in triggers.functions(self._names, number, oid, shape).items():
            function = self._functions.get(self._names.function(shape.oid, event))
            trigger = self._triggers.get((shape.oid, self._names.trigger(shape.oid, event)))
            if function is None or function[1:4] != (body, True, _CONFIGURED) or not _is_on(trigger):
                return None
            if self._owned.get(shape.oid) and trigger is not None and trigger[0] != "A":
                return None  # it was switched off and on again, or is not called for all
            parts += [str(function[0]), *map(str, trigger or ())]
        each = {}
        for partition in sorted(self._partitions.get(shape.oid, ())):
            own = [self._triggers.get((partition, self._names.trigger(shape.oid, event))) for event in EVENTS[:3]]
            if not all(map(_is_on, own)):
                return None
            each[str(partition)] = _hashed(str(own), 8)
        return (
            json.dumps([_hashed("\n".join(parts), 16), each]) if each else json.dumps([_hashed("\n".join(parts), 16)])
        )


def _is_on(trigger: tuple[Any, ...] | None) -> bool:
    return trigger is not None and trigger[0] in ("O", "A")


def _hashed(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def differs(then: str, now: str) -> bool:
    """Tell whether triggers stand otherwise than they did; a partition that is new, or gone, is no difference."""
    (was, *before), (stands, *after) = json.loads(then), json.loads(now)
    each, others = (of[0] if of else {} for of in (before, after))
    return was != stands or any(others[oid] != of for oid, of in each.items() if oid in others)
