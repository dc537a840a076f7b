"""Which rows an order tells apart."""

from __future__ import annotations

from spark_apply.views.sql.blocks import Block
from spark_apply.views.sql.written import Written


def check_orders(block: Block, written: Written) -> None:
    pass


def unique_outputs(block: Block) -> tuple[str, ...] | None:
    return None
