"""A real Chromium for tests: Debian's, unpacked into the cache, started through Playwright with its own loader.

Chromium starts its other processes by the program that it runs as, and looks for its files beside that program. As it
is run by its own loader, that is the loader: so a copy of the loader stands beside it, and a script starts the others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from cdc.dev.debs import Package, fetch
from cdc.dev.jars import locked
from cdc.model.errors import OperatorError

CHROMIUM: Final = Package("chromium-headless-shell", "trixie")
_PROGRAM: Final = "usr/lib/chromium/chromium-headless-shell"


def program() -> Path:
    """The script that starts it; everything is fetched and made once. Raises OperatorError."""
    root = fetch(CHROMIUM).root
    folder = (root / _PROGRAM).parent
    script = folder / "start"
    with locked(root.with_name(f".{root.name}.start.lock")):
        if not script.exists():
            loaders = sorted(root.glob("usr/lib/*/ld-linux*.so.*"))
            if not loaders or not (root / _PROGRAM).exists():
                raise OperatorError(f"{root} has no {_PROGRAM} that could be run", hint=f"ls {root}")
            shutil.copy2(loaders[0], folder / "loader")
            places = {path.parent for top in ("lib", "usr/lib") for path in root.glob(f"{top}/**/lib*.so*")}
            search = ":".join(str(place) for place in sorted(places))
            (folder / "fonts.conf").write_text(
                f"<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>"
            )
            made = folder / "start.new"
            made.write_text(
                f'#!/bin/sh\nexec "{folder}/loader" --argv0 "$0" --library-path "{search}" "{root / _PROGRAM}" "$@"\n'
            )
            made.chmod(0o755)
            made.rename(script)
    return script


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it, without a screen."""
    start = program()
    flags = ["--no-zygote", f"--browser-subprocess-path={start}", "--disable-gpu", "--force-device-scale-factor=1"]
    environment = {**os.environ, "FONTCONFIG_FILE": str(start.with_name("fonts.conf"))}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=start, args=flags, chromium_sandbox=False, env=dict(environment)
        )
        try:
            yield browser
        finally:
            browser.close()
