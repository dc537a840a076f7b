"""Fixtures of the stories, which several modules tell."""

from __future__ import annotations

from tests.integration.stories import run, told

__all__ = ["run", "told"]
