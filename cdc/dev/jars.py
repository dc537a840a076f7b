"""Java programs are fetched once into a cache by their Maven coordinates, with the Ivy that ships inside pyspark.

    <cache>/jars/<name>-<hash of the coordinates>/*.jar     complete or absent
    <cache>/ivy/                                            Ivy's own downloads

``$CDC_CACHE`` moves the cache. ``$CDC_IVY_SETTINGS`` names an Ivy settings file for a site with a mirror of its own;
without one, Ivy's built-in settings know where to look.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from cdc.dev.java import java
from cdc.model.errors import CdcError, OperatorError

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA = (
    "org.apache.kafka:kafka_2.13:4.1.0",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",  # without it the broker's log is silence
)
OPENSEARCH = (
    "org.opensearch:opensearch:2.19.1",
    "org.opensearch:opensearch-plugin-classloader:2.19.1",
    "org.apache.logging.log4j:log4j-core:2.21.0",
)
REGISTRY = ("io.apicurio:apicurio-registry-app:2.6.13.Final:all@tar.gz",)
REGISTRY_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
OPENSEARCH_TRANSPORT = ("org.opensearch.plugin:transport-netty4-client:2.19.1",)

SPARK = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    "org.apache.spark:spark-avro_2.13:4.0.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    "io.delta:delta-spark_2.13:4.0.0",
)
"""Versions that resolve together and run together with pyspark 4.0.0: change them together."""

_log = logging.getLogger(__name__)
_LINES_SHOWN = 15


def cache_folder() -> Path:
    """Where downloads are kept between runs and projects."""
    if chosen := os.environ.get("CDC_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdc-toolkit"


def fetch(name: str, coordinates: tuple[str, ...], *, transitive: bool = True) -> tuple[Path, ...]:
    """Fetch the jars of these ``group:artifact:version`` and all they need, sorted; from the cache if there."""
    return tuple(sorted(folder_of(name, coordinates, transitive=transitive).glob("*.jar")))


def folder_of(name: str, coordinates: tuple[str, ...], *, transitive: bool = True) -> Path:
    """Fetch as `fetch` does and return the folder: for what is no jar, ``group:artifact:version:part@extension``."""
    digest = hashlib.sha256(repr((coordinates, transitive)).encode()).hexdigest()[:12]
    cache = cache_folder()
    folder = cache / "jars" / f"{name}-{digest}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(cache / "lock"):
            if not folder.exists():
                _log.info("fetching the jars of %s, once", name)
                _retrieve(name, coordinates, transitive=transitive, cache=cache, target=folder)
    return folder


def unpacked(name: str, coordinates: tuple[str, ...], *, sha256: str) -> Path:
    """Fetch an archive and unpack it in the cache. Raises OperatorError for another one than that of the hash."""
    folder = folder_of(name, coordinates, transitive=False)
    program = folder / "program"
    if not program.exists():
        (archive,) = folder.glob("*.tar.gz")
        with locked(cache_folder() / "lock"):
            if not program.exists():
                _unpack(archive, program, sha256)
    return program


def _unpack(archive: Path, program: Path, sha256: str) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise OperatorError(
            f"{archive.name} is not the archive that was tried: its SHA-256 is {found}",
            hint=f"where did it come from? Without {archive} it is fetched again",
        )
    with tempfile.TemporaryDirectory(prefix=".program-", dir=archive.parent) as scratch:
        unfinished = Path(scratch) / "program"
        with tarfile.open(archive) as packed:
            packed.extractall(unfinished, filter="data")
        unfinished.rename(program)


def class_path(name: str, coordinates: tuple[str, ...]) -> str:
    """Make Java's ``-cp`` of all these jars; Java itself expands the star, so that ``ps`` stays readable."""
    return str(fetch(name, coordinates)[0].parent / "*")


def _retrieve(name: str, coordinates: tuple[str, ...], *, transitive: bool, cache: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        unfinished = Path(scratch) / "jars"
        unfinished.mkdir()
        (Path(scratch) / "ivy.xml").write_text(_module(coordinates, transitive=transitive))
        settings = os.environ.get("CDC_IVY_SETTINGS")
        done = subprocess.run(
            [
                *(java(), "-cp", _ivy_jar(), "org.apache.ivy.Main"),
                *(("-settings", settings) if settings else ()),
                *("-cache", cache / "ivy", "-ivy", Path(scratch) / "ivy.xml", "-confs", "default"),
                *("-retrieve", f"{unfinished}/[artifact]-[revision](-[classifier]).[ext]"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if "::" in line or "WARN" in line or "ERROR" in line]
            shown = "\n".join(f"  | {line.strip()}" for line in [*lines, *done.stderr.splitlines()][-_LINES_SHOWN:])
            msg = f"the jars of {name} could not be fetched ({', '.join(coordinates)}):\n{shown}"
            raise OperatorError(msg, hint="check the network; a mirror's settings go into $CDC_IVY_SETTINGS")
        unfinished.rename(target)


def _module(coordinates: tuple[str, ...], *, transitive: bool) -> str:
    wanted = "".join(_dependency(*each.split(":"), transitive=transitive) for each in coordinates)
    about = '<info organisation="cdc" module="dev"/>'
    names = 'xmlns:m="http://ant.apache.org/ivy/maven"'
    return f'<ivy-module version="2.0" {names}>{about}<dependencies>{wanted}</dependencies></ivy-module>'


def _dependency(group: str, artifact: str, version: str, part: str = "", *, transitive: bool) -> str:
    """Write a dependency; `part` names one of its files, as ``classifier@extension``."""
    classifier, _, extension = part.partition("@")
    name, kind = quoteattr(artifact), quoteattr(extension)
    file = f"<artifact name={name} type={kind} ext={kind} m:classifier={quoteattr(classifier)}/>"
    return (
        f"<dependency org={quoteattr(group)} name={name} rev={quoteattr(version)}"
        f' conf="default->{"master" if part else "default"}" transitive="{str(transitive).lower()}">'
        f"{file if part else ''}</dependency>"
    )


def _pyspark_jars() -> list[Path]:
    package = importlib.util.find_spec("pyspark")  # found, not imported: that takes a second
    return sorted((Path(package.origin).parent / "jars").glob("*.jar")) if package and package.origin else []


def _ivy_jar() -> Path:
    jars = [jar for jar in _pyspark_jars() if jar.name.startswith("ivy-")]
    if not jars:
        msg = "pyspark is not installed; the Ivy inside it fetches the servers' jars"
        raise OperatorError(msg, hint="pip install 'cdc-toolkit[dev]'")
    return jars[-1]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let in one process at a time; the kernel releases the lock of a killed one."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def of_spark() -> list[Path]:
    """Fetch the jars that the apply job needs besides those of pyspark."""
    shipped = {jar.name for jar in _pyspark_jars()}
    return [jar for jar in fetch("spark", SPARK) if jar.name not in shipped]


def fetch_all() -> None:
    """Fetch everything that any part may need, so that nothing is downloaded later: ``python -m cdc.dev.jars``."""
    fetch("kafka", KAFKA)
    fetch("spark", SPARK)
    fetch("opensearch", OPENSEARCH)
    fetch("opensearch-transport", OPENSEARCH_TRANSPORT)
    folder_of("registry", REGISTRY, transitive=False)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if sys.argv[1:] == ["spark"]:  # as spark-submit's --jars wants them
            sys.stdout.write(",".join(map(str, of_spark())) + "\n")
        else:
            fetch_all()
    except CdcError as error:
        sys.exit(f"error: {error}")
