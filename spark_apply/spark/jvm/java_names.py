"""Remembers what names of Java mean, for which py4j asks the JVM each time that one is read.

``jvm.org.apache.spark.sql.delta.DeltaLog`` asks six times, and for each of the five packages the JVM looks through some
300 jars for a class of that name before it says that there is none. PySpark does the same for each column. What a
package, a class or a static method is called does not change while a JVM lives, so the first answer is kept, in the
view, package or class that was asked. The values of static fields are not kept, nor is a name that is not there and
looks like a class, which a jar that is added later may have.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from py4j.protocol import Py4JJavaError


class _View(JVMView):  # type: ignore[misc]  # py4j has no types
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - py4j's
        return _keep(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]  # the same
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - py4j's
        return _keep(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]  # the same
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - py4j's
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


_KEPT: Final = {JVMView: _View, JavaPackage: _Package, JavaClass: _Class}


def remember_names(jvm: Any) -> None:  # noqa: ANN401 - py4j's view of the JVM
    """Let this view ask for each name once."""
    jvm.__class__ = _KEPT[JVMView]


def _keep(place: Any, name: str, found: Any) -> Any:  # noqa: ANN401 - the same
    if isinstance(found, JavaPackage) and not name.rpartition(".")[2].islower():
        return found
    found.__class__ = _KEPT.get(type(found), type(found))
    place.__dict__[name] = found
    return found


def has_class(jvm: Any, name: str) -> bool:  # noqa: ANN401 - py4j's view of the JVM
    """Whether a class is on the class path, or in a jar that was added."""
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True
