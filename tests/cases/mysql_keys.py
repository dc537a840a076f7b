"""What is done to rows under keys of every type, and to tables of any name, case by case."""

from __future__ import annotations

from typing import Final

from tests.cases.runner import Case

_TOLERANT: Final = "SET SESSION sql_mode = ''"
_MINIMAL: Final = "SET SESSION binlog_row_image = MINIMAL"
_WORDS: Final = {
    "gbk": "简体中文 镕",
    "sjis": "日本語 ｶﾅ 表",
    "utf16": "日本😀",
    "utf32": "日本😀",
    "koi8r": "Привет",
    "big5": "繁體中文 功能",
}
"""In `tables_in_other_letters`, by character set."""
_LETTERS: Final = tuple(zip("abcdef", _WORDS.items(), strict=True))

_TYPES: Final[dict[str, tuple[str, tuple[str, str, str], str]]] = {
    "a": ("VARCHAR(20)", ("'a'", "'b  '", "'é'"), "UPPER(k)"),
    "b": ("CHAR(5) CHARACTER SET gbk", ("'文'", "'b'", "''"), "CONCAT(k, 'x')"),
    "c": ("BINARY(8)", ("x'0100'", "x'00'", "x'ff00ff'"), "CONCAT(SUBSTR(k, 1, 2), x'01')"),
    "d": ("VARBINARY(8)", ("x'0100'", "x'01'", "x''"), "CONCAT(k, x'00')"),
    "e": ("ENUM('z', 'a', 'm', 'ü')", ("'a'", "'z'", "'m'"), "'ü'"),
    "f": ("SET('q', 'a', 'b')", ("'a,q'", "''", "'b'"), "'q,b'"),
    "g": ("BIT(9)", ("b'1'", "b'100000000'", "b'0'"), "k + 1"),
    "h": ("DATE", ("'2020-02-28'", "'1000-01-01'", "'2020-02-29'"), "'1999-01-01'"),
    "i": ("DATETIME(3)", ("'2020-01-01 01:02:03.5'", "'9999-12-31'", "'1969-12-31'"), "'1999-01-01'"),
    "j": ("TIME(2)", ("'-838:59:59'", "'-00:00:00.01'", "'12:00:00.50'"), "ADDTIME(k, '00:00:01')"),
    "l": ("TIMESTAMP(6)", ("'2024-03-31 01:30:00.5'", "'2000-01-01'", "'2001-01-01'"), "'2002-01-01'"),
    "m": ("YEAR", ("0", "1901", "2155"), "1999"),
    "n": ("DECIMAL(20, 5)", ("-1.5", "0.00000", "99999.12345"), "k + 1"),
    "o": ("DOUBLE", ("0.1", "-2.5e-300", "1e22"), "k * 3"),
    "p": ("FLOAT", ("0.1", "16777216", "3.4e38"), "k / 3"),
    "q": ("BIGINT UNSIGNED", ("9223372036854775808", "0", "18446744073709551615"), "k - 1"),
    "s": ("VARCHAR(30) CHARACTER SET utf16 COLLATE utf16_bin", ("'日本😀'", "'a '", "'A'"), "CONCAT(k, 'b')"),
    "t": ("TEXT", ("'abcdefghi'", "'b'", "''"), "CONCAT(k, 'zz')"),
    "u": ("BLOB", ("x'00ff01'", "x'00'", "x'0001ff02'"), "CONCAT(k, x'00')"),
}
"""By table: the type of its key, three keys, and what becomes of the first of them."""


def _table(name: str) -> tuple[str, str]:
    type_, literals, _ = _TYPES[name]
    part = "k(3)" if type_ in ("TEXT", "BLOB") else "k"
    rows = ", ".join(f"({literal}, {number}, 'x')" for number, literal in enumerate(literals))
    made = f"CREATE TABLE {name} (k {type_} NOT NULL, n INT, w TEXT, PRIMARY KEY ({part}))"
    return made, f"INSERT INTO {name} VALUES {rows}"


KEYS: Final = (
    Case(
        name="keys_of_each_type",
        before=(_TOLERANT, *(one for name in _TYPES for one in _table(name))),
        stream=(
            _TOLERANT,
            *(f"UPDATE {name} SET n = n + 10" for name in _TYPES),
            *(f"DELETE FROM {name} WHERE n = 12" for name in _TYPES),
        ),
        stopped=(
            _TOLERANT,
            *(f"UPDATE {name} SET k = {moved} WHERE n = 10" for name, (_, _, moved) in _TYPES.items()),
            *(f"UPDATE {name} SET w = 'y' WHERE n = 11" for name in _TYPES),
        ),
        tables=tuple(_TYPES),
        said=(),
    ),
    Case(
        name="keys_that_are_equal_to_the_server",  # and not to a topic: one goes, the other comes
        before=(
            "CREATE TABLE t (k VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)",
            "INSERT INTO t VALUES ('a', 1), ('b', 2), ('x ', 3), ('é', 4)",
        ),
        stream=(
            *(
                "UPDATE t SET k = 'A' WHERE k = 'a'",
                "REPLACE INTO t VALUES ('B', 5)",
                "UPDATE t SET k = 'x' WHERE n = 3",
            ),
            "INSERT INTO t VALUES ('E', 9) ON DUPLICATE KEY UPDATE k = 'E', n = 9",
        ),
        stopped=("UPDATE t SET k = LOWER(k)", "INSERT IGNORE INTO t VALUES ('A', 100)"),
        said=(),
    ),
    Case(
        name="a_key_that_the_server_makes",  # of columns, or by itself
        before=(
            "CREATE TABLE t (a INT, b INT, k INT AS (a * 10 + b) STORED, v INT, PRIMARY KEY (/*!80000 k */ /*M! a */))",
            "INSERT INTO t (a, b, v) VALUES (1, 2, 3), (4, 5, 6)",
            "/*!80030 SET SESSION sql_generate_invisible_primary_key = ON */ /*M! SET @x = 0 */",
            "CREATE TABLE u (/*M! my_row_id BIGINT UNSIGNED INVISIBLE AUTO_INCREMENT PRIMARY KEY, */ v INT)",
            "INSERT INTO u (v) VALUES (1), (2)",
        ),
        stream=("UPDATE t SET b = 7 WHERE a = 1", "UPDATE u SET v = 5 WHERE v = 1", "INSERT INTO u (v) VALUES (3)"),
        stopped=("UPDATE t SET a = a + 1 ORDER BY a DESC", "DELETE FROM u WHERE v = 2", "INSERT INTO u (v) VALUES (7)"),
        tables=("t", "u"),
        said=None,
    ),
    Case(
        name="signs_in_names",  # of tables, of columns, of columns of the key
        before=tuple(
            one
            for t in (".", "#", "@", "日", "$", "%")
            for one in (
                f'CREATE TABLE `{t}` (`a%b` INT, `q"``x` INT, `a.b` INT, `after` INT, PRIMARY KEY (`q"``x`, `a%b`))',
                f"INSERT INTO `{t}` VALUES (1, 1, 1, 1), (2, 2, 2, 2)",
            )
        ),
        stream=tuple(f"UPDATE `{t}` SET `a%b` = 9 WHERE `after` = 2" for t in (".", "#", "@", "日", "$", "%")),
        stopped=(
            *(f"ALTER TABLE `{t}` DROP `a.b`, ADD `n\\'` INT DEFAULT 3" for t in (".", "#", "日", "%")),
            *("TRUNCATE TABLE `.`", "RENAME TABLE `%` TO `x`, `$` TO `%`", "INSERT INTO `@` VALUES (7, 7, 7, 7)"),
        ),
        tables=(".", "#", "@", "日", "%", "x"),
        gone=("$",),
    ),
    Case(
        name="tables_in_other_letters",
        before=tuple(
            one
            for t, (letters, word) in _LETTERS
            for one in (
                f"CREATE TABLE {t} (k VARCHAR(20), p CHAR(6), x TEXT, PRIMARY KEY (k, p)) CHARACTER SET {letters}",
                f"INSERT INTO {t} VALUES ('{word}', 'a', '{word}'), ('b', '{word[:4]}', NULL)",
            )
        ),
        stream=tuple(f"INSERT INTO {t} VALUES ('{word}', 'c', '{word}')" for t, (_, word) in _LETTERS),
        stopped=tuple(
            one
            for t, (_, word) in _LETTERS
            for one in (
                *(f"UPDATE {t} SET x = 'y' WHERE k = '{word}'", f"DELETE FROM {t} WHERE p = 'c'"),
                *(f"ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4", f"UPDATE {t} SET x = '😀' WHERE k = 'b'"),
            )
        ),
        tables=tuple("abcdef"),
    ),
)

_COMPARED: Final = "abcefjpst"
"""Tables whose keys the server compares in another way than by their bytes, or prints in a way of its own."""

KEYS_OF_HOLES: Final = (
    Case(
        name="keys_of_each_type_of_minimal_rows",  # which are read by them
        before=(_TOLERANT, *(one for name in _COMPARED for one in _table(name))),
        stream=(
            *(_TOLERANT, _MINIMAL),
            *(f"UPDATE {name} SET n = n + 10" for name in _COMPARED),
            *(f"DELETE FROM {name} WHERE n = 12" for name in _COMPARED),
        ),
        stopped=(
            *(_TOLERANT, _MINIMAL),
            *(f"UPDATE {name} SET k = {_TYPES[name][2]} WHERE n = 10" for name in _COMPARED),
        ),
        tables=tuple(_COMPARED),
        live=True,
    ),
)
