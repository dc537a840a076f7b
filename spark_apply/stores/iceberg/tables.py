"""Reaches the tables of a catalog: by Spark's SQL, and by Iceberg's Java API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.model.errors import BugError
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import folder_name, quoted
from spark_apply.stores.lake.properties import gone

_CONFLICT = "CommitFailedException"
_GONE = ("NoSuchTableException", "TABLE_OR_VIEW_NOT_FOUND", "UUID does not match", "Metadata file for version")
_TRIES, _WAIT_S = 20, 0.02


class IcebergTables:
    """The tables of one of a session's catalogs."""

    def __init__(self, catalog: str, session: SparkSession | None) -> None:
        self._catalog = catalog
        self._session = session
        self._catalog_known = False

    @property
    def spark(self) -> SparkSession:
        """The session. Raises BugError if there is none."""
        if self._session is None:
            raise BugError(f"store {self._catalog} was opened for its marks alone")
        return self._session

    @property
    def java(self) -> Any:  # noqa: ANN401 - the package org.apache.iceberg
        """Iceberg's Java API."""
        context: Any = self.spark.sparkContext
        return context._jvm.org.apache.iceberg  # noqa: SLF001

    @property
    def actions(self) -> Any:  # noqa: ANN401 - Java's SparkActions
        """What Iceberg does with a table by Spark's executors."""
        session: Any = self.spark
        return self.java.spark.actions.SparkActions.get(session._jsparkSession)  # noqa: SLF001

    def namespace(self, table: TargetTable) -> str:
        """Return the namespace that a table is in, quoted for Spark's SQL."""
        return ".".join(map(quoted, (self._catalog, folder_name(table.schema))))

    def name(self, table: TargetTable) -> str:
        """Return a table's name, quoted for Spark's SQL."""
        return f"{self.namespace(table)}.{quoted(folder_name(table.copy_name))}"

    def is_there(self, table: TargetTable) -> bool:
        """Whether the catalog has a table, now."""
        self.forget(table)
        return self.spark.catalog.tableExists(self.name(table))

    def loaded(self, table: TargetTable) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        """Load a table as it is now, by Iceberg's Java API."""
        session: Any = self.spark
        self._know_catalog(table)
        try:
            loaded = self.java.spark.Spark3Util.loadIcebergTable(session._jsparkSession, self.name(table))  # noqa: SLF001
            loaded.refresh()
        except (Py4JJavaError, PySparkException) as exc:
            if not any(word in str(exc) for word in _GONE):
                raise
            raise gone(f"Iceberg table {self.name(table)}") from exc
        return loaded

    def forget(self, table: TargetTable, session: SparkSession | None = None) -> None:
        """Have a session ask the catalog for a table again: Iceberg keeps what it once found, also if it was removed.

        Each session has a cache of its own. See https://iceberg.apache.org/docs/latest/spark-configuration/#catalogs.
        """
        of: Any = session or self.spark
        if session is None:
            self._know_catalog(table)
        namespace = of.sparkContext._gateway.new_array(of.sparkContext._jvm.java.lang.String, 1)  # noqa: SLF001
        namespace[0] = folder_name(table.schema)
        name = of.sparkContext._jvm.org.apache.spark.sql.connector.catalog.Identifier.of(  # noqa: SLF001
            namespace, folder_name(table.copy_name)
        )
        of._jsparkSession.sessionState().catalogManager().catalog(self._catalog).invalidateTable(name)  # noqa: SLF001

    def _know_catalog(self, table: TargetTable) -> None:
        """Have the session make its catalog, which Spark looks for in whatever session the thread has used last."""
        if not self._catalog_known:
            self.spark.catalog.tableExists(self.name(table))
            self._catalog_known = True

    def set_in(self, loaded: Any, base: Any, properties: Mapping[str, str]) -> None:  # noqa: ANN401 - BaseTable, its TableMetadata
        """Set properties of the very state that was looked at: `updateProperties` would set them in a newer one, too.

        For `commit`: a conflict is an error. A REST catalog takes properties in any order.
        """
        loaded.operations().commit(base, self.java.TableMetadata.buildFrom(base).setProperties(properties).build())

    def commit(self, table: TargetTable, change: Callable[[Any], None]) -> None:
        """Change a table's branches and tags; after a conflict with another commit (the job's), try again."""
        for number in range(1, _TRIES + 1):
            try:
                change(self.loaded(table))
            except Py4JJavaError as exc:
                if number == _TRIES or _CONFLICT not in str(exc.java_exception.getClass().getName()):
                    raise
                time.sleep(_WAIT_S * number)
            else:
                return
