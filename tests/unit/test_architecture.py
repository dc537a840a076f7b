"""The house keeps its order: no circle of imports, a docstring at every door, no crowded folder, no long file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grimp
import pytest

HOME = Path(__file__).parents[2]
PACKAGES = ("cdc", "connectors", "snapshot", "sinks", "spark_apply")
MOST_FILES = 16
MOST_LINES = 450
"""A file has one idea and is read in one sitting. There are no exceptions: split by ideas, not by lines."""
FOLDERS = sorted(path.parent for name in (*PACKAGES, "bench") for path in (HOME / name).rglob("__init__.py"))


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules of which each imports, over others, every other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in imports[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            at = stack.index(module)
            group = set(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for module in imports:
        if module not in number:
            visit(module)
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_no_circle_of_imports() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    assert circles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(HOME)))
def test_a_folder_is_a_room(folder: Path) -> None:
    """Its docstring says what comes in, what goes out, who may import it; its files can be seen at once."""
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert len(said.splitlines()) >= 3, said
    assert len(list(folder.glob("*.py"))) - 1 <= MOST_FILES


def test_no_file_is_long() -> None:
    files = [file for name in (*PACKAGES, "bench") for file in (HOME / name).rglob("*.py")]
    lines = {str(file.relative_to(HOME)): len(file.read_text().splitlines()) for file in files}
    assert {file: many for file, many in lines.items() if many > MOST_LINES} == {}


def test_no_producer_has_a_broker_make_a_topic() -> None:
    """Brokers do as they come, where a producer asks for a topic that is gone: with deletes, and one partition."""
    root = Path(__file__).parents[2]
    making = [
        path.relative_to(root).as_posix()
        for part in ("cdc", "connectors", "sinks", "snapshot", "spark_apply")
        for path in (root / part).rglob("*.py")
        if re.search(r"^from confluent_kafka import .*\bProducer\b", text := path.read_text(), re.MULTILINE)
        and '"allow.auto.create.topics": "false"' not in text
    ]
    assert making == []


def test_no_number_of_a_descriptor_is_too_high() -> None:
    """`select.select` takes none from 1,024 on, which a program with many files open soon has."""
    root = Path(__file__).parents[2]
    calling = [
        path.relative_to(root).as_posix()
        for part in PACKAGES
        for path in (root / part).rglob("*.py")
        if "select.select(" in path.read_text()
    ]
    assert calling == ["cdc/dev/servers/launch.py"], "a process that has a handful, and none of our packages"
