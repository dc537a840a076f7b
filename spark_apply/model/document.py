"""Makes a row a JSON document, which search indexes hold, and by which copies are compared.

    stored as                 JSON
    INT, BIGINT, DECIMAL(20,0) of uint64, BOOLEAN         number, true, false
    FLOAT, DOUBLE             number, or "NaN", "Infinity", "-Infinity"
    DECIMAL                   string, plain digits with the declared scale
    BINARY                    base64
    DATE                      "2024-02-29"
    TIMESTAMP_NTZ             "2024-02-29T12:00:00.5", fraction without trailing zeros
    TIMESTAMP                 the same and "Z", in UTC
    STRUCT, ARRAY             object, array
    STRING                    string
    null                      null, always present

Years beyond 9999 are written ``+10000``, those before year 1 ``-0043`` (44 BC), as ISO 8601 has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from spark_apply.model.target_table import TargetColumn, TargetTable, narrower, rebuilt
from spark_apply.model.types import spark_type
from spark_apply.spark.names import quoted

DOCUMENT = "_cdc_document"
MAX_ID_BYTES = 512
UNSIGNED = Kind("uint64")
"""A number in documents, where a decimal, which may be stored as the same type, is a text."""


def document_id(key: str) -> str:
    """Return the id of a key's document in a search index: the key's JSON, or its SHA-256 if that is long."""
    encoded = key.encode()
    return key if len(encoded) <= MAX_ID_BYTES else f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def with_document(rows: DataFrame, table: TargetTable, named: Callable[[str], str] = str) -> DataFrame:
    """Return `rows` (any DataFrame with the table's typed columns) and ``_cdc_document STRING``: each row's JSON.

    `named` gives the name of a column in the document.
    """
    return rows.withColumn(DOCUMENT, document(rows, table, named=named))


def document(
    rows: DataFrame, table: TargetTable, *, only: Collection[str] | None = None, named: Callable[[str], str] = str
) -> Column:
    """Return the JSON of each of `rows`, or of `only` these columns."""
    fields = [
        readable(F.col(quoted(column.name)), column.kind, rows.schema[column.name].dataType).alias(named(column.name))
        for column in table.columns
        if only is None or column.name in only
    ]
    return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"})


def forms_of(table: TargetTable) -> dict[str, str]:
    """Return by column the type whose values documents have in it; a mapping of fields does not tell arrays."""
    return {column.name: _form(column, column.kind) for column in table.columns}


def alike(column: TargetColumn) -> list[Kind]:
    """Return the kinds that a column had, and of which documents have values as of the present one."""
    return [kind for kind in narrower(column) if (kind == UNSIGNED) == (column.kind == UNSIGNED)]


def _form(column: TargetColumn, kind: Kind) -> str:
    form = spark_type(kind).simpleString()
    told = kind.name == "decimal" and any(was == UNSIGNED for was, _ in column.versions)
    return f"{form} as text" if told else form


def require_same_forms(table: TargetTable, had: Mapping[str, str], where: str) -> None:
    """Raise OperatorError if documents that are there have a column's values in another form than new ones would.

    Those of a column that has become wider are as new ones: its old kind is among its versions, and a table could be
    altered to the new one. `had` has what is known of the forms.
    """
    now = forms_of(table)
    for column in table.columns:
        known = {_form(column, kind) for kind in alike(column)}
        before = had.get(column.name)
        if before not in (None, now[column.name]) and column.versions and before not in known:
            msg = f"{where}, column {column.name}: it is {before} and would have to be {now[column.name]}"
            raise OperatorError(msg, hint=rebuilt(table))


def readable(value: Column, kind: Kind, stored_as: T.DataType) -> Column:
    """Convert a value of this stored type to what the document holds."""
    if isinstance(stored_as, T.ArrayType):
        element, element_type = kind.element, stored_as.elementType
        if element is None:
            return value
        return F.transform(value, lambda item: readable(item, element, element_type))
    if isinstance(stored_as, T.DecimalType) and kind.name == "decimal":
        return value.cast("string")
    if isinstance(stored_as, T.DateType):
        return value.cast("string")
    if isinstance(stored_as, T.TimestampNTZType):
        return F.replace(value.cast("string"), F.lit(" "), F.lit("T"))
    if isinstance(stored_as, T.TimestampType):
        return F.concat(F.replace(value.cast("string"), F.lit(" "), F.lit("T")), F.lit("Z"))
    return value
