"""Upper and lower case, as Java has them: letters that become several, and the sigma at the end of a word.

The engine maps each letter to one. Where a text holds a letter of which that is not so, it is mapped by a table; where
the answer depends on more than is looked at here (a sigma beside what is neither a letter nor a space), or on the
version of Java (letters new in Unicode 16), it is an error and never another value.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rules, Typed, call, case, failing

LETTERS: Final = Rules()

_NEW_LOWER, _NEW_UPPER = "\u019b\u0264\u1c8a", "\u1c89"
_CASED: Final = r"\p{Lu}\p{Ll}\p{Lt}"
_VERSION: Final = "a letter has another case in each version of Java"


@cache
def _several() -> dict[str, str]:
    """Give the letters whose upper case is several: ß, ligatures, Greek ones with an iota below."""
    return {letter: upper for letter in map(chr, range(sys.maxunicode + 1)) if len(upper := letter.upper()) > 1}


def _text(value: str) -> exp.Expr:
    return exp.Literal.string(value)


def _has(value: exp.Expr, pattern: str) -> exp.Expr:
    return call("regexp_matches", value.copy(), _text(pattern))


@LETTERS.of(exp.Upper)
def _upper(carry: Carrier, node: exp.Expr) -> Typed:
    value = carry.text(node.this).sql
    several = _several()
    table = ", ".join(f"'{letter}': '{upper}'" for letter, upper in several.items())
    each = exp.Var(this=f"lambda letter: coalesce(MAP {{{table}}}[letter], upper(letter))")
    letters = call("list_transform", call("string_split", value.copy(), _text("")), each)
    made = case(
        (_has(value, f"[{_NEW_LOWER}]"), failing(_VERSION, "string")),
        (_has(value, f"[{''.join(several)}]"), call("array_to_string", letters, _text(""))),
        default=call("upper", value),
    )
    return Typed(made, "string")


@LETTERS.of(exp.Lower)
def _lower(carry: Carrier, node: exp.Expr) -> Typed:
    value = carry.text(node.this).sql
    ended = call("regexp_replace", value.copy(), _text(rf"([{_CASED}])Σ(\s|$)"), _text(r"\1ς\2"), _text("g"))
    made = case(
        (_has(value, f"[{_NEW_UPPER}]"), failing(_VERSION, "string")),
        (
            _has(value, rf"[^{_CASED}\s]Σ|Σ[^{_CASED}\s]"),
            failing("it is not known whether a sigma ends a word", "string"),
        ),
        (_has(value, "[İΣ]"), call("lower", call("replace", ended, _text("İ"), _text("i\u0307")))),
        default=call("lower", value),
    )
    return Typed(made, "string")
