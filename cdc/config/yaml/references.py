"""References in values of a file: ``${NAME}`` (or ``${env:NAME}``), ``${NAME:-default}``, ``${file:/path}``.

They are replaced after parsing: what a variable holds is never read as YAML, and no error repeats it.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cdc.model.errors import ConfigError

ELSEWHERE: Final = "a-reference-that-is-resolved-elsewhere"
"""Stands for what a reference holds on another machine; as long as a secret must be."""
_REFERENCE: Final = re.compile(r"\$?\$\{([^}]*)(\}?)")
_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{).)*))?", re.DOTALL)
_LOGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:\$\{[^}]*\}|[^/?#@$]|\$(?!\{))*@")
"""A URL up to its host, as it is written. What references hold may have any character."""
_WITHOUT_BRACES: Final = re.compile(r"(?:^|(?<=[/:@,]))\$([A-Za-z]\w*)(?=$|[/:@,?])")
"""What a shell would replace: a whole value, or a whole part of an address."""
_PER_CENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HINT: Final = "write ${NAME}, ${NAME:-default} or ${file:/path}; $${…} is the text ${…}"
_AS_IT_IS: Final = "%:!$&'()*+,;="
"""What a user or a password in a URL has as it is: % may have been encoded already, : may stand between the two."""


def expand(value: str) -> str:
    """Replace the references in one string value; ``$${NAME}`` stays as ``${NAME}``. Raises ConfigError.

    A user or a password that a reference puts into a URL is percent-encoded, but for what may have been so already.
    """
    for bare in _WITHOUT_BRACES.findall(value):
        if bare in os.environ:
            hint = f"write ${{{bare}}}; where the text ${bare} itself is meant, put it into a file: ${{file:/path}}"
            raise ConfigError(f"${bare} is not a reference", hint=hint)
    login = _LOGIN.match(value)
    if login is None:
        return _REFERENCE.sub(_held, value)
    encoded = _REFERENCE.sub(lambda match: quote(_PER_CENT.sub("%25", _held(match)), safe=_AS_IT_IS), login.group())
    return encoded + _REFERENCE.sub(_held, value[login.end() :])


def _held(match: re.Match[str]) -> str:
    if match.group().startswith("$$"):
        return match.group()[1:]
    inner, end = match.groups()
    if not end:
        raise ConfigError("a reference that begins with ${ has no }", hint=_HINT)
    if inner.startswith("file:"):
        return _secret_file(Path(inner.removeprefix("file:")))
    variable = _VARIABLE.fullmatch(inner.removeprefix("env:"))
    if variable is None:
        raise ConfigError(f"${{{inner}}} is not a reference", hint=_HINT)
    name, default = variable.groups()
    found = os.environ.get(name)
    if default is not None:
        return _without_end(found or "") or default
    if found is None:
        raise ConfigError(f"environment variable {name} is not set", hint=f"export {name}=…")
    return _without_end(found)


def _secret_file(path: Path) -> str:
    try:
        held = _without_end(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        if not isinstance(exc, (OSError, UnicodeDecodeError)):
            reason = "no file has such a name"
        raise ConfigError(
            f"${{file:{path}}} cannot be read: {reason}",
            hint=f"ls -l {shlex.quote(str(path))}"
            if path.is_absolute()
            else f"it is looked for in {Path.cwd()}: write its whole path",
        ) from exc
    if not held:
        raise ConfigError(f"${{file:{path}}} is empty", hint="write the secret into it, and start again")
    return held


def _without_end(held: str) -> str:
    """Leave out the line ends that ``echo`` writes, into a file or into a secret of Kubernetes."""
    return held.rstrip("\r\n")
