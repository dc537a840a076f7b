"""Parses the conditions of `source.where`: a small part of SQL, which a connector can judge as the server does. Pure.

condition  = and {OR and} .            and = not {AND not} .            not = [NOT] primary .
primary    = "(" condition ")" | column comparison | column .           (a column alone is a boolean one)
comparison = ("=" | "<>" | "!=" | "<" | "<=" | ">" | ">=") literal | IS [NOT] NULL
           | [NOT] IN "(" literal {"," literal} ")" | [NOT] BETWEEN literal AND literal .
column     = name [COLLATE name] .     literal = number | 'text' | TRUE | FALSE .
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from cdc.model.errors import ConfigError

Literal: TypeAlias = str | Decimal | bool


@dataclass(frozen=True, slots=True)
class Name:
    """Names a column, with the collation that it is compared by, if the condition names one."""

    text: str
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a column with a literal: ``=``, ``<>``, ``<``, ``<=``, ``>`` or ``>=``."""

    column: Name
    operator: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """Tells whether a column is NULL."""

    column: Name


@dataclass(frozen=True, slots=True)
class IsTrue:
    """Is what a boolean column is."""

    column: Name


@dataclass(frozen=True, slots=True)
class Not:
    """Negates a condition; what is unknown stays so."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Every:
    """Joins conditions by AND."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """Joins conditions by OR."""

    conditions: tuple[Condition, ...]


Condition: TypeAlias = Comparison | IsNull | IsTrue | Not | Every | Some

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>\"(?:[^\"]|\"\")+\"|`(?:[^`]|``)+`)"
    r"|(?P<number>[+-]?\d+(?:\.\d+)?(?![\w.]))|(?P<word>[^\W\d][\w$]*)|(?P<sign><>|!=|<=|>=|[=<>(),]))"
)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")+\"|`(?:[^`]|``)+`")
_COMPARED: Final = ("=", "<>", "<", "<=", ">", ">=")
_WORDS: Final = frozenset(["AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "TRUE", "FALSE", "COLLATE"])
_ALLOWED: Final = (
    "comparisons of columns with literals, AND, OR, NOT, IS [NOT] NULL, [NOT] IN (…), BETWEEN, as in: "
    "status <> 'draft' AND total >= 10"
)
_DEEPEST: Final = 50


def parse(text: str) -> Condition:
    """Parse a condition. Raises ConfigError, which says where it is not understood."""
    return _Parser(text).whole()


def spaced(text: str) -> list[str]:
    """Return the quoted parts of a condition whose spaces say more than that words are apart."""
    return [part for part in _QUOTED.findall(text) if " ".join(part.split()) != part]


class _Parser:
    """Reads the tokens of one condition from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        self._at = self._depth = 0
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self._error(f"it is not understood from character {at + 1} on")
            kind = found.lastgroup or ""
            self._tokens.append((kind, found[kind], found.start(kind) + 1))
            at = found.end()
        self._tokens.append(("end", "", len(text) + 1))

    def whole(self) -> Condition:
        condition = self._any()
        if self._tokens[self._at][0] != "end":
            raise self._unexpected()
        return condition

    def _any(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("it is nested too deeply")
        found = [self._every()]
        while self._word("OR"):
            found.append(self._every())
        self._depth -= 1
        return found[0] if len(found) == 1 else Some(tuple(found))

    def _every(self) -> Condition:
        found = [self._not()]
        while self._word("AND"):
            found.append(self._not())
        return found[0] if len(found) == 1 else Every(tuple(found))

    def _not(self) -> Condition:
        negated = 0
        while self._word("NOT"):
            negated += 1
        found = self._primary()
        for _ in range(negated):
            found = Not(found)
        return found

    def _primary(self) -> Condition:
        if self._sign("("):
            found = self._any()
            self._must(")")
            return found
        column = self._column()
        if self._word("IS"):
            negated = self._word("NOT")
            if not self._word("NULL"):
                raise self._unexpected()
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._word("NOT")
        if self._word("IN"):
            return _negated(self._in(column), negated=negated)
        if self._word("BETWEEN"):
            least = Comparison(column, ">=", self._literal())
            if not self._word("AND"):
                raise self._unexpected()
            return _negated(Every((least, Comparison(column, "<=", self._literal()))), negated=negated)
        if negated:
            raise self._unexpected()
        kind, sign, _ = self._tokens[self._at]
        sign = "<>" if sign == "!=" else sign
        if kind == "sign" and sign in _COMPARED:
            self._at += 1
            return Comparison(column, sign, self._literal())
        return IsTrue(column)

    def _in(self, column: Name) -> Condition:
        self._must("(")
        found: list[Condition] = [Comparison(column, "=", self._literal())]
        while self._sign(","):
            found.append(Comparison(column, "=", self._literal()))
        self._must(")")
        return Some(tuple(found))

    def _column(self) -> Name:
        kind, text, _ = self._tokens[self._at]
        if kind not in ("word", "quoted") or (kind == "word" and text.upper() in _WORDS):
            raise self._unexpected()
        self._at += 1
        name = _unquoted(text)
        if self._tokens[self._at][:2] == ("sign", "("):
            raise self._error(f"{name} is not a column: functions are not known")
        if not self._word("COLLATE"):
            return Name(name)
        kind, text, _ = self._tokens[self._at]
        if kind not in ("word", "quoted"):
            raise self._unexpected()
        self._at += 1
        return Name(name, _unquoted(text))

    def _literal(self) -> Literal:
        kind, text, _ = self._tokens[self._at]
        self._at += 1
        if kind == "text":
            if "\\" in text:
                raise self._error("a text with a backslash means different things on different servers")
            return text[1:-1].replace("''", "'")
        if kind == "number":
            return Decimal(text)
        if kind == "word" and text.upper() in ("TRUE", "FALSE"):
            return text.upper() == "TRUE"
        self._at -= 1
        raise self._unexpected()

    def _word(self, word: str) -> bool:
        kind, text, _ = self._tokens[self._at]
        found = kind == "word" and text.upper() == word
        self._at += found
        return found

    def _sign(self, sign: str) -> bool:
        found = self._tokens[self._at][:2] == ("sign", sign)
        self._at += found
        return found

    def _must(self, sign: str) -> None:
        if not self._sign(sign):
            raise self._unexpected()

    def _unexpected(self) -> ConfigError:
        kind, _, at = self._tokens[self._at]
        return self._error("it ends too early" if kind == "end" else f"it is not understood from character {at} on")

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"this condition cannot be judged: {what}", hint=f"where knows {_ALLOWED}")


def _negated(condition: Condition, *, negated: bool) -> Condition:
    return Not(condition) if negated else condition


def _unquoted(text: str) -> str:
    return text if text[0] not in '"`' else text[1:-1].replace(text[0] * 2, text[0])
