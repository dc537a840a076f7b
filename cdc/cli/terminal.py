"""Shows progress on stderr, and formats tables of text."""

from __future__ import annotations

from collections.abc import Sequence

import click


def show_progress(line: str) -> None:
    """Draw a status line on the terminal, over the one before."""
    click.echo(f"\r\x1b[K{line}", err=True, nl=False)


def clear_progress() -> None:
    """Remove the status line."""
    click.echo("\r\x1b[K", err=True, nl=False)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines with aligned columns; the first row may be the headings."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
