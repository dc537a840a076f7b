"""Says what to do about failures of file systems and catalogs, which Spark names by Java classes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cdc.model.errors import CdcError, OperatorError
from spark_apply.spark.failures import StoreAwayError, spark_failure

_UNREACHED: Final = (
    "it cannot be reached",
    (
        "is its server up, and are host and port right? Where no path of the file names it, core-site.xml in "
        "$SPARK_CONF_DIR or $HADOOP_CONF_DIR does (fs.defaultFS); file:///… means this machine"
    ),
)
_CAUSES: Final[tuple[tuple[tuple[str, ...], tuple[str, str]], ...]] = (
    (
        ("S3AFileSystem not found", 'for scheme "s3a"', "org.apache.hadoop.fs.s3a"),
        (
            "Spark has no jars for s3a://",
            "spark: {spark.jars.packages: org.apache.hadoop:hadoop-aws:3.4.1}",
        ),
    ),
    (
        ("UnsupportedFileSystemException", "No FileSystem for scheme", "FileSystem not found"),
        ("Spark has no jars for a path of this kind", "spark: {spark.jars.packages: …}, of that file system"),
    ),
    (
        ("UnknownHostException", "ConnectException", "NoRouteToHostException", "SocketTimeoutException",
         "ConnectTimeoutException", "HttpHostConnectException", "RetriesExhausted", "RESTException"),
        _UNREACHED,
    ),
    (
        ("NotAuthorizedException", "ForbiddenException", "AccessControlException", "Permission denied",
         "AccessDeniedException"),
        ("this user may not use it", "which user is this job's, and may it read and write there?"),
    ),
    (
        ("ParentNotDirectoryException", "Not a directory", "FileAlreadyExistsException", "NotDirectoryException"),
        ("a folder is needed, and something else has this name", "another path; or is a part of it a file?"),
    ),
    (
        ("Mkdirs failed",),
        ("a folder cannot be made there", "may this job's user write there, and is no part of the path a file? ls -ld"),
    ),
    (
        ("DeltaInvariantViolationException", "DELTA_VIOLATE_CONSTRAINT", "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"),
        (
            "a row violates a constraint that somebody else has given the Delta table",
            "DESCRIBE EXTENDED delta.`…` shows the table's constraints: correct the rows at the source, or alter them",
        ),
    ),
    (
        ("DELTA_CANNOT_MODIFY_APPEND_ONLY",),
        (
            "the Delta table is set to take no changes of rows (delta.appendOnly)",
            "ALTER TABLE delta.`…` SET TBLPROPERTIES ('delta.appendOnly' = 'false')",
        ),
    ),
    (
        ("No space left on device",),
        ("its disk is full", "make room; nothing is lost, start again"),
    ),
    (
        ("Disk quota exceeded", "QuotaExceededException"),  # of a disk's user, of HDFS
        ("the quota there is used up", "a larger one, or fewer files; nothing is lost, start again"),
    ),
)  # fmt: skip


_DAMAGED: Final = (
    "FileNotFoundException", "NotFoundException", "ChecksumException", "is not a Parquet file",
    "CANNOT_READ_FILE_FOOTER", "DELTA_TRUNCATED_TRANSACTION_LOG", "DELTA_STATE_RECOVER_ERROR",
    "DELTA_VERSIONS_NOT_CONTIGUOUS", "JsonParseException", "JsonEOFException", "InvalidAvroMagicException",
)  # fmt: skip


def is_damaged(exc: Exception) -> bool:
    """Whether files that a table of a lake needs are gone or damaged."""
    return any(word in str(exc) for word in _DAMAGED)


def damaged(what: str, said: str, rebuild: str) -> OperatorError:
    """Return the error of such a table; `rebuild` is the command that makes it again."""
    hint = (
        f"{rebuild} makes it again from the topics. If it cannot be opened for that either, move its folder away: a "
        "start makes it again"
    )
    return OperatorError(f"{what}: files that it needs are gone or damaged. {said}", hint=hint)


def remedy(exc: Exception) -> tuple[str, str] | None:
    """Return what a failure means, and what to do; None for one that is not known."""
    text = str(exc)
    return next((told for words, told in _CAUSES if any(word in text for word in words)), None)


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Translate Spark's exceptions to OperatorError; `what` is a path or a store, with its key in the file."""
    try:
        yield
    except CdcError:
        raise
    except Exception as exc:
        error = of_spark(exc, what)
        if error is None:
            raise
        raise error from exc


def of_spark(exc: Exception, what: str) -> CdcError | None:
    """Return a failure of Spark as an error of ours, about `what`; None for any other."""
    known, said = remedy(exc), spark_failure(exc)
    if said is None:
        return None
    if known is None:
        return OperatorError(f"{what} cannot be used. {said}", hint="start again: what was done is whole")
    return remedied(what, said, known)


def remedied(what: str, said: str, known: tuple[str, str]) -> CdcError:
    """Return the error of a failure that has a remedy: `known` is what `remedy` has returned."""
    error = StoreAwayError if known is _UNREACHED else OperatorError
    return error(f"{what}: {known[0]}. {said}", hint=known[1])
