"""Measures the cost of decoding a row of nine columns: MySQL's row image, and pgoutput's text in the same run."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from decimal import Decimal

from cdc.model.change import Op
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import Rows, TableColumn, TableMap
from connectors.mysql.rows.row_images import Reader
from connectors.mysql.values import mapping
from connectors.postgres.pgoutput.messages import Insert, decode
from tests.encoders import mysql as encoder
from tests.encoders import pgoutput as pgoutput_encoder

ROWS = 115
"""About as many as an event of 8 kB holds."""
SECONDS = 10.0


def columns() -> tuple[TableColumn, ...]:
    """Return the columns: bigint, int, varchar, decimal, int null, text null, datetime(6), timestamp null, tinyint."""
    return (
        TableColumn("id", table_map.LONGLONG, 0, nullable=False, unsigned=False),
        TableColumn("customer_id", table_map.LONG, 0, nullable=False, unsigned=False),
        TableColumn("status", table_map.VARCHAR, 80, nullable=False, charset="utf8mb4"),
        TableColumn("total", table_map.NEWDECIMAL, 10 << 8 | 2, nullable=False, unsigned=False),
        TableColumn("quantity", table_map.LONG, 0, nullable=True, unsigned=False),
        TableColumn("note", table_map.BLOB, 2, nullable=True, charset="utf8mb4"),
        TableColumn("created_at", table_map.DATETIME2, 6, nullable=False),
        TableColumn("updated_at", table_map.TIMESTAMP2, 0, nullable=True),
        TableColumn("active", table_map.TINY, 0, nullable=False, unsigned=False),
    )


def image(n: int) -> bytes:
    status, note = f"status{n % 7}".encode(), f"a note of some length {n}".encode()
    cells = [
        struct.pack("<q", n),
        struct.pack("<i", n % 977),
        bytes([len(status)]) + status,
        encoder.decimal(Decimal(n * 100 + n % 100) / 100, 10, 2),
        struct.pack("<i", n % 50) if n % 3 else None,
        struct.pack("<H", len(note)) + note,
        encoder.datetime2(2024, 1, 1 + n % 28, (n % 24, n % 60, n * 7 % 60), n, 6),
        struct.pack(">I", 1_714_500_000 + n),
        bytes([n % 2]),
    ]
    return encoder.image(cells, padding=True)


def least_us(run: Callable[[], object]) -> float:
    """Return the fastest of many runs, in µs a row, because other load only adds."""
    least, end = float("inf"), time.monotonic() + SECONDS
    while time.monotonic() < end:
        start = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - start)
    return least / ROWS * 1e6


def main() -> None:
    told = columns()
    read = Reader(TableMap(encoder.header(19), 7, 1, "shop", "orders", told, None))
    body = b"".join(map(image, range(2_000, 2_000 + ROWS)))
    event = Rows(encoder.header(30), Op.CREATE, 7, 1, 9, b"", b"\xff\x01", body)
    rows = [after for _, after in read(event) if after is not None]
    encoders = [mapping.column(column).encode for column in told]
    messages = [pgoutput_encoder.encode(Insert(1, row)) for row in rows]

    def decode_pgoutput() -> None:
        for message in messages:
            decode(message)

    def encode() -> None:
        for row in rows:
            for value, to_json in zip(row, encoders, strict=True):
                if isinstance(value, bytes):
                    to_json(value)

    print(f"a row of nine columns, MySQL's image to text:  {least_us(lambda: read(event)):5.2f} µs")
    print(f"the same row, a message of pgoutput:           {least_us(decode_pgoutput):5.2f} µs")
    print(f"its texts to JSON:                             {least_us(encode):5.2f} µs")


if __name__ == "__main__":
    main()
