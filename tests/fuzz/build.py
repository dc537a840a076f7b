"""The compiled modules built aside, plain or under the compiler's sanitizers, and taken in the place of the installed.

AddressSanitizer says which byte was read or written outside of what it belongs to, UBSan what C leaves undefined. Both
stop the process: a finding is never passed over. The modules are not linked with the sanitizers' runtime. It is loaded
before Python is: that of atheris, where atheris guides, because it counts what was reached as well, and else gcc's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SANITIZE: Final = (
    "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer",
)  # fmt: skip
SUFFIX: Final = sysconfig.get_config_var("EXT_SUFFIX")

BUILD: Final = """
import sys
from Cython.Build import cythonize
from setuptools import Distribution, Extension
folder, flags, modules = sys.argv[1], sys.argv[2].split(), sys.argv[3:]
extensions = [
    Extension(name, [name.replace(".", "/") + ".pyx"], extra_compile_args=flags)
    for name in modules
]
made = cythonize(extensions, build_dir=folder + "/c", quiet=True)
command = Distribution({"ext_modules": made}).get_command_obj("build_ext")
command.build_lib, command.build_temp = folder, folder + "/o"
command.ensure_finalized()
command.run()
"""


def modules() -> list[str]:
    """Their names, as pyproject.toml has them."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [module["name"] for module in described["tool"]["setuptools"]["ext-modules"]]


def build(folder: Path, flags: Sequence[str] = SANITIZE) -> None:
    """Compile all of them into `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder), " ".join(flags), *modules()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the compiled modules could not be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    if flags is SANITIZE:
        for file in folder.rglob(f"*{SUFFIX}"):
            if b"__asan_report" not in file.read_bytes():
                raise RuntimeError(f"{file.name} was built without AddressSanitizer")


def sanitized(*, guided: bool) -> dict[str, str]:
    """What the environment of a process must have that uses them. Raises RuntimeError where there is no runtime."""
    return {
        "LD_PRELOAD": " ".join(map(str, [_of_atheris()] if guided else _of_gcc())),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",  # the small objects of Python's own allocator have no guards around them
    }


def has_sanitizers() -> bool:
    """Whether gcc is here with the runtime of both."""
    try:
        return len(_of_gcc()) == len(_RUNTIME)
    except (RuntimeError, OSError):
        return False


_RUNTIME: Final = ("libasan.so", "libubsan.so")


def _of_gcc() -> list[Path]:
    found = []
    for name in _RUNTIME:
        said = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=False).stdout
        if not Path(said.strip()).is_absolute():
            raise RuntimeError(f"gcc has no {name}: --sanitize needs gcc with its sanitizers")
        found.append(Path(said.strip()))
    return found


def _of_atheris() -> Path:
    found = find_spec("atheris")
    runtime = Path(str(found and found.origin)).parents[1] / "asan_with_fuzzer.so"
    if not runtime.exists():
        raise RuntimeError("atheris has no runtime of AddressSanitizer with it: --sanitize needs it, or --plain")
    return runtime


class _Finder:
    """Finds the modules of one folder, before all others are asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        file = self._folder.joinpath(*name.split(".")).with_suffix(SUFFIX)
        return spec_from_file_location(name, file) if file.exists() else None


def take(folder: Path) -> list[ModuleType]:
    """Import the modules that were built into `folder`, before anybody imports the others."""
    sys.meta_path.insert(0, _Finder(folder))  # type: ignore[arg-type]
    found = [__import__(name, fromlist=["_"]) for name in modules()]
    for module in found:
        if not Path(str(module.__file__)).is_relative_to(folder):
            raise RuntimeError(f"{module.__name__} was imported from elsewhere: {module.__file__}")
    return found


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "CDC_PURE"}
