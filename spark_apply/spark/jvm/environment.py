"""Looks at what surrounds Spark before it is started, and says what of it Spark would fail of, with a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyspark

from cdc.dev.java import java, java_major, java_says
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.spark.paths import local

NEWEST_JAVA: Final = 23
"""Java 24 took away what Hadoop logs in with (``Subject.getSubject``, JEP 486)."""

_CONNECT: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_LOCALE: Final = ("LC_ALL", "LC_CTYPE", "LANG")


def require_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Raise OperatorError for a Java, a Spark or a mode of Spark that cannot be used."""
    for name in _CONNECT:
        if environment.get(name):
            msg = f"{name} is set, and the apply job needs a Spark of its own: Spark Connect cannot run it"
            raise OperatorError(msg, hint=f"unset {name}  # a cluster is named by spark: {{spark.master: …}}")
    if environment.get("SPARK_API_MODE", "classic").lower() == "connect":
        msg = "SPARK_API_MODE is connect, and the apply job needs a Spark of its own: Spark Connect cannot run it"
        raise OperatorError(msg, hint="unset SPARK_API_MODE  # a cluster is named by spark: {spark.master: …}")
    _require_spark_home(environment.get("SPARK_HOME"))
    folder = environment.get("SPARK_CONF_DIR")
    if folder and not Path(folder).is_dir():
        raise OperatorError(f"SPARK_CONF_DIR is {folder}, which is no folder", hint="unset SPARK_CONF_DIR")
    _require_java()


def _require_spark_home(home: str | None) -> None:
    if not home:
        return
    jars = Path(home) / "jars"
    there = sorted(jar.name for jar in jars.glob("spark-core_*.jar")) if jars.is_dir() else []
    if any(jar.endswith(f"-{pyspark.__version__}.jar") for jar in there):
        return
    what = f"has {there[0].removesuffix('.jar')}" if there else "has no Spark"
    msg = f"SPARK_HOME is {home}, which {what}; pyspark here is {pyspark.__version__}, and the two must be equal"
    raise OperatorError(msg, hint="unset SPARK_HOME  # pyspark has a Spark of its own")


def _require_java() -> None:
    program = java()
    major = java_major(java_says(program))
    if major is not None and major > NEWEST_JAVA:
        msg = f"Spark {pyspark.__version__} does not run on Java {major} ({program}); it does on Java 17 and 21"
        raise OperatorError(msg, hint="apt-get install openjdk-17-jre-headless  # and set JAVA_HOME to it")


def require_paths(places: Iterable[tuple[str, str]], environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError for a place on this machine that cannot be a folder; `places` by their key in the file."""
    for key, place in places:
        path = local(place)
        if path is None:
            continue
        there = next(each for each in (path, *path.parents) if os.path.lexists(each))
        if not there.is_dir():
            what = "a file" if there.exists() else "a link to nothing"
            raise ConfigError(f"{key}: {there} is {what}, and a folder is needed", hint=f"{key}: another path")
        if not str(path).isascii() and not _utf8(environment):
            msg = f"{key}: in the locale {_locale(environment) or 'C'}, Java cannot name {path}"
            raise ConfigError(msg, hint="export LC_ALL=C.UTF-8")


def _locale(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in _LOCALE if environment.get(name)), "")


def _utf8(environment: Mapping[str, str]) -> bool:
    return _locale(environment).lower().replace("-", "").split("@")[0].endswith("utf8")
