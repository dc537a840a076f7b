"""Whether what is optional is compiled on this machine: it needs a C compiler, and Python's headers."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path


def has_compiler() -> bool:
    command = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(command) is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()
