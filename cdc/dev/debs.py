"""Debian packages of servers, with all they need, are fetched and unpacked into a cache; nothing is installed.

    <cache>/debs/<package>-<suite>/usr/…           the packages' files, complete or absent
    <cache>/debs/<package>-<suite>/packages.txt    which packages they are, with the SHA-256 of each

`apt-get` does it, with a root of its own (its own lists, archives and an empty list of installed packages) and with the
mirror, proxy and logins that the machine's own apt is set up with; only the suite is another. No address stands here.

apt itself verifies: the suite's signature by the keys of the machine's ``debian-archive-keyring``, the package lists by
the signed file's hashes, the packages by the lists' hashes. Unsigned archives are refused, whatever the machine allows.
Versions are not pinned, since a suite offers its newest alone; what was fetched is kept and used until its folder is
removed. A machine whose apt does not check dates (``Acquire::Check-Valid-Until``) could be given an older signed state.

The programs need the libraries they came with, not the machine's, and so their own loader: ``Unpacked.command``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from cdc.dev.jars import cache_folder, locked
from cdc.model.errors import OperatorError

_KEYRINGS: Final = tuple(Path("/usr/share/keyrings") / f"debian-archive-keyring.{kind}" for kind in ("gpg", "pgp"))
_NOT_DEBIAN_ITSELF: Final = re.compile(r"-(security|updates|backports|proposed)|/")
_NOT_NEEDED: Final = ("perl", "libperl")  # for scripts that are not run
_LINES_SHOWN: Final = 8
_LOGIN: Final = re.compile(r"//[^/@\s]+@")

# The hooks of the machine's own apt must not run for ours: they clear its caches and wake its services.
_CONFIGURATION: Final = """\
#clear APT::Update;
#clear DPkg;
APT::Install-Recommends "false";
APT::Get::AllowUnauthenticated "false";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Dir::State "{root}/state";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
Dir::Etc::sourcelist "{root}/none.list";
Dir::Etc::sourceparts "{root}/sources";
Dir::Etc::preferences "{root}/none";
Dir::Etc::preferencesparts "{root}/none.d";
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Package:
    """Names a package and the Debian suite that has the version wanted."""

    name: str
    suite: str

    @property
    def folder(self) -> Path:
        """Where it is unpacked; the folder exists only if it is complete."""
        return cache_folder() / "debs" / f"{self.name}-{self.suite}"


WANTED: Final = {
    "mysql": Package("mysql-server-core", "unstable"),  # the one suite with MySQL: 9.7 at the time of writing
    "mariadb": Package("mariadb-server-core", "bookworm"),  # 10.11, for as long as mirrors carry that release
    "mariadb11": Package("mariadb-server-core", "trixie"),  # 11.8
    "etcd": Package("etcd-server", "trixie"),  # 3.5
}
"""The package of each server. A suite has its newest version only."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A package and all it needs, as a small system of its own."""

    root: Path

    def command(self, program: str) -> tuple[str, ...]:
        """Make the command line that runs a program of it, such as ``usr/sbin/mysqld``, with its own loader."""
        libraries = sorted({each.parent for top in ("lib", "usr/lib") for each in self.root.glob(f"{top}/*/lib*.so.*")})
        loaders = [found for folder in libraries for found in folder.glob("ld-linux*.so.*")]
        path = self.root / program
        if not loaders or not path.exists():
            msg = f"{self.root} has no {program} that could be run"
            raise OperatorError(msg, hint=f"rm -r {quote(str(self.root))}  # it is fetched again")
        search = ":".join(str(folder) for folder in libraries)
        return (str(loaders[0]), "--argv0", str(path), "--library-path", search, str(path))


def fetch(package: Package) -> Unpacked:
    """Fetch the package with all it needs; from the cache when it is there."""
    folder = package.folder
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f".{folder.name}.lock")):
            if not folder.exists():
                _log.info("fetching Debian's %s, once", package.name)
                _retrieve(package)
    return Unpacked(folder)


def _retrieve(package: Package) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        msg = f"there is no apt-get on the path, which would fetch {package.name} from Debian's archive"
        raise OperatorError(msg, hint=_by_hand(package))
    said = "the machine's apt knows no archive"
    for archive in _archives():
        with tempfile.TemporaryDirectory(prefix=f".{package.name}-", dir=package.folder.parent) as scratch:
            root = Path(scratch)
            _lay_out(root, archive, package.suite)
            said = _apt(root, "update") or _apt(root, "install", "--download-only", "--yes", package.name)
            if not said:
                _unpack(sorted((root / "cache" / "archives").glob("*.deb")), root / "whole")
                (root / "whole").rename(package.folder)
                return
    msg = f"{package.name} could not be fetched from Debian's suite {package.suite}:\n{said}"
    raise OperatorError(msg, hint=_by_hand(package))


def _by_hand(package: Package) -> str:
    server = package.name.partition("-")[0]
    return f"check the network and apt-get update; or install {server} yourself: a server on the path is used"


def _archives() -> list[str]:
    """Find the archives that the machine's apt is set up with, Debian's own first."""
    wanted = "$(ORIGIN)|$(RELEASE)|$(REPO_URI)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [line.split("|") for line in listed.stdout.splitlines() if line.count("|") == wanted.count("|")]
    rows = [row for row in rows if not _NOT_DEBIAN_ITSELF.search(row[1])]
    return list(dict.fromkeys(address for _, _, address in sorted(rows, key=lambda row: row[0] != "Debian")))


def _lay_out(root: Path, archive: str, suite: str) -> None:
    for folder in ("state/lists/partial", "cache/archives/partial", "sources"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()  # nothing is installed: all that is needed is fetched
    configuration = _CONFIGURATION.format(root=root)
    if os.geteuid() == 0:
        configuration += 'APT::Sandbox::User "root";\n'  # the user _apt cannot enter root's cache
    (root / "apt.conf").write_text(configuration)
    keyring = next((each for each in _KEYRINGS if each.exists()), None)
    signed_by = f"Signed-By: {keyring}\n" if keyring else ""  # else by any key that the machine's apt trusts
    source = f"Types: deb\nURIs: {archive}\nSuites: {suite}\nComponents: main\n{signed_by}"
    (root / "sources" / "debian.sources").write_text(source)


def _apt(root: Path, *arguments: str) -> str:
    """Run apt-get; return its error messages, or an empty text."""
    done = subprocess.run(
        ["apt-get", "--quiet", "--config-file", str(root / "apt.conf"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode == 0:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("E:", "W:", "Err:", "  "))]
    shown = [_LOGIN.sub("//", line).strip() for line in lines[-_LINES_SHOWN:]]
    return "\n".join(f"  | {line}" for line in shown or [f"apt-get {arguments[0]}: exit code {done.returncode}"])


def _unpack(packages: list[Path], target: Path) -> None:
    target.mkdir()
    listed = []
    for path in packages:
        if not path.name.startswith(_NOT_NEEDED):
            done = subprocess.run(["dpkg-deb", "--extract", path, target], capture_output=True, text=True, check=False)
            if done.returncode:
                msg = f"{path.name} could not be unpacked below {cache_folder()}: {done.stderr.strip()}"
                raise OperatorError(msg, hint=f"df -h {quote(str(cache_folder()))}")
        with path.open("rb") as file:
            listed.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (target / "packages.txt").write_text("".join(listed))
