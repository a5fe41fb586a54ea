"""docker-compose.yml without a Docker engine: its schema, and what only we can check about it."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docker.composed import compose_program

from service_kit.settings import SettingsError, load_settings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "secrets.example.env"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
OURS = {
    name: service
    for name, service in SERVICES.items()
    if service.get("command", [""])[0] in SCRIPTS and name != "provision"
}
NOT_OURS_TO_CONFINE = {"minio"}
"""An image that was not seen with this file."""
RIGHTS = {"volumes": {"CHOWN", "DAC_OVERRIDE"}, "backup": {"DAC_OVERRIDE"}}
"""Service that runs as root -> what it may do beyond its own files."""
SETTINGS = {
    "upcycle-scenario-runner": ("scenario_runner", "ScenarioRunnerSettings"),
    "upcycle-rollout-sampler": ("rollout_sampler", "RolloutSamplerSettings"),
    "upcycle-reward-grader": ("reward_grader", "RewardGraderSettings"),
    "upcycle-trajectory-store": ("trajectory_store", "TrajectoryStoreSettings"),
    "upcycle-grpo-trainer": ("grpo_trainer", "GrpoTrainerSettings"),
    "upcycle-checkpoint-registry": ("checkpoint_registry", "CheckpointRegistrySettings"),
    "upcycle-policy-engine": ("policy_engine", "PolicyEngineSettings"),
    "upcycle-provision": ("event_bus", "ProvisionSettings"),
    "upcycle-model-gateway": ("model_gateway", "ModelGatewaySettings"),
}


def test_it_follows_the_compose_schema() -> None:
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "docker-compose.yml",
    ]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_every_service_of_the_platform_is_there() -> None:
    assert {service["command"][0] for service in OURS.values()} == set(SETTINGS)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_is_waited_for_has_a_healthcheck_or_ends(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[needed], f"{name} waits for {needed}"
        else:
            assert how["condition"] == "service_completed_successfully"
            assert SERVICES[needed]["restart"] == "no"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_host_ports_are_loopback_and_images_are_pinned(name: str) -> None:
    service = SERVICES[name]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert re.search(r":[^:/]*\d", service["image"]), service["image"]
    assert not service["image"].endswith(":latest")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_log_cannot_fill_the_disk(name: str) -> None:
    assert SERVICES[name]["logging"]["options"].keys() == {"max-size", "max-file"}


@pytest.mark.parametrize("name", sorted(set(SERVICES) - NOT_OURS_TO_CONFINE))
def test_nothing_writes_beside_its_volumes_or_gains_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert set(service.get("cap_add", [])) <= RIGHTS.get(name, set())


def test_only_what_changes_owners_or_writes_to_the_host_runs_as_root() -> None:
    image_user = re.search(r"^USER (.*)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert image_user is not None
    ours = str(image_user[1])
    users: dict[str, str] = {
        name: service.get("user", ours if "upcycle" in service["image"] else "root")
        for name, service in SERVICES.items()
    }
    assert {name for name, user in users.items() if user.startswith(("0", "root"))} == {*RIGHTS, "minio"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_its_health_is_what_readyz_says(name: str) -> None:
    service = OURS[name]
    (port,) = [value for key, value in service["environment"].items() if key.endswith("_HTTP_PORT")]
    assert service["healthcheck"]["test"] == ["CMD", "python", "-m", "service_kit.ready_command", port]


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to another user")
def test_a_volume_of_an_earlier_version_is_given_to_the_servers_user(tmp_path: Path) -> None:
    """A folder that root made is given away with what is in it; the next start does not look through it."""
    inside = tmp_path / "a" / "b c"
    inside.mkdir(parents=True)
    (inside / "file").touch()
    program = ["sh", str(ROOT / "deploy" / "volumes" / "owned.sh"), "10001", str(tmp_path)]
    said = [
        subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout for _ in "12"
    ]
    assert {path.stat().st_uid for path in (tmp_path, inside.parent, inside, inside / "file")} == {10001}
    assert said == [f"{tmp_path} belongs to user 10001 now\n", ""]


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_settings_are_ones_the_service_accepts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, cls_name = SETTINGS[OURS[name]["command"][0]]
    cls = getattr(importlib.import_module(f"{package}.settings"), cls_name)
    environ = {
        key: re.sub(r"\$\{[^}]*:-([^}]*)\}", r"\1", str(value))
        for key, value in OURS[name]["environment"].items()
    }
    environ = {key: re.sub(r"\$\{[^}]*\}", "secret", value) for key, value in environ.items()}
    example = {
        key: value
        for key, _, value in (line.partition("=") for line in EXAMPLE.read_text().splitlines())
        if key.startswith("UPCYCLE_")
    }
    with pytest.raises(SettingsError, match="UPCYCLE_ACCESS_SERVICE_KEY"):  # `change-me` is no key
        load_settings(cls, environ={**environ, **example})
    secrets = {key: value.replace("change-me", f"secret of {key}") for key, value in example.items()}
    load_settings(cls, environ={**environ, **secrets})


CANARIES = {
    "UPCYCLE_ACCESS_SERVICE_KEY": "service-canary-0123456789",
    "UPCYCLE_ACCESS_OPERATOR_KEY": "operator-canary-0123456789",
    "UPCYCLE_ACCESS_USER_KEYS": "ada:user-canary-0123456789",
    "UPCYCLE_S3_ACCESS_KEY": "upcycle",
    "UPCYCLE_S3_SECRET_KEY": "store-canary",
    "POSTGRES_PASSWORD": "tables-canary",
    "MINIO_ROOT_USER": "upcycle",
    "MINIO_ROOT_PASSWORD": "minio-canary",
}
PEOPLE = {"operator-canary", "user-canary"}
SERVE_PEOPLE = {"checkpoint-registry", "grpo-trainer", "reward-grader", "scenario-runner", "trajectory-store"}
KEEP_TABLES = {"backup", "checkpoint-registry", "model-gateway", "scenario-runner", "trajectory-store"}
SERVERS = {
    "nats": set[str](), "otel-collector": set[str](), "volumes": set[str](), "seaweedfs": {"store-canary"},
    "minio": {"minio-canary"}, "postgres": {"tables-canary"},
}  # fmt: skip


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The variables of each container, by Compose itself; it needs no engine for that."""
    file = tmp_path_factory.mktemp("compose") / "secrets.env"
    file.write_text("".join(f"{name}={value}\n" for name, value in CANARIES.items()))
    command = [compose_program(), "--env-file", str(file), "--profile", "*", "config", "--format", "json"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(file.parent), "UPCYCLE_SECRETS": str(file)}
    said = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    services = json.loads(said.stdout)["services"]
    return {name: service.get("environment") or {} for name, service in services.items()}


def test_a_container_has_the_secrets_that_it_needs_and_no_other(composed: dict[str, dict[str, str]]) -> None:
    """A tool of an agent, a server or an engine that is broken into shows what its container has."""
    assert composed.keys() == SERVICES.keys()
    for name, variables in composed.items():
        usual = {"service-canary", "store-canary"}
        usual |= PEOPLE if name in SERVE_PEOPLE else {"operator-canary"} if name == "model" else set()
        usual |= {"tables-canary"} if name in KEEP_TABLES else set()
        found = {canary for canary in re.findall(r"[a-z]+-canary", " ".join(variables.values()))}
        assert found == SERVERS.get(name, usual), name


def test_the_command_that_imports_the_model_has_the_key_that_commands_send(
    composed: dict[str, dict[str, str]],
) -> None:
    key = composed["model"]["UPCYCLE_OPERATOR_KEY"]
    assert key == composed["checkpoint-registry"]["UPCYCLE_ACCESS_OPERATOR_KEY"] != ""


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_mounted_files_exist(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("./"):
            assert (ROOT / source).exists(), volume


def test_addresses_that_travel_in_messages_are_reachable_from_other_containers() -> None:
    """Leases carry them: a loopback or wildcard address would lead a sampler to its own container."""
    runner = SERVICES["scenario-runner"]["environment"]
    port = runner["SCENARIO_RUNNER_GRPC_PORT"]
    assert runner["SCENARIO_RUNNER_ADVERTISED_ADDRESS"] == f"scenario-runner:{port}"
    for name, service in OURS.items():
        if service["command"] == ["upcycle-policy-engine"]:
            assert service["environment"]["POLICY_ENGINE_ENGINE_HOST"] == name
