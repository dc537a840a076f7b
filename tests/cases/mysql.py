"""The side of MySQL and MariaDB: a database for each case, and rows as events have them, by the server's arithmetic.

Of each database those tables are captured whose name is one letter, so that a case may have others besides.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.cases.capturing import Capturing
from tests.conftest import MySQLDatabase, _mysql_database
from tests.integration.running import Row


def _same(value: Any) -> Any:
    return value


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _micros(value: dt.timedelta) -> int:
    return value // dt.timedelta(microseconds=1)


def _instant(text: str) -> str:
    return text.replace(".000000", "") + "Z"


def _float32(value: float) -> float:
    """By the fewest digits that are the same float32."""
    return next(
        short
        for digits in range(1, 10)
        if struct.pack("<f", short := float(f"{value:.{digits}g}")) == struct.pack("<f", value)
    )


def _geometry(value: bytes) -> Row:
    return {"wkb": _bytes(value[4:]), "srid": int.from_bytes(value[:4], "little")}


_AS_EVENTS_HAVE_IT: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "double"), ("{0}", _same)),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "json"), ("{0}", _same)),
    **dict.fromkeys(("uuid", "inet4", "inet6", "decimal", "set"), ("CAST({0} AS CHAR)", _same)),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ("{0}", _bytes)),
    **dict.fromkeys(("geometry", "point", "linestring", "polygon"), ("{0}", _geometry)),
    "float": ("{0} + 0e0", _float32),
    "bit": ("{0} + 0", _same),
    "bit(1)": ("{0} + 0", bool),
    "year": ("YEAR({0})", int),
    "date": ("DATEDIFF({0}, '1970-01-01')", _same),
    "time": ("{0}", _micros),
    "datetime": ("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {0})", _same),
    "datetime of millis": ("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {0}) DIV 1000", _same),
    "timestamp": ("DATE_FORMAT({0}, '%Y-%m-%dT%H:%i:%s.%f')", _instant),
    "vector": ("/*!80000 VECTOR_TO_STRING */ /*M! VEC_ToText */ ({0})", json.loads),
}
"""By type, docs/values.md in SQL, and what Python must do to what the driver gives."""
_MILLIS_DIGITS: Final = 3


class MysqlCases:
    """A `CaseSource` of one server: databases whose names begin with that of `database`."""

    in_order = False

    def __init__(self, database: MySQLDatabase, kafka: str, folder: Path) -> None:
        self._database, self._kafka, self._folder = database, kafka, folder
        self._rooms: list[str] = []

    def _room(self, case: str) -> str:
        return f"{self._database.name}_{case}"

    def make_room(self, case: str) -> None:
        self._database.execute(f"CREATE DATABASE {self._room(case)} CHARACTER SET utf8mb4")
        self._rooms.append(self._room(case))

    def close(self) -> None:
        """Drop all rooms."""
        self._database.execute(*(f"DROP DATABASE {room}" for room in self._rooms))

    def execute(self, statements: Mapping[str, Sequence[str]]) -> None:
        for case, some in statements.items():  # what a session sets is for its case alone
            with closing(self.session(case)) as connection, connection.cursor() as cursor:
                for statement in some:
                    cursor.execute(statement)

    def session(self, case: str) -> Any:
        """Return a connection to the room of a case."""
        return self._database.connect(database=self._room(case))

    def qualified(self, case: str, table: str) -> str:
        return f"{self._room(case)}.{table}"

    def select(self, case: str, table: str, select: str | None) -> list[Row]:
        with closing(self._database.connect(database=self._room(case))) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
            cursor.execute(
                "SELECT column_name, data_type, column_type, datetime_precision FROM information_schema.columns"
                f" WHERE table_schema = DATABASE() AND table_name = '{table}' ORDER BY ordinal_position"
            )
            columns = [(name, *_AS_EVENTS_HAVE_IT[_type(*of)]) for name, *of in cursor.fetchall()]
            if select is not None:
                cursor.execute(select)
                names = [column[0] for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            shown = ", ".join(sql.format(_quoted(name)) for name, sql, _ in columns)
            cursor.execute(f"SELECT {shown} FROM {_quoted(table)}")
            return [
                {
                    name: None if value is None else made(value)
                    for (name, _, made), value in zip(columns, row, strict=True)
                }
                for row in cursor.fetchall()
            ]

    def connector(self, which: str) -> Capturing:
        name = f"{which}{self._database.name.removeprefix('test_')}"
        made = Capturing(self._folder, name, self._database.url, self._kafka, [f"{self._database.name}_*.?"])
        user = f"cdc_capture_{self._database.name}"
        self._database.execute(*(f"GRANT SELECT ON {room}.* TO {user}@'%'" for room in self._rooms))
        return made


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _type(name: str, whole: str, digits: int | None) -> str:
    if whole == "bit(1)":
        return whole
    return "datetime of millis" if name == "datetime" and (digits or 0) <= _MILLIS_DIGITS else name


@contextmanager
def mysql_cases(server: str, kafka: str, folder: Path) -> Iterator[MysqlCases]:
    """A database of its own at a server, for cases that one connector serves."""
    with contextmanager(_mysql_database)(server) as database, closing(MysqlCases(database, kafka, folder)) as source:
        yield source
