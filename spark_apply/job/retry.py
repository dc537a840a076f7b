"""Folds a batch in, and tries again where that may help: a copy was swapped meanwhile, or a store was away."""

from __future__ import annotations

from pyspark.sql import DataFrame

from cdc.model.errors import CdcError
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.batch.size import TASKS, sized
from spark_apply.job.catch_up.swaps import SwapWatch
from spark_apply.job.copies.set_aside import AsideCopies, Key
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Ends
from spark_apply.model.store import Visibility

_TRIES = 10  # a rebuild of several stores replaces their copies one after the other


def fold_batch(
    applier: Applier,
    swaps: SwapWatch,
    records: DataFrame,
    publisher: WatermarkPublisher,
    ends: Ends,
    *,
    asides: AsideCopies | None = None,
) -> dict[Key, Visibility]:
    """Fold a batch in. The whole batch is retried when a copy was swapped meanwhile, and once after another failure.

    With `asides` once after any, and then the copies that fail are set aside.
    """
    swaps.look()  # before it: a store that is away fails this for its copies alone, as between two batches
    if asides is not None:
        asides.containing = False
    records = sized(records, publisher.unread(ends), most=int(swaps.spark.conf.get(TASKS) or 1))
    tries = 0
    while True:
        visibility = publisher.visibility(ends)
        try:
            publisher.claim(ends)
            applier(records, visibility, publisher.taken_in())
        except Exception as exc:
            tries += 1
            again = tries == 1 and not isinstance(exc, CdcError)
            if asides is not None:
                again, asides.containing = not asides.containing, True  # a store that is away fails the look, too
            swapped = swaps.look(now=True)
            if asides is not None:
                asides.containing = not swapped
            again = (again or swapped) and not (asides is not None and asides.over)
            if not again or tries == _TRIES:
                raise
        else:
            if asides is not None:
                asides.containing = True
            return visibility
