"""Says that another hand has altered a copy while a job writes it: it is opened again, and goes on from what it has."""

from __future__ import annotations

from cdc.model.errors import RetryableError


class AlteredError(RetryableError):
    """Another hand has altered a copy: that concerns the one copy, until it is opened again."""


def retyped(copy: str) -> AlteredError:
    """Return the error of a copy whose columns another hand has dropped or narrowed while a job writes it."""
    msg = f"{copy} has other columns than the job gave it: another hand has altered it while the job runs"
    return AlteredError(msg, hint="nothing has to be done: the job gives it back what can be given back in place")


def put_back(copy: str) -> AlteredError:
    """Return the error of a copy that is in an earlier state than a job has seen, as after a rollback."""
    msg = f"{copy} was put back to an earlier state while the job runs"
    return AlteredError(msg, hint="nothing has to be done: what that state does not have is read again")
