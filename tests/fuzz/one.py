"""Fuzzes one target in this process, until its time is up or an input ends it. Started by `python -m tests.fuzz`.

With atheris new inputs are kept that reach lines and branches that none before them reached. Without it, those that are
refused with a message that none before them was. The input at hand lies in a file that outlives the process: the
process that started it finds there what ended it, or what it does not come back from.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import random
import re
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fuzz.build import take

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

LONGEST: Final = 4096
"""Bytes of an input."""
SHARED: Final = struct.Struct("<QQ")
"""Executions so far, and the size of the input at hand, which follows."""
MEMORY_BYTES: Final = 3 << 30
_PACKAGES: Final = ("cdc", "connectors", "snapshot", "sinks", "tests.fuzz.targets")
_INTERESTING: Final = (0, 1, 2, 4, 7, 8, 16, 32, 63, 64, 65, 100, 126, 127, 128, 129, 250, 251, 252, 253, 254, 255)
_WIDE: Final = (0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_MOST_FINDINGS: Final = 20
_NEVER_S: Final = 1 << 20
"""The time of an input is watched from outside."""


class Run:
    """Calls the target, counts, and writes down what is a finding: one for each place it comes from."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._seen: set[object] = set()
        self._count = 0
        with (folder / "current").open("wb") as file:
            file.truncate(SHARED.size + LONGEST)
        with (folder / "current").open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)

    def __call__(self, data: bytes) -> str:
        """What the input was refused with."""
        data = data[:LONGEST]
        self._count += 1
        self._shared[SHARED.size : SHARED.size + len(data)] = data
        self._shared[: SHARED.size] = SHARED.pack(self._count, len(data))
        try:
            self._target.run(data)
        except self._target.refusals as exc:
            return f"{type(exc).__name__}: {exc}"
        except Exception as exc:  # noqa: BLE001 - every other one is a finding
            self._found(data, exc)
            return f"{type(exc).__name__}: {exc}"
        return ""

    def _found(self, data: bytes, exc: Exception) -> None:
        frames = traceback.extract_tb(exc.__traceback__)
        place = type(exc), tuple((frame.filename, frame.lineno) for frame in frames[-2:])
        if place in self._seen or len(self._seen) >= _MOST_FINDINGS:
            return
        self._seen.add(place)
        told = f"{type(exc).__name__}: {exc}"
        save(self._folder, data, told, "".join(traceback.format_exception(exc)))


def save(folder: Path, data: bytes, told: str, more: str) -> None:
    """A finding: the input, its message on one line, and what else there is to say."""
    file = folder / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    file.write_bytes(data)
    file.with_suffix(".txt").write_text(f"{told.splitlines()[0] if told else ''}\n{more}")


def mutated(data: bytes, pool: Sequence[bytes], rng: random.Random) -> bytes:
    """Changed in one to four ways."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(9):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(made):
                made[at] = rng.choice(_INTERESTING)
            case 2 if at < len(made):
                made[at] = rng.randrange(256)
            case 3:
                made[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 16)))
            case 4:
                del made[at : at + rng.choice((1, 1, 2, 4, 16))]
            case 5:
                size = rng.choice((2, 4, 8))
                made[at : at + size] = (rng.choice(_WIDE)).to_bytes(8, rng.choice(("little", "big")))[:size]
            case 6:
                made[at:at] = made[at : at + rng.randrange(1, 33)] * rng.choice((1, 2, 20))
            case 7:
                other = rng.choice(pool)
                begin = rng.randrange(len(other) + 1)
                made[at:] = other[begin:]
            case _:
                del made[at:]
    return bytes(made[:LONGEST])


def plainly(run: Run, pool: list[bytes], seconds: float, seed: int) -> None:
    """Inputs that are refused in a way that was not seen before are changed further."""
    rng = random.Random(seed)
    seen = {_kind(run(data)) for data in pool}
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        data = mutated(rng.choice(pool), pool, rng)
        kind = _kind(run(data))
        if kind not in seen:
            seen.add(kind)
            pool.append(data)
    print(f"cov: 0 ft: {len(seen)} corp: {len(pool)}/", file=sys.stderr)


def _kind(refusal: str) -> str:
    return re.sub(r"\d+|“.*”|0x\w+", "#", refusal, flags=re.DOTALL)[:80]


def _guided(make: Callable[[], Run], folder: Path, seconds: float, seed: int, corpus: Sequence[Path]) -> None:
    import atheris

    with atheris.instrument_imports(include=list(_PACKAGES)):
        run = make()
    atheris.Setup(
        [
            "fuzz", f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", f"-max_len={LONGEST}",
            f"-timeout={_NEVER_S}", "-rss_limit_mb=0", "-print_final_stats=0", "-detect_leaks=0",
            f"-artifact_prefix={folder}/", str(folder / "corpus"),
            *(str(one) for one in corpus if one.is_dir()),
        ],
        lambda data: run(data) and None,
    )  # fmt: skip
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--compiled", type=Path)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()

    def make() -> Run:
        if options.compiled is not None:
            take(options.compiled)
        from tests.fuzz.controls import CONTROLS
        from tests.fuzz.targets import TARGETS

        return Run({**CONTROLS, **TARGETS}[options.target], options.folder)

    if options.compiled is None:  # the sanitizer has the whole address space, and its own limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.plain:
        folders = (options.corpus, options.folder / "corpus")
        pool = [file.read_bytes() for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
        plainly(make(), [*pool, b""], options.seconds, options.seed)
    else:
        _guided(make, options.folder, options.seconds, options.seed, [options.corpus])


if __name__ == "__main__":
    main()
