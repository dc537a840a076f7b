"""Where things are in the job's schema, and how a statement of a plan is made one that runs. Pure.

"<schema>"."public.tweets"         rows of a captured table at the position
"<schema>"."view.timeline"         rows of a view; of a node inside it, "timeline#1"
"<schema>"."pending public.tweets" events that wait behind the position
pg_temp."changed …", "was …", "coming …", "units …", "work …"   of the step that is being computed
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from spark_apply.views.model.values import quoted
from spark_apply.views.sql.expressions.engines.dialects import PLACEHOLDER
from spark_apply.views.sql.expressions.engines.postgres import LONGEST_NAME

ERROR_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION cdc_error(text) RETURNS text LANGUAGE plpgsql STABLE AS "
    "$$ BEGIN RAISE EXCEPTION USING ERRCODE = '22000', MESSAGE = $1; END $$"
)
"""A value that is an error where it is needed. Immutable, plans would ask for it; volatile, it is made unread, too."""

OURS: Final = ("tables", "views", "kept", "sizes", "outbox", "streams", "late", "quarantine", "published")

_PLACEHOLDER: Final = re.compile(f"{PLACEHOLDER}([a-z_]+){PLACEHOLDER}([^{PLACEHOLDER}]*){PLACEHOLDER}")


def schema_of(job: str) -> str:
    """Return the name of a job's schema."""
    return "cdc_views_" + job.replace("-", "_")


def short(name: str) -> str:
    """Return a name that PostgreSQL keeps whole: a longer one ends with a hash of it."""
    if len(name.encode()) <= LONGEST_NAME:
        return name
    kept = name.encode()[: LONGEST_NAME - 17].decode(errors="ignore")
    return f"{kept}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def is_of_relation(table: str) -> bool:
    """Whether a table of the schema has such a name as these here: another one is somebody else's."""
    return table.startswith("pending ") or any(mark in table for mark in ".#~")


def is_ours(table: str) -> bool:
    """Whether a table of the schema is the job's: others may stand there, too."""
    return table in ("meta", *OURS) or is_of_relation(table)


def base(relation: str) -> str:
    """Return the quoted name of a relation's rows."""
    return quoted(short(relation))


def waiting(relation: str) -> str:
    """Return the quoted name of the events that wait."""
    return quoted(short(f"pending {relation}"))


def temporary(what: str, relation: str) -> str:
    """Return the quoted name of a table of the step."""
    return f"pg_temp.{quoted(short(f'{what} {relation}'))}"


def filled(statement: str, give: Callable[[str, str], str]) -> str:
    """Return a statement of a plan with what is given for each placeholder."""
    return _PLACEHOLDER.sub(lambda found: give(found[1], found[2]), statement)


def asks_for(statement: str, whats: tuple[str, ...], relation: str) -> bool:
    """Whether a statement of a plan reads one of these of a relation."""
    return any(f"{PLACEHOLDER}{what}{PLACEHOLDER}{relation}{PLACEHOLDER}" in statement for what in whats)
