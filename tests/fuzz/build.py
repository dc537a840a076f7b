"""The compiled modules built aside, plain or under the compiler's sanitizers, and taken in the place of the installed.

AddressSanitizer says which byte was read or written outside of what it belongs to, UBSan what C leaves undefined. Both
stop the process: a finding is never passed over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
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
    Extension(name, [name.replace(".", "/") + ".pyx"], extra_compile_args=flags, extra_link_args=flags)
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


def sanitized() -> dict[str, str]:
    """What the environment of a process must have that uses them. Raises RuntimeError where gcc has no libasan."""
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=False).stdout
        if not Path(found.strip()).is_absolute():
            raise RuntimeError(f"gcc has no {name}: --sanitize needs gcc with its sanitizers")
        libraries.append(found.strip())
    return {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",  # the small objects of Python's own allocator have no guards around them
    }


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
