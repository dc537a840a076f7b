"""Parts that are found by name (`registry.part`, `import_module`) are called with what they take: mypy sees none."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.config import registry

HOME = Path(__file__).parents[2]


def _constant(node: ast.expr | None, called: str) -> str | None:
    """Return the text that is the one argument of a call of `called`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)) and len(node.args) == 1):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    given = node.args[0]
    return given.value if name == called and isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _part(node: ast.expr | None) -> str | None:
    """Return what ``registry.part("module:name")`` names, or ``import_module("module").name``, as the former."""
    if (named := _constant(node, "part")) is not None:
        return named if ":" in named else None
    module = _constant(node.value, "import_module") if isinstance(node, ast.Attribute) else None
    return f"{module}:{node.attr}" if module is not None and isinstance(node, ast.Attribute) else None


def _calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Give each call of a part, by where it stands: at once, or by a name that the same function has for it."""
    for folder in ("cdc", "connectors", "sinks", "snapshot", "spark_apply"):
        for file in sorted((HOME / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if "part(" not in text and "import_module(" not in text:
                continue
            for function in ast.walk(ast.parse(text)):
                if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                called = dict[str, str]()
                for node in ast.walk(function):
                    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                    assigns = isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name)
                    if assigns and (name := _part(node.value)) is not None:
                        called[target.id] = name
                for node in ast.walk(function):
                    if isinstance(node, ast.Call):
                        by_name = called.get(node.func.id) if isinstance(node.func, ast.Name) else None
                        if (name := _part(node.func) or by_name) is not None:
                            yield f"{file.relative_to(HOME)}:{node.lineno}", node, name


CALLS = list(dict.fromkeys(_calls()))


def test_there_are_calls() -> None:
    """Also by a name: `cdc tail` had one that its part did not take."""
    assert len(CALLS) > 40
    assert any(where.startswith("cdc/cli/inspecting/tail.py") and "Follower" in name for where, _, name in CALLS)


@pytest.mark.parametrize(("where", "call", "name"), CALLS, ids=[f"{where} {name}" for where, _, name in CALLS])
def test_a_part_takes_what_it_is_given(where: str, call: ast.Call, name: str) -> None:
    given = {word.arg: word for word in call.keywords if word.arg is not None}
    signature = inspect.signature(registry.part(name))
    if any(isinstance(of, ast.Starred) for of in call.args):
        assert given.keys() <= signature.parameters.keys(), where
    elif len(given) < len(call.keywords):  # ** hides the rest
        signature.bind_partial(*call.args, **given)
    else:
        signature.bind(*call.args, **given)
