"""Reaches the tables of a catalog: by Spark's SQL, and by Iceberg's Java API."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc.model.errors import BugError
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import folder_name, quoted

_CONFLICT = "CommitFailedException"
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
        """Whether the catalog has a table."""
        return self.spark.catalog.tableExists(self.name(table))

    def loaded(self, table: TargetTable) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        """Load a table as it is now, by Iceberg's Java API."""
        session: Any = self.spark
        if not self._catalog_known:  # Iceberg looks for it in the settings of whatever session the thread used last
            session.catalog.tableExists(self.name(table))
            self._catalog_known = True
        loaded = self.java.spark.Spark3Util.loadIcebergTable(session._jsparkSession, self.name(table))  # noqa: SLF001
        loaded.refresh()
        return loaded

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
