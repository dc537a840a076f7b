"""The settings of our sessions at PostgreSQL: what is asked for, and whether the session has it.

They are asked for in the start-up packet, which wins over everything that ALTER SYSTEM, ALTER DATABASE and ALTER ROLE
set. But what stands between us and the server (a pooler, a proxy) may drop them without a word. So each session reads
back what it has (`differences`), before anything else is done in it. Pure.

Left as they are, because no value and no outcome depends on them: how statements are planned (enable_*, jit, work_mem),
in which language the server writes (lc_messages), role and session_replication_role, which an administrator may have
set on purpose: we write no row, and what the role may not read is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdc.model.errors import OperatorError

OF_VALUES: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    "quote_all_identifiers": "off",
    "row_security": "off",
}
"""How values are printed, and that rows are never left out: where row security hides some, reading fails."""

OF_STATEMENTS: Final = {
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "xmloption": "content",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "synchronous_commit": "local",
    "exit_on_error": "off",
    "client_min_messages": "warning",
}
"""What statements mean, and what they wait for: no standby holds up what the connector commits."""

OF_TIME: Final = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "tcp_user_timeout": "0",
}
"""A snapshot reads and a slot is made for as long as it takes; what is limited, we limit (`deadline`, SET LOCAL)."""

SETTINGS: Final = {**OF_VALUES, **OF_STATEMENTS, **OF_TIME}

LATER: Final = {"transaction_timeout": ("0", 170000)}
"""Settings that only a newer server knows, by its version: in the start-up packet an older one would refuse them."""

ENVIRONMENT: Final = {"PGTZ": "TimeZone", "PGDATESTYLE": "DateStyle"}
"""Settings that libpq takes from environment variables: in the start-up packet they stand behind ours, and win."""

APART: Final = {"client_encoding": "UTF8"}
"""What libpq has a parameter of its own for."""

READ_BACK: Final = (
    f"SELECT name, setting FROM pg_settings WHERE name = ANY ('{{{','.join((*SETTINGS, *LATER, *APART))}}}')"  # noqa: S608 - constants
)
"""Rows of name and value; a server that does not know a setting leaves it out."""

POOLED: Final = (
    "write the server's own address in source.url: a pooler cannot replicate in transaction mode, and one that drops a "
    "session's settings prints values in another way"
)

_TRIGGERS: Final = "event triggers: SELECT evtname, evtfoid::regproc FROM pg_event_trigger WHERE evtevent = 'login'"


def options() -> str:
    """Write what is asked for as libpq's parameter `options`."""
    escaped = ((name, value.replace(" ", "\\ ")) for name, value in SETTINGS.items())
    return " ".join(f"-c {name}={value}" for name, value in escaped)


def later(version: int, environment: Mapping[str, str]) -> list[str]:
    """Return the statements that set the rest at a server of this version."""
    rest = {name: value for name, (value, since) in LATER.items() if version >= since}
    rest |= {name: SETTINGS[name] for variable, name in ENVIRONMENT.items() if environment.get(variable)}
    return [f"SET {name} = '{value}'" for name, value in rest.items()]


def differences(where: str, found: Mapping[str, str]) -> OperatorError | None:
    """Return the error of a session that is not set as it was asked to be."""
    asked = {**SETTINGS, **APART, **{name: value for name, (value, _) in LATER.items() if name in found}}
    for name, value in asked.items():
        has = found.get(name, "nothing")
        if (has.partition(",")[0] if name == "DateStyle" else has) != value:
            return OperatorError(
                f"PostgreSQL at {where}: the session has {name} {has}, and {value} was asked for: "
                "a pooler in between drops what a session sets, or an event trigger changes it at login",
                hint=f"{POOLED}; {_TRIGGERS}",
            )
    return None
