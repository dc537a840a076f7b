"""What is written for people: colours where a terminal takes them and nobody has asked for none."""

from __future__ import annotations

from pathlib import Path

import pytest

import cdc.cli
from cdc.cli.terminal import painted


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),  # as https://no-color.org has it
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_are_left_out_where_they_are_not_wanted(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], *, coloured: bool
) -> None:
    for name, default in (("NO_COLOR", ""), ("TERM", "xterm")):
        monkeypatch.setenv(name, variables.get(name, default))
    assert (painted("error: ", fg="red", bold=True) == "error: ") is not coloured


def test_no_command_colours_by_another_way() -> None:
    """`click.style` does not ask for NO_COLOR."""
    files = Path(cdc.cli.__file__).parent.rglob("*.py")
    assert [file.name for file in files if "click.style" in file.read_text(encoding="utf-8")] == ["terminal.py"]
