"""Names of Java are asked for once; what may still change is asked for each time."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaPackage, JVMView

from spark_apply.spark.jvm.java_names import remember_names


class Jvm:
    """A JVM with some classes, each with a static method `of` and a static field `N`; it counts what it is asked."""

    def __init__(self, *classes: str) -> None:
        self.classes = set(classes)
        self.asked: list[str] = []
        self.gateway_property = type("Property", (), {"pool": None})()
        self.converters: list[Any] = []
        self.number = 0

    def send_command(self, command: str) -> str:
        _, kind, name, member, *_ = command.split("\n")
        if kind == "u":
            self.asked.append(name)
            return f"yc{name}" if name in self.classes else "yp"
        self.asked.append(f"{name}.{member}")
        self.number += 1
        return "ym" if member == "of" else f"yi{self.number}"


def _view(jvm: Jvm) -> Any:
    view = JVMView(jvm, "view", id="j")
    remember_names(view)
    return view


def test_packages_classes_and_methods_are_asked_for_once() -> None:
    jvm = Jvm("org.acme.Log", "org.acme.functions")
    view = _view(jvm)
    for _ in range(3):
        assert view.org.acme.Log.of.name == "of"
        assert isinstance(getattr(view, "org.acme.functions"), JavaClass)
    assert jvm.asked == ["org", "org.acme", "org.acme.Log", "org.acme.Log.of", "org.acme.functions"]


def test_values_and_classes_that_a_jar_may_bring_are_asked_for_each_time() -> None:
    jvm = Jvm("org.acme.Log")
    view = _view(jvm)
    assert [view.org.acme.Log.N, view.org.acme.Log.N] == [1, 2]
    assert isinstance(view.org.acme.Later, JavaPackage)
    jvm.classes.add("org.acme.Later")
    assert isinstance(view.org.acme.Later, JavaClass)


def test_views_remember_for_themselves() -> None:
    one, other = Jvm("Log"), Jvm()
    assert isinstance(_view(one).Log, JavaClass)
    assert isinstance(_view(other).Log, JavaPackage)
    plain = JVMView(one, "plain", id="k")
    assert plain.Log is not plain.Log
    assert one.asked == ["Log", "Log", "Log"]
