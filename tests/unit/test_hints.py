"""A hint is safe to paste: none advises to delete, drop or reset what somebody may need."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cdc", "connectors", "sinks", "snapshot", "spark_apply")
TAKES_AWAY = re.compile(
    r"\b(delet(e[sd]?|ing)|drop(s|ped|ping)?|reset(s|ting)?|truncat(e[sd]?|ing)|rm|remov(e[sd]?|ing)|purg(e[sd]?|ing)"
    r"|discard(s|ed)?|overwrit(e[sd]?|ing)|wip(e[sd]?|ing)|unlink|clears?|kill)\b",
    re.IGNORECASE,
)
NAMED = re.compile(r"hint|way_out|remed|advice|close_the_gap|go_on|^drop$|^look$", re.IGNORECASE)
ERRORS = re.compile(r"^(?!Protocol).*(Error|Problem|Finding|Accident)$")

OF_A_FILE = re.compile(
    r"\bcdc (?:apply|run|status|check|rebuild|verify|pause|resume|reload|tail|consumers|audit|erase|replay|wait|token"
    r"|explain|(?:snapshot|view|offsets) [a-z]+)\b(?! (?:--|\{|…|FILE|CONNECTOR|APPLY|VIEWS|[a-z]+\.yaml))"
)
"""A command that wants a file and names none. In backquotes it is the command's name, and nothing to paste."""
OF_A_TABLE = re.compile(r"--table \{")
BARE_FILE = re.compile(r"\bcdc [a-z]+(?: [a-z]+)? \{(?:file|path|job|each)\}")
"""A file in a command as it is called, which a shell may take apart."""
BARE_PATH = re.compile(r"\b(?:ls -ld?|df -h|rm -r|less|sqlite3) \{(?!(?:shlex\.)?quote\(|(?:self\._)?quoted_)")
"""The same in a command that is not ours."""

REVIEWED = {
    "its delete is older than delete.retention.ms": "the name of a setting, and what may have happened",
    "rm -r {}  # it is fetched again": "a downloaded program in our own cache; it is damaged, and fetched again",
    "drops one for the other": "what a server does with two replicas of one number",
    "delete the rows of {} in the application": "what an application does in place of a cascade; no command",
    "reads every table again and deletes what has gone": "what an incremental snapshot publishes; no command",
    "SET (publish = 'insert, update, delete, truncate'": "the operations that a publication has",
    "DROP TABLE ONLY {}": "takes a table that is not captured out of our publication; the table stays",
    "delete.retention.ms={}": "the name of a setting",
    "truncate(4, x)": "a partition's function",
    "DELETE the row at the source": "who asks to have a row erased wants that; the command has changed nothing yet",
    "needs DELETE on the topic": "the name of a right at Kafka",
    "cdc fleet remove {} --fleet {}": "an entry is taken out; topics, position and slot stay, `add` goes on there",
    "TRUNCATE TABLE performance_schema.host_cache": "the server's count of failed logins, and nobody's rows",
    "was it deleted": "a question about what has happened",
    "so does cdc apply APPLY.yaml --reset-checkpoint": "topics are read again from their beginnings; no row is lost",
}
"""What remains, and why it is safe. The texts between braces are values."""


def words(node: ast.AST) -> str:
    """The text of an expression, as it is in the source; values in it are {}."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return " ".join(filter(None, (words(child) for child in ast.iter_child_nodes(node))))


def hints(tree: ast.AST) -> Iterator[str]:
    """Hints of errors, what is kept in names of hints, and what follows the message in an error or a finding."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and NAMED.search(node.arg or ""):
            yield words(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(NAMED.search(getattr(each, "id", getattr(each, "attr", ""))) for each in targets):
                yield words(node.value)
        elif isinstance(node, ast.FunctionDef) and NAMED.search(node.name):
            yield from (words(each.value) for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)
        elif isinstance(node, ast.Call) and ERRORS.search(getattr(node.func, "id", "")):
            yield from map(words, node.args[1:])


@functools.cache
def all_hints() -> list[tuple[str, str]]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [(str(file.relative_to(ROOT)), hint) for file in files for hint in hints(ast.parse(file.read_text()))]


def found() -> Iterator[tuple[str, str]]:
    return ((file, hint) for file, hint in all_hints() if TAKES_AWAY.search(hint))


def test_no_hint_takes_something_away() -> None:
    unknown = [f"{file}: {hint}" for file, hint in found() if not any(known in hint for known in REVIEWED)]
    assert unknown == []


def test_a_hint_names_the_file_of_its_command() -> None:
    """By `CONNECTOR.yaml` and the like, in whose place `cdc.model.hints.pasteable` puts the command's own file."""
    assert [f"{file}: {hint}" for file, hint in all_hints() if OF_A_FILE.search(re.sub("`[^`]*`", "", hint))] == []


def test_a_hint_quotes_the_name_of_its_table() -> None:
    """A table may be called `Order Items`: `cdc.model.hints.of_table` writes it as a shell takes it."""
    assert [f"{file}: {hint}" for file, hint in all_hints() if OF_A_TABLE.search(hint)] == []


def test_a_command_that_is_told_quotes_the_name_of_its_file() -> None:
    """A file may be called `my shop.yaml`: `cdc.model.hints.pasteable` writes it as a shell takes it."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    assert [name for name, text in texts.items() if BARE_FILE.search(text) or BARE_PATH.search(text)] == []


def test_what_was_reviewed_is_still_there() -> None:
    told = [hint for _, hint in found()]
    assert [known for known in REVIEWED if not any(known in hint for hint in told)] == []


def test_a_command_without_its_file_or_with_a_bare_name_would_be_found() -> None:
    (hint,) = hints(ast.parse("raise OperatorError('gone', hint=f'cdc apply; cdc rebuild APPLY.yaml --table {name}')"))
    assert OF_A_FILE.search(hint)
    assert OF_A_TABLE.search(hint)


@pytest.mark.parametrize(
    "source",
    ["raise OperatorError('full', hint=f'curl -X DELETE <url>/{index}')", "HINT = 'DROP TABLE t'",
     "Problem(what, f'rm -r {folder}')", "def the_hint():\n    return 'RESET MASTER'"],
)  # fmt: skip
def test_a_dangerous_hint_would_be_found(source: str) -> None:
    assert any(TAKES_AWAY.search(hint) for hint in hints(ast.parse(source)))
