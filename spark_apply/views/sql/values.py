"""Expressions, carried over from Spark to the engine."""

from __future__ import annotations

from dataclasses import replace

from spark_apply.views.sql.blocks import Block
from spark_apply.views.sql.written import Written


def carried(block: Block, written: Written) -> Block:
    return replace(block, types=dict.fromkeys(block.outputs, "string"))
