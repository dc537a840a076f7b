"""Makes errors of what ends a job: Spark passes on the text of an exception alone, so the exception itself is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from pyspark.sql.streaming.query import StreamingQuery

from cdc.model.errors import BugError, CdcError, OperatorError
from cdc.model.hints import rebuild
from spark_apply.spark.failures import spark_failure
from spark_apply.spark.remedies import damaged, is_damaged, remedied, remedy

_TWICE: Final = "CONCURRENT_STREAM_LOG_UPDATE"


class BatchFailedError(Exception):
    """Tells Spark that a batch has failed, in few words; what has failed is kept on our side."""


@contextmanager
def recorded(failures: list[Exception]) -> Iterator[None]:
    """Keep the exception of a block, of which Spark would pass on the text alone.

    Spark gets one of few words. That of the exception may have rows in it, and Spark logs it; and it is long: Spark 4.0
    looks through it by a pattern that overflows the stack of a query that is stopped (`PROXY_ERROR`, StreamExecution).
    """
    try:
        yield
    except Exception as exc:  # noqa: BLE001 - raised by `raise_failure`
        failures.append(exc)
        raise BatchFailedError(type(exc).__name__) from None


@contextmanager
def opening_errors(table: str) -> Iterator[None]:
    """Translate Spark's exceptions to OperatorError: of two jobs that create a table at once, one fails."""
    try:
        yield
    except CdcError:
        raise
    except Exception as exc:
        said, known = spark_failure(exc), remedy(exc)
        if said is None:
            raise
        if known is not None:
            raise remedied(f"{table}: its copies cannot be opened", said, known) from exc
        if is_damaged(exc):
            raise damaged(table, said, rebuild(table)) from exc
        hint = "nothing was applied; start again. Do two jobs write this store? Let one do it"
        raise OperatorError(f"{table}: its copies cannot be opened. {said}", hint=hint) from exc


def raise_failure(
    query: StreamingQuery | None, failures: list[Exception], *, recovery: str, checkpoint: str
) -> NoReturn:
    """Raise the first failure of a query that has ended; one that is not of a batch is of `checkpoint`, or of Spark.

    Of two queries of one checkpoint in a JVM, Spark ends the first without a failure, as one that somebody stops.
    """
    if failures:
        first = failures[0]
        raise first if isinstance(first, CdcError) else translated(first, recovery=recovery) from first
    failure = query.exception() if query is not None else None
    if failure is not None and _TWICE not in str(failure):
        raise translated(failure, recovery=recovery, where=f"checkpoint {checkpoint}: ") from failure
    hint = "let one of them run; a job of other tables or stores has a checkpoint of its own"
    if failure is not None:
        raise OperatorError(f"checkpoint {checkpoint}: another job has begun to use it", hint=hint) from failure
    by = "another job with this checkpoint, or q.stop() or spark.stop()"
    msg = f"checkpoint {checkpoint}: its query was stopped by another hand in this process: {by}"
    raise OperatorError(msg, hint=f"of two jobs {hint}. What was applied is whole: a new start goes on")


def translated(exc: Exception, *, recovery: str, where: str = "") -> CdcError:
    """Translate a failure of Spark to CdcError; `recovery`: what to do about offsets that are gone.

    A failure whose remedy is known begins with `where` it was.
    """
    text = str(exc)
    if "failOnDataLoss" in text or "KAFKA_DATA_LOSS" in text or "OffsetOutOfRange" in text:
        msg = "offsets that the checkpoint names are gone from the topics: they were deleted or recreated"
        return OperatorError(msg, hint=recovery)
    said, known = spark_failure(exc), remedy(exc)
    if said is not None and known is not None:
        return OperatorError(f"{where}{said}: {known[0]}", hint=known[1])
    if said is not None:
        return OperatorError(said, hint="the stores hold whole batches; start again, it goes on where it was")
    return BugError(f"applying a batch failed: {type(exc).__name__}", hint="please report this")
