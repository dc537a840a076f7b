"""A row with a character that a PostgreSQL database does not have is refused by itself, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_apply.model.store import Refused
from spark_apply.stores.postgres.batch import copy_text
from spark_apply.stores.postgres.batch.copy_text import CopyText
from spark_apply.stores.postgres.values import encoding

LINES = "1\tä\tx\t7\t100\n2\t☂\tx\t7\t101\n3\tz\t€\t7\t102\n4\ta\0\tx\t7\t103\n"
LATER = "5\tö\tx\t7\t104\n"
NUL = Refused(7, 103, "PostgreSQL cannot store the character U+0000: v")
OTHER = "PostgreSQL cannot store a character that its encoding does not have"


@pytest.mark.parametrize(
    ("lost", "refused"),
    [
        ("", [NUL]),
        ("☂€", [Refused(7, 101, f"{OTHER}: v"), Refused(7, 102, f"{OTHER}: w"), NUL]),
        ("☂", [Refused(7, 101, f"{OTHER}: v"), NUL]),
    ],
)
def test_what_a_database_cannot_store(lost: str, refused: list[Refused], monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/stores/test_others_go_on.py` asks real servers."""
    chunks = [memoryview(text.encode()) for text in (LINES, LATER)]
    monkeypatch.setattr(copy_text, "_chunks", lambda _batch: iter(chunks))
    columns = tuple(SimpleNamespace(name=name) for name in ("id", "v", "w"))
    batch: Any = SimpleNamespace(table=SimpleNamespace(columns=columns, history=False))
    at_once = CopyText(batch)
    assert b"".join(iter(lambda: at_once.read(5), b"")).decode() == LINES.replace("4\ta\0\tx\t7\t103\n", "") + LATER
    assert at_once.refused == [NUL]
    text = CopyText(batch, lambda text: set(lost) & set(text.decode()))
    read = b"".join(part.read() for part in text.parts()).decode()
    assert text.refused == refused
    left = {str(of.offset) for of in refused}
    assert read == "".join(line for line in (LINES + LATER).splitlines(keepends=True) if line[-4:-1] not in left)


def test_a_letter_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows have it: each question is an error in the server's log."""
    asked: list[str] = []

    def takes(_cur: object, text: bytes) -> bool:
        asked.append(text.decode())
        return not set("☂€") & set(text.decode())

    monkeypatch.setattr(encoding, "_takes", takes)
    connection = SimpleNamespace(get_parameter_status=lambda _name: "LATIN1")
    cur: Any = SimpleNamespace(connection=connection)
    has = encoding.Letters()
    assert has.missing(cur, ("ä☂ö\n" * 1000).encode()) == {"☂"}
    assert len(asked) <= 5
    asked.clear()
    assert has.missing(cur, "☂ and ä".encode()) == {"☂"}
    assert not asked
    assert has.missing(cur, "€ä".encode()) == {"€"}
    assert asked == ["€"]
    assert has.missing(cur, b"plain") == set()
