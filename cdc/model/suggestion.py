"""Suggests the name that somebody may have meant, for the hint of an error. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from cdc.model.errors import OperatorError


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the known name that is nearest to an unknown one, or else `otherwise`.

    Nearest is one that differs in capital letters alone, or by a schema before it.
    """
    spelt, others = name.casefold(), {of.casefold(): of for of in known}
    found = sorted(of for of in others if of == spelt or of.endswith(f".{spelt}"))
    near = found or difflib.get_close_matches(spelt, others, n=1)
    return f"did you mean {others[near[0]]}?" if near and others[near[0]] != name else otherwise


def not_described(connector: str, tables: Collection[str], known: Collection[str]) -> OperatorError:
    """Return the error of tables that the schema topic does not describe; it describes those that are `known`."""
    hints = [did_you_mean(name, known, "") for name in sorted(tables)]
    near = " ".join(dict.fromkeys(filter(None, hints)))
    asked = "are they among source.tables, and has it run? cdc run CONNECTOR.yaml; cdc status CONNECTOR.yaml"
    hint = f"{near} Else: {asked}" if near else asked
    return OperatorError(f"connector {connector} has not described {', '.join(sorted(tables))}", hint=hint)
