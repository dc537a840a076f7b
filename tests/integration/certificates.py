"""A certificate authority for one test, by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """`ca` is its certificate's file."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir(parents=True)
        self._folder = folder
        self.ca, self._key = folder / "ca.pem", folder / "ca.key"
        self._openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.ca, "-subj", "/CN=test", "-days", "2")

    def certificate(self, host: str) -> Path:
        """Key and certificate of a host, in one file."""
        key, request, extension, made = (self._folder / f"{host}.{end}" for end in ("key", "csr", "ext", "crt"))
        extension.write_text(f"subjectAltName=DNS:{host}\n")
        self._openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={host}")
        signed = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-days", "2", "-extfile", extension)
        self._openssl("x509", "-req", "-in", request, *signed, "-out", made)
        both = self._folder / f"{host}.pem"
        both.write_text(key.read_text() + made.read_text())
        return both

    @staticmethod
    def _openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
