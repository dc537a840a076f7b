"""Reads a streaming query's checkpoint, on any file system that Spark can use, and tells one that is damaged.

<checkpoint>/metadata          the query's id
<checkpoint>/sources/0/0       the offsets that the first batch began at
<checkpoint>/offsets/<batch>   written before a batch runs: "v1", metadata, then each source's end offsets as JSON
<checkpoint>/commits/<batch>   written after it
<checkpoint>/cdc-copies.json   ours: the identities of the copies that it is of
<checkpoint>/cdc-job           ours: the name of the job, under which its quarantine is
<checkpoint>/cdc-topics.json   ours: which topics these are offsets of (`spark_apply.job.topics.identity`)
<checkpoint>/cdc-begun         ours: a number, the highest of which the checkpoint has that a job has begun with last

Spark goes on from some damages in silence: without ``commits`` it takes the last batch for one that was not applied,
and the one before it for the beginning. So all that it would read is looked at before a query starts. A checkpoint is
never worth more than the time to read the topics again: the stores know by position what they have.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from cdc.model.errors import OperatorError
from spark_apply.job.checkpoint.reading import DamageError, Disk, Files, Hadoop
from spark_apply.model.completeness import Ends

Identities = Mapping[str, Mapping[str, str]]
"""The identities of copies, by table, then by store."""

_COPIES = "cdc-copies.json"
_JOB = "cdc-job"
_BEGUN = "cdc-begun"
_VERSION = "v1"
_FIRST_SOURCE = 2
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
_TOPICS: Final = "cdc-topics.json"
_NAME: Final = re.compile(r"[0-9a-f]{16}")

AGAIN: Final = (
    "cdc apply APPLY.yaml --reset-checkpoint  # the topics are read again from their beginning, and no row is lost"
)
"""The way out of a checkpoint that cannot be used."""

_Found = TypeVar("_Found")


def prepare(spark: SparkSession, checkpoint: str) -> None:
    """Have Spark write a checkpoint on this machine's disk without starting a process for each file.

    Spark's default, Hadoop's FileContext, runs `readlink` about twenty times a batch. The guarantee is the same: both
    check whether the file exists, then rename. A manager that the session was given is kept.
    """
    _, files, _ = _opened(spark, checkpoint)
    if files.getScheme() == "file" and spark.conf.get(_MANAGER, None) is None:
        spark.conf.set(_MANAGER, _BY_FILE_SYSTEM)


def ends_of(spark: SparkSession, checkpoint: str, batch: int) -> Ends:
    """Return a batch's end offsets: all records below them are in this batch or in an earlier one."""
    return _judged(Hadoop(spark), f"{checkpoint}/offsets/{batch}", _ends)


def is_committed(spark: SparkSession, checkpoint: str, batch: int) -> bool:
    """Whether Spark has noted that a batch was applied."""
    return Hadoop(spark).there(f"{checkpoint}/commits/{batch}")


def ends_committed(spark: SparkSession | None, checkpoint: str) -> Ends | None:
    """Return the end offsets of the last batch that was applied; None if there is none.

    Raises OperatorError, which names the file, if Spark could not go on from the checkpoint, or would go on wrongly.
    Without `spark` it is read on this machine's disk.
    """
    files = _files(spark)
    begun, done = _batches(files, f"{checkpoint}/offsets"), _batches(files, f"{checkpoint}/commits")
    if begun or done or files.there(f"{checkpoint}/metadata"):
        _judged(files, f"{checkpoint}/metadata", _query_id)
    last, applied = max(begun, default=-1), max(done, default=-1)
    if applied > last:
        raise _damaged(f"{checkpoint}/offsets/{applied}", "it is missing")
    if applied < last - 1:
        raise _damaged(f"{checkpoint}/commits/{last - 1}", "it is missing")
    for batch in range(max(last - 1, 0), last + 1):
        _judged(files, f"{checkpoint}/offsets/{batch}", _ends)
    if applied >= 0:
        _judged(files, f"{checkpoint}/commits/{applied}", _commit)
        return _judged(files, f"{checkpoint}/offsets/{applied}", _ends)
    if files.there(f"{checkpoint}/sources/0/0"):
        _judged(files, f"{checkpoint}/sources/0/0", _first_offsets)
    return None


def began_at(spark: SparkSession | None, checkpoint: str) -> Ends | None:
    """Return from where on a query reads that was killed in its first batch; None: not even that was written.

    Raises OperatorError, as `ends_committed` does, which is asked first.
    """
    files, place = _files(spark), f"{checkpoint}/sources/0/0"
    return _judged(files, place, _first_offsets) if files.there(place) else None


def first_began_at(spark: SparkSession | None, place: str) -> Ends:
    """Return from where on topics were read first, by any of the checkpoints in a folder that a job has begun with."""
    files, found = _files(spark), dict[str, Mapping[int, int]]()
    for name in filter(_NAME.fullmatch, _noted(files, place)):
        for topic, of in (began_at(spark, f"{place}/{name}") or {}).items():
            known = found.get(topic, {})
            found[topic] = {number: min(at, known.get(number, at)) for number, at in of.items()}
    return found


def noted_topics(spark: SparkSession | None, checkpoint: str) -> dict[str, tuple[str, int]]:
    """Return the identities and partition counts of the topics that the offsets are of; empty if nothing is noted."""
    files, place = _files(spark), f"{checkpoint}/{_TOPICS}"
    return _judged(files, place, _topics) if files.there(place) else {}


def note_topics(spark: SparkSession, checkpoint: str, topics: Mapping[str, tuple[str, int]]) -> None:
    """Note what the topics are that the offsets will be of."""
    _, files, path = _opened(spark, f"{checkpoint}/{_TOPICS}")
    _, _, new = _opened(spark, f"{checkpoint}/{_TOPICS}.new")
    about = {name: {"id": identity, "partitions": count} for name, (identity, count) in sorted(topics.items())}
    stream = files.create(new, True)  # noqa: FBT003 - overwrites what a crash has left
    try:
        stream.write(bytearray(json.dumps(about).encode()))
    finally:
        stream.close()
    files.delete(path, False)  # noqa: FBT003 - one file; a rename does not replace everywhere
    if not files.rename(new, path):
        raise OperatorError(f"{path} cannot be written", hint="may this user write there?")


def set_aside(spark: SparkSession, checkpoint: str) -> str | None:
    """Rename a checkpoint, so that the topics are read from their beginning; return its new name; None: none there."""
    _, files, path = _opened(spark, checkpoint)
    if not files.exists(path):
        return None
    aside = f"{checkpoint}-set-aside-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}"
    _, _, new = _opened(spark, aside)
    if not files.rename(path, new):
        raise OperatorError(f"checkpoint {checkpoint} cannot be renamed to {aside}", hint="may this user write there?")
    return aside


def _files(spark: SparkSession | None) -> Files:
    return Disk() if spark is None else Hadoop(spark)


def _judged(files: Files, place: str, read: Callable[[str], _Found]) -> _Found:
    """Read a file. Raises OperatorError, which names it, if it is missing or damaged."""
    try:
        text = files.text(place)
    except DamageError as exc:
        raise _damaged(place, str(exc)) from exc
    if not text.strip("\0\n "):
        raise _damaged(place, "it is empty")
    try:
        return read(text)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise _damaged(place, "it is not whole") from exc


def _damaged(place: str, what: str) -> OperatorError:
    return OperatorError(f"the checkpoint is damaged: {place}: {what}", hint=AGAIN)


def _query_id(text: str) -> str:
    return str(json.loads(text)["id"])


def _ends(text: str) -> Ends:
    lines = _versioned(text)
    json.loads(lines[1])
    return _by_partition(lines[_FIRST_SOURCE])


def _commit(text: str) -> None:
    json.loads(_versioned(text)[1])


def _first_offsets(text: str) -> Ends:
    return _by_partition(_versioned(text.lstrip("\0"))[1])


def _topics(text: str) -> dict[str, tuple[str, int]]:
    return {name: (str(about["id"]), int(about["partitions"])) for name, about in json.loads(text).items()}


def _versioned(text: str) -> list[str]:
    lines = text.splitlines()
    if lines[0] != _VERSION:
        raise ValueError(lines[0])
    return lines


def _by_partition(line: str) -> Ends:
    return {topic: {int(number): int(end) for number, end in ends.items()} for topic, ends in json.loads(line).items()}


def _batches(files: Files, folder: str) -> list[int]:
    return [int(name) for name in files.names(folder) if name.isdigit()]


def note_copies(spark: SparkSession, checkpoint: str, identities: Identities) -> None:
    """Write into a checkpoint which copies it is of, and that it is the newest one now: a later start looks there."""
    _, files, path = _opened(spark, f"{checkpoint}/{_COPIES}")
    if _copies_in(Hadoop(spark), f"{checkpoint}/{_COPIES}") is None:
        _write(files, path, json.dumps(identities, sort_keys=True))
    place, _, name = checkpoint.rpartition("/")
    there = [other for other in Hadoop(spark).names(place) if _NAME.fullmatch(other)]
    begun = {other: _begun(Hadoop(spark), f"{place}/{other}") for other in there}
    others = max((number for other, number in begun.items() if other != name), default=0)
    if begun.get(name, 0) <= others:
        _, files, path = _opened(spark, f"{checkpoint}/{_BEGUN}")
        _write(files, path, f"{others + 1}")


def noted_job(spark: SparkSession | None, checkpoint: str) -> str | None:
    """Return the name of the job that has begun with a checkpoint last; None if it is not known.

    Without `spark` it is read on this machine's disk.
    """
    files, place = _files(spark), f"{checkpoint}/{_JOB}"
    return _judged(files, place, str.strip) if files.there(place) else None


def note_job(spark: SparkSession, checkpoint: str, name: str) -> None:
    """Note the name of the job that begins with a checkpoint."""
    _, files, path = _opened(spark, f"{checkpoint}/{_JOB}")
    _write(files, path, name)


def copies_of(spark: SparkSession, checkpoint: str) -> Identities:
    """Return the copies that a checkpoint is of."""
    return _judged(Hadoop(spark), f"{checkpoint}/{_COPIES}", json.loads)


def is_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a checkpoint has a batch that was applied."""
    return Hadoop(spark).there(f"{checkpoint}/commits")


def noted_copies(spark: SparkSession, place: str) -> list[Identities]:
    """Return the copies of all checkpoints in a folder, those of the newest one first; what is damaged says nothing."""
    files = Hadoop(spark)
    ordered = sorted(_noted(files, place), key=lambda name: _age(files, f"{place}/{name}"), reverse=True)
    found = [_copies_in(files, f"{place}/{name}/{_COPIES}") for name in ordered]
    return [of for of in found if of is not None]


def _copies_in(files: Files, place: str) -> Identities | None:
    """Read which copies a checkpoint is of; None where a full disk or a loss of power has left no whole file."""
    try:
        found: Identities = json.loads(files.text(place))
    except (DamageError, ValueError):
        return None
    return found


def _noted(files: Files, place: str) -> list[str]:
    """Return the checkpoints in a folder that say which copies they are of."""
    return [name for name in files.names(place) if files.there(f"{place}/{name}/{_COPIES}")]


def _age(files: Files, checkpoint: str) -> tuple[int, int]:
    """Return what orders checkpoints by what they hold: copying and restoring give files other times.

    Those of earlier releases have no number, and are ordered by the time of their last batch, as Spark has written it.
    """
    last = max(_batches(files, f"{checkpoint}/offsets"), default=-1)
    try:
        about = json.loads(_versioned(files.text(f"{checkpoint}/offsets/{last}"))[1]) if last >= 0 else {}
        at_ms = int(about.get("batchTimestampMs", 0))
    except (DamageError, ValueError, IndexError, TypeError, AttributeError):
        at_ms = 0  # a start that goes on from it says what is damaged
    return _begun(files, checkpoint), at_ms


def _begun(files: Files, checkpoint: str) -> int:
    """Return the number that a checkpoint was given when a job began with it; 0: none, or it cannot be read."""
    place = f"{checkpoint}/{_BEGUN}"
    try:
        return int(files.text(place)) if files.there(place) else 0
    except (DamageError, ValueError):
        return 0


def newest(spark: SparkSession | None, place: str) -> tuple[str, Identities] | None:
    """Return the checkpoint in a folder that a job has begun with last, and its copies; those set aside do not count.

    Without `spark` it is read on this machine's disk.
    """
    files = _files(spark)
    found = [n for n in _noted(files, place) if _NAME.fullmatch(n) and files.there(f"{place}/{n}/commits")]
    if not found:
        return None
    checkpoint = max((f"{place}/{name}" for name in found), key=lambda each: _age(files, each))
    return checkpoint, _judged(files, f"{checkpoint}/{_COPIES}", json.loads)


def with_ends(spark: SparkSession, checkpoint: str, ends: Ends, stamp: str) -> str:
    """Give a checkpoint other end offsets, as those of its last batch; return the name of the one as it was.

    It is made beside, whole, and renamed then.
    """
    jvm, files, path = _opened(spark, checkpoint)
    beside, aside = f"{checkpoint}-imported-{stamp}", f"{checkpoint}-set-aside-{stamp}"
    conf = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - the same
    new = jvm.org.apache.hadoop.fs.Path(beside)
    jvm.org.apache.hadoop.fs.FileUtil.copy(files, path, files, new, False, conf)  # noqa: FBT003 - Java's
    last = max(_batches(Hadoop(spark), f"{beside}/commits"))
    for batch in _batches(Hadoop(spark), f"{beside}/offsets"):
        if batch > last:
            files.delete(jvm.org.apache.hadoop.fs.Path(f"{beside}/offsets/{batch}"), False)  # noqa: FBT003 - Java's
    place = f"{beside}/offsets/{last}"
    lines = _judged(Hadoop(spark), place, _versioned)
    by_topic = {topic: {str(number): end for number, end in of.items()} for topic, of in ends.items()}
    _write(files, jvm.org.apache.hadoop.fs.Path(place), "\n".join([*lines[:_FIRST_SOURCE], json.dumps(by_topic)]))
    for one, other in ((checkpoint, aside), (beside, checkpoint)):
        was, is_now = jvm.org.apache.hadoop.fs.Path(one), jvm.org.apache.hadoop.fs.Path(other)
        if not files.rename(was, is_now):
            raise OperatorError(f"checkpoint {one} cannot be renamed to {other}", hint="may this user write there?")
    return aside


def _write(files: Any, path: Any, text: str) -> None:  # noqa: ANN401 - Java's
    stream = files.create(path, True)  # noqa: FBT003 - Java's
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _opened(spark: SparkSession, folder: str) -> tuple[Any, Any, Any]:
    return Hadoop(spark).opened(folder)
