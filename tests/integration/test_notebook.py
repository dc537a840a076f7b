"""The notebook of examples/ does what it says, cell by cell, on real servers."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.integration import in_process

HOME = Path(__file__).parents[2]
NOTEBOOK = HOME / "examples" / "follow.ipynb"


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (found["nbformat"], all(not cell.get("outputs") for cell in found["cells"])) == (4, True)
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]


def test_the_cells_of_the_notebook(postgres18: Database, kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SERVERS", json.dumps({"postgres": postgres18.url, "kafka": kafka}))
    known: dict[str, Any] = {}

    def command(*words: str) -> str:
        """As the notebook's, but in this process, which has imported everything already."""
        done = in_process.cdc(words, {**os.environ})
        assert done.returncode == 0, done.stderr
        return done.stdout

    for number, cell in enumerate(cells()):
        exec(compile(cell, f"{NOTEBOOK.name}, cell {number}", "exec"), known)
        known["command"] = command
    assert min(known["first"]) == ("r", 1, Decimal("1.50"))
    assert (len(known["first"]), known["then"]) == (100, [("u", 2, Decimal("99.90")), ("d", 3, None)])
    assert known["by_status"] == [("new", 98, Decimal("7567.50")), ("paid", 1, Decimal("99.90"))]
    assert known["largest"] == [(100, Decimal("150.00")), (99, Decimal("148.50")), (98, Decimal("147.00"))]
    assert (known["events"], known["orders"].num_rows) == (99, 99)
