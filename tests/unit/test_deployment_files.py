"""Units, manifests and the image name only what the product has: commands, options, codes, paths, keys of files."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from cdc.cli.main import cdc
from cdc.config.config import describes_apply, load_apply, load_connector
from cdc.config.views import describes_views, load_views
from cdc.fleet.fleet_config import load_fleet
from cdc.model.errors import FINAL, ConfigError
from cdc.telemetry.server import PATHS

HOME = Path(__file__).parents[2]
SYSTEMD, KUBERNETES, CONTAINER = (HOME / "deploy" / name for name in ("systemd", "kubernetes", "container"))
UNITS = sorted(SYSTEMD.iterdir())
MANIFESTS = sorted(KUBERNETES.iterdir())
COMPOSE = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
USER = 10001
_REFERENCE = re.compile(r"\$\{file:([^}]*)\}")


def _refused(document: object, *, by: str, definition: str = "") -> list[str]:
    """What a published schema has to say against a document; the schema itself is taken as it is."""
    schema = json.loads((HOME / "tests" / f"{by}.schema.json").read_text())
    if definition:
        (name,) = (one for one in schema["$defs"] if one.endswith(f".{definition}"))
        schema = {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def _understood(words: list[str]) -> list[click.Context]:
    """Parse a command line as `cdc` does, and run nothing. Raises UsageError where it would be refused."""
    assert words[0] == "cdc"
    contexts = [click.Context(cdc)]
    command: click.Command = cdc
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(contexts[-1], rest[0])
        assert found is not None, words
        command, rest = found, rest[1:]
        parent = contexts[-1]
        contexts.append(click.Context(command, parent=parent, info_name=command.name))
        if not isinstance(command, click.Group):
            command.parse_args(contexts[-1], list(rest))
    return contexts


def _file_of(words: list[str]) -> Path:
    """The file that a command line names."""
    parameters = _understood(words)[-1].params
    given = parameters.get("files") or [parameters["file"]]
    (file,) = given
    return Path(file)


def _service(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, said, value = line.partition("=")
        if said and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def _loads(text: str, folder: Path, *, secrets: str, of: str) -> None:
    """Load a file as the command does that is given it; each secret is a file below `secrets`."""
    for path in _REFERENCE.findall(text):
        assert path.startswith(secrets), path
    known = folder / "secret"
    known.write_text("postgresql://u:p@h/d" if 'url: "${file:' in text else "p")
    file = folder / "given.yaml"
    file.write_text(_REFERENCE.sub(f"${{file:{known}}}", text))
    if of == "fleet":
        load_fleet(file, fleet=None, bootstrap_servers=None)
    elif describes_views(file):
        assert of == "view"
        load_views(file)
    elif describes_apply(file):
        assert of == "apply"
        load_apply(file)
    else:
        assert of == "run"
        load_connector(file)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit(unit: Path) -> None:
    """Its command is understood, its exit codes are those that a restart does not cure, and its secrets are files."""
    said = _service(unit)
    (started,) = said["ExecStart"]
    words = shlex.split(started.replace("%i", "shop"))
    assert words[0] == "/opt/cdc/.venv/bin/cdc"
    assert _file_of(["cdc", *words[1:]]).parent == Path("/etc/cdc")
    kept = {int(code) for code in said["RestartPreventExitStatus"][0].split()}
    # a job of views that `cdc view rebuild` has fenced goes on at its next start, and a fleet starts connectors itself
    assert kept == (FINAL if words[1] == "run" else {ConfigError.exit_code, click.UsageError.exit_code})
    credential = said["LoadCredential"][0].partition(":")[0]
    own = unit.name.replace("@.", "@[a-z]+.")
    assert re.search(rf"\$\{{file:/run/credentials/{own}/{credential}\}}", unit.read_text())
    for folder in said.get("WorkingDirectory", []):
        assert folder == f"/var/lib/{said['StateDirectory'][0]}"
    for name, _, value in (one.partition("=") for one in said.get("Environment", [])):
        assert (name, value) == ("CDC_CACHE", f"/var/cache/{said['CacheDirectory'][0]}")
    assert ("MemoryDenyWriteExecute" in said) == (words[1] in ("run", "fleet"))  # the others have a JVM
    assert said["ProtectHome"] == ["tmpfs"]  # `yes` fails PostgreSQL's TLS: ~/.postgresql is forbidden, and not absent


def test_what_is_asked_to_read_again_hears_it() -> None:
    """SIGHUP is for those that have something to read again."""
    assert {unit.name for unit in UNITS if "ExecReload" in _service(unit)} == {
        "cdc-connector@.service",
        "cdc-fleet.service",
    }


def _documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def _workload(file: Path) -> dict[str, Any]:
    (found,) = (one for one in _documents(file) if one["kind"] != "ConfigMap")
    return found


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_kubernetes_takes_a_manifest(file: Path) -> None:
    """By its published schema, which knows no key that it does not name."""
    for document in _documents(file):
        assert _refused(document, by="kubernetes", definition=document["kind"]) == []
        assert _refused({**document, "specs": {}}, by="kubernetes", definition=document["kind"]) != []


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_a_manifest(file: Path, tmp_path: Path) -> None:
    """Command, file, probes and ports are the product's; the pod is nobody's root and writes where it has volumes."""
    workload = _workload(file)
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (config,) = (one for one in _documents(file) if one["kind"] == "ConfigMap")
    command = container["command"]
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    named = _file_of(command)
    assert mounts[str(named.parent)]["readOnly"]
    (name,) = config["data"]
    assert name == named.name
    text = config["data"][name]
    _loads(text, tmp_path, secrets="/run/secrets/cdc/", of=command[1])
    listen = (yaml.safe_load(text).get("metrics") or {}).get("listen")
    ports = {one["name"]: one["containerPort"] for one in container.get("ports", [])}
    assert ports == ({} if listen is None else {"metrics": int(listen.rpartition(":")[2])})
    assert listen is None or listen.startswith("0.0.0.0:")
    probes = {kind: container[kind]["httpGet"] for kind in container if kind.endswith("Probe")}
    assert {(one["port"], one["path"] in PATHS) for one in probes.values()} <= {("metrics", True)}
    assert set(probes) == ({"startupProbe", "livenessProbe", "readinessProbe"} if listen else set())
    _environment_exists(container)
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"  # what ended it, in `describe pod`
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == USER
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "/tmp" in mounts
    if workload["kind"] == "StatefulSet":
        assert not mounts[container["workingDir"]].get("readOnly")
    volumes = {one["name"] for one in spec["volumes"]}
    claims = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", [])}
    assert {one["name"] for one in mounts.values()} == volumes | claims


def _environment_exists(container: dict[str, Any]) -> None:
    options = {
        option.envvar
        for context in [_understood(container["command"])[-1]]
        for option in context.command.params
        if option.envvar
    }
    for one in container["env"]:
        assert one["name"] in options, one


def test_compose_takes_its_file() -> None:
    assert _refused(COMPOSE, by="compose") == []
    assert _refused({**COMPOSE, "service": {}}, by="compose") != []


def test_the_connector_of_compose(tmp_path: Path) -> None:
    """Its file loads, its port and its look at its health are the product's, and it can write to /tmp alone."""
    service = COMPOSE["services"]["connector"]
    (config,) = service["configs"]
    assert _file_of(["cdc", *service["command"]]) == Path(config["target"])
    text = (CONTAINER / COMPOSE["configs"][config["source"]]["file"]).read_text()
    _loads(text, tmp_path, secrets="/run/secrets/", of="run")
    assert {path.rpartition("/")[2] for path in _REFERENCE.findall(text)} == set(service["secrets"])
    listen = yaml.safe_load(text)["metrics"]["listen"]
    port = listen.rpartition(":")[2]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    (asked,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", service["healthcheck"]["test"][-1])
    assert asked[0] == port
    assert asked[1] in PATHS
    compile(service["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert service["read_only"]
    assert service["tmpfs"] == ["/tmp:mode=1777"]
    kafka = yaml.safe_load(text)["sink"]["bootstrap_servers"]
    assert COMPOSE["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{kafka}"
    secret = COMPOSE["secrets"]["postgres_password"]["file"]
    assert os.path.normpath(CONTAINER / secret) == str(HOME / "deploy/container/postgres.password")
    assert "deploy/container/postgres.password" in (HOME / ".gitignore").read_text().splitlines()


def _stages() -> Iterator[tuple[str, list[str]]]:
    """Each stage of the Dockerfile: its name and its instructions."""
    text = re.sub(r"\\\n\s*", "", (CONTAINER / "Dockerfile").read_text())
    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        first, *rest = stage.splitlines()
        yield first.split(" AS ")[1], [f"FROM {first}", *(line for line in rest if line and not line.startswith("#"))]


def test_the_image() -> None:
    """What it copies is there, what it installs is locked and is an extra of ours, and it runs as nobody's root."""
    stages = dict(_stages())
    ignored = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    project = (HOME / "pyproject.toml").read_text()
    copied = set[str]()
    for line in (line for lines in stages.values() for line in lines):
        word, _, rest = line.partition(" ")
        if word == "COPY" and "--from" not in rest:
            copied |= set(rest.split()[:-1])
        if "pip install" in line or "pip wheel" in line:
            assert "--require-hashes" in line or "--no-index" in line or line.endswith("--wheel-dir /wheels ."), line
            assert "--no-build-isolation" in line or " install " in line, line  # which would fetch what is not locked
        for extras in re.findall(r"cdc-toolkit\[([a-z,]*)\]", line):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
        for module in re.findall(r"python -m ((?:cdc|spark_apply)[\w.]*)", line):
            assert (HOME / f"{module.replace('.', '/')}.py").exists(), module
        if word == "FROM":
            base = rest.split(" AS ")[0]
            assert base == "python:${PYTHON}" or base in stages
    assert copied == {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert all((HOME / one).exists() for one in copied)
    assert list(stages)[-1] == "connector"  # what is built where no target is named
    account = next(line for line in stages["base"] if "useradd" in line)
    assert f"--uid {USER} " in account
    for name in ("connector", "apply"):
        assert f"USER {USER}:{USER}" in stages[name]
        assert stages[name].index(f"USER {USER}:{USER}") > max(
            at for at, line in enumerate(stages[name]) if line.startswith(("RUN", "COPY"))
        )
        assert 'ENTRYPOINT ["cdc"]' in stages[name]
    images = {_workload(file)["spec"]["template"]["spec"]["containers"][0]["image"] for file in MANIFESTS}
    told = set(re.findall(r"^# docker build -f (\S+) -t (\S+)(?: --target (\w+))? \.", _dockerfile(), re.MULTILINE))
    assert told == {
        ("deploy/container/Dockerfile", "cdc-toolkit", ""),
        ("deploy/container/Dockerfile", "cdc-toolkit-apply", "apply"),
    }
    assert images == {image for _, image, _ in told}


def _dockerfile() -> str:
    return (CONTAINER / "Dockerfile").read_text()
