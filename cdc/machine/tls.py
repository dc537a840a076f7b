"""Tells a TLS handshake that was cut, which passes, from one that was refused, which needs somebody."""

from __future__ import annotations

import re
import ssl
from typing import Final

_CUT: Final = re.compile(
    r"unexpected eof|eof occurred|eof detected|syscall|connection (has been )?(closed|reset|aborted)|broken pipe"
    r"|timed? ?out|alert internal error|alert user cancel|close notify|disconnected"
)
"""What clients say when a peer or something between has hung up; a refusal names a certificate, a version, a cipher."""
_REFUSED: Final = re.compile(r"certificate|self[- ]signed|unknown ca\b")
_NAMES: Final = re.compile(r'"[^"]*"|\w+://\S+')
"""Names and addresses of servers, which may have such words in them."""


def was_cut(exc: BaseException) -> bool:
    """Whether a handshake failed since the connection ended, and not since one side refused the other."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return False
    if isinstance(exc, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError)):
        return True
    return not isinstance(exc, ssl.SSLError) or says_cut(str(getattr(exc, "reason", None) or exc))


def says_cut(words: str) -> bool:
    """Whether a client's words say that the connection ended during a handshake."""
    plain = _NAMES.sub("", words).replace("_", " ").lower()
    return _CUT.search(plain) is not None and _REFUSED.search(plain) is None
