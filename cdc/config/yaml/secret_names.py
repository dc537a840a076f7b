"""Tells by its name alone whether what a file or a connection says there is a secret. Pure."""

from __future__ import annotations

import re
from typing import Final

_SECRET: Final = re.compile(
    r"passw|passphrase|secret|credential|salt|jaas|token|api[._-]?key|access[._-]?key|master[._-]?key|private|\.pem$|(^|[._-])pwd"
    r"|user[._-]?info|oauthbearer\.config",
    re.IGNORECASE,
)
_NO_SECRET: Final = re.compile(
    r"location$|[._]url$|\.type$|\.file$|_file$|timeout|\.id$|\.provider|cipher|algorithm", re.IGNORECASE
)


def names_secret(name: str) -> bool:
    """Tell whether a key, an option or a parameter of this name has a secret."""
    return bool(_SECRET.search(name)) and not _NO_SECRET.search(name)
