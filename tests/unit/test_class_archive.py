"""The archive of Spark's classes is used if it exists, and named by the Java and the jars that it belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_apply.spark import session
from spark_apply.spark.jvm import class_archive


def test_an_archive_is_named_to_the_jvm_only_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with a space"
    monkeypatch.setattr(class_archive, "cache_folder", lambda: folder)
    assert "SharedArchiveFile" not in class_archive.options()
    archive = class_archive.archive()
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f'"-XX:SharedArchiveFile={archive}"' in class_archive.options()
    assert session.class_options is class_archive.options


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for release in ("17.0.14", "17.0.15"):
        home = tmp_path / release
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch()
        (home / "release").write_text(f'JAVA_VERSION="{release}"')
        monkeypatch.setattr(class_archive, "java", lambda home=home: home / "bin" / "java")
        names.add(class_archive.archive().name)
    assert len(names) == 2
