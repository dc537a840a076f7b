"""Lists what every session on MySQL and MariaDB sets, and reads back.

A server's configuration, its init_connect and a proxy in between give a new session settings that change what a SELECT
returns: how many rows, how old, in which order, as which text. None of them is taken as it comes. A session first sets
what would change the answer to a question, then asks for all settings of the list that this server knows, sets those
that differ, and asks again. What still differs stops the session, by name.

Literals are written, never DEFAULT: to a session, that is what the server's configuration says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Final, TypeAlias

from cdc.model.errors import OperatorError

_MOST: Final = "18446744073709551615"

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # how many rows, and which
        "sql_select_limit": _MOST,
        "max_join_size": _MOST,
        "sql_big_selects": "ON",
        "system_versioning_asof": "DEFAULT",
        "sql_auto_is_null": "OFF",
        "show_gipk_in_create_table_and_information_schema": "ON",
        "skip_replication": "OFF",
        "use_secondary_engine": "OFF",
        "query_cache_type": "OFF",
        "sql_buffer_result": "OFF",
        # under which view
        "autocommit": "ON",
        "completion_type": "NO_CHAIN",
        "transaction_isolation": "REPEATABLE-READ",
        "tx_isolation": "REPEATABLE-READ",
        "transaction_read_only": "OFF",
        "tx_read_only": "OFF",
        # as which text
        "sql_mode": "",
        "time_zone": "+00:00",
        "character_set_client": "utf8mb4",
        "character_set_connection": "utf8mb4",
        "character_set_results": "utf8mb4",
        "collation_connection": "utf8mb4_general_ci",
        "lc_messages": "en_US",
        "lc_time_names": "en_US",
        "show_old_temporals": "OFF",
        "sql_quote_show_create": "ON",
        # in which order: the longest key has 3072 bytes, and three times as many as utf8mb4
        "max_sort_length": "9216",
        "sort_buffer_size": "2097152",
        # within which time and memory
        "max_execution_time": "0",
        "max_statement_time": "0",
        "idle_transaction_timeout": "0",
        "idle_readonly_transaction_timeout": "0",
        "idle_write_transaction_timeout": "0",
        "max_session_mem_used": "9223372036854775807",
        "net_read_timeout": "60",
        "net_write_timeout": "3600",
        "wait_timeout": "86400",
        "lock_wait_timeout": "10",
        "information_schema_stats_expiry": "86400",
        "sql_safe_updates": "OFF",
        "big_tables": "OFF",
    }
)
"""What a session has, where its server knows the setting."""

LEAST: Final[Mapping[str, int]] = MappingProxyType({"max_allowed_packet": 1 << 20})
"""What no session can set, and the least that is enough: where a value is longer, functions make NULL of it."""

FIRST: Final = (
    f"SET SESSION sql_select_limit = {_MOST}, max_join_size = {_MOST}, sql_big_selects = 1, autocommit = 1, "
    "sql_mode = '' /*!50708 , max_execution_time = 0 */ "
    "/*M! , max_statement_time = 0, max_session_mem_used = 9223372036854775807 */"
)
"""What comes before any question. Only MySQL reads the first comment, and only MariaDB the second."""
LEAVE: Final = "ROLLBACK AND NO CHAIN NO RELEASE"
"""Ends a transaction that init_connect has begun, whatever completion_type is."""

_ROUNDS: Final = 3
"""How often settings are set: a character set brings a collation with it, and max_join_size changes sql_big_selects."""

Ask: TypeAlias = Callable[[str, tuple[str, ...]], list[list[str]]]
"""Runs a statement and returns its rows as text."""


def settle(ask: Ask, where: str, own: Mapping[str, str]) -> None:
    """Set all that differs, and read it back. `own`: what this session has instead. Raises what `ask` raises.

    Raises OperatorError for what did not take.
    """
    wanted = {**SETTINGS, **own}
    names = (*wanted, *LEAST)
    question = f"SHOW SESSION VARIABLES WHERE Variable_name IN ({', '.join(['%s'] * len(names))})"
    refused: dict[str, str] = {}
    for last in (*[False] * _ROUNDS, True):
        found = {name.lower(): value for name, value in ask(question, names)}
        differs = {name: value for name, value in wanted.items() if name in found and not _same(found[name], value)}
        if not found.keys() >= _EVERYWHERE:
            raise _dropped(where, [f"{name}, which is not told" for name in sorted(_EVERYWHERE - found.keys())])
        if not differs:
            break
        if last:
            told = [
                f"{name} = {found[name]} where {value or 'the empty text'} was asked for{refused.get(name, '')}"
                for name, value in differs.items()
            ]
            raise _dropped(where, told)
        refused = _set(ask, differs)
    for name, least in LEAST.items():
        if int(found.get(name, least)) < least:
            raise OperatorError(
                f"MySQL at {where}: {name} is {found[name]}, and {least} is the least with which values and keys can "
                "be read whole",
                hint=f"SET GLOBAL {name} = 67108864",
            )


def still(ask: Ask, where: str) -> None:
    """Ask again for what every server knows: a proxy may have given the statements since to another session.

    Inside a transaction, whose statements are all one session's. Raises OperatorError.
    """
    names = sorted(_EVERYWHERE)
    ((*values,),) = ask(f"SELECT {', '.join(f'@@SESSION.{name}' for name in names)}", ())
    told = [
        f"{name} = {found} where {SETTINGS[name] or 'the empty text'} was set"
        for name, found in zip(names, values, strict=True)
        if not _same(found, SETTINGS[name])
    ]
    if told:
        raise _dropped(where, told)


_EVERYWHERE: Final = frozenset({"sql_select_limit", "autocommit", "sql_mode", "time_zone", "character_set_results"})
"""What each server tells of; where one does not, somebody else has answered."""


def _set(ask: Ask, differs: Mapping[str, str]) -> dict[str, str]:
    """Set them all at once; one by one where that fails. Return why those are not set that the server refuses."""
    try:
        ask("SET SESSION " + ", ".join(assigned(name, value) for name, value in differs.items()), ())
    except OperatorError:
        refused = {}
        for name, value in differs.items():
            try:
                ask(f"SET SESSION {assigned(name, value)}", ())
            except OperatorError as exc:
                refused[name] = f" ({exc.message})"
        return refused
    return {}


def assigned(name: str, value: str) -> str:
    """Write an assignment; all texts of the list are plain."""
    plain = value.isdigit() or value in ("ON", "OFF", "DEFAULT")
    return f"{name} = {value}" if plain else f"{name} = '{value}'"


def _same(found: str, wanted: str) -> bool:
    """Tell whether the server's text is what was asked for: numbers as numbers, names without their case."""
    try:
        return Decimal(found) == Decimal(wanted)
    except InvalidOperation:
        return _SWITCHES.get(found.upper(), found.upper()) == wanted.upper()


_SWITCHES: Final = {"1": "ON", "0": "OFF"}


def _dropped(where: str, told: list[str]) -> OperatorError:
    return OperatorError(
        f"MySQL at {where}: the session is not set as it was asked to be: {'; '.join(told)}: what is read would be "
        "incomplete or written in another way",
        hint="if there is a proxy in between, write the server's own address in source.url; else set these for the "
        "whole server (SET GLOBAL), or let the connector's user set them",
    )
