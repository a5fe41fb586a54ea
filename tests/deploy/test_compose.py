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
from deploy.kubernetes.composed import default
from tests.docker.composed import compose_program

from blob_store.inner_ports import FILES
from blob_store.rights import rights
from event_bus.rights import IDENTITIES
from scenario_runner.adapters.sealing import Sealer
from service_kit.settings import SettingsError, load_settings
from sql_store.logins import SERVICES as LOGINS

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
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
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
    image = default(service["image"])
    assert re.search(r":[^:/]*\d", image), image
    assert not image.endswith(":latest")


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
        if key.startswith("UPCYCLE_") and OURS[name]["environment"].get(key) != ""
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
KEEP_TABLES = {"checkpoint-registry", "model-gateway", "scenario-runner", "trajectory-store"}
REACH_ALL_TABLES = {"backup", "provision"}
REACH_ALL_OBJECTS = {"backup", "provision", "signing"}
SERVERS = {
    "nats": set[str](), "otel-collector": set[str](), "volumes": set[str](), "keys": {"store-canary"},
    "signing-keys": set[str](), "seaweedfs": set[str](), "minio": {"minio-canary"},
    "postgres": {"tables-canary"}, "model": {"operator-canary"}, "provision-watch": {"service-canary"},
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
        usual = {"service-canary"} | ({"store-canary"} if name in REACH_ALL_OBJECTS else set())
        usual |= PEOPLE if name in SERVE_PEOPLE else set()
        usual |= {"tables-canary"} if name in REACH_ALL_TABLES else set()
        found = {canary for canary in re.findall(r"[a-z]+-canary", " ".join(variables.values()))}
        assert found == SERVERS.get(name, usual), name


def test_a_service_that_keeps_tables_has_a_login_of_its_own(composed: dict[str, dict[str, str]]) -> None:
    """With one for all, who breaks into the gateway reads trajectories and moves head."""
    urls = {name: one["UPCYCLE_SQL_URL"] for name, one in composed.items() if "UPCYCLE_SQL_URL" in one}
    assert urls.keys() == KEEP_TABLES | REACH_ALL_TABLES
    for name in KEEP_TABLES:
        service = name.replace("-", "_")
        assert urls[name] == f"postgresql://{service}@postgres/{service}"
        assert composed[name]["UPCYCLE_SQL_PASSWORD_FILE"] == "/run/keys/postgres.password"
    assert {name.replace("-", "_") for name in KEEP_TABLES} == {*LOGINS}


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


KEYS = re.compile(r"keys-([a-z-]+):/run/keys:ro")
MAKES_KEYS = ("volumes", "keys")


def test_a_container_mounts_its_own_keys_and_no_others() -> None:
    """Each key is in a volume of its own; only the jobs that make them see several."""
    for name, service in SERVICES.items():
        mounted = [volume for volume in service.get("volumes", []) if volume.startswith("keys-")]
        if name in MAKES_KEYS:
            made = {volume.split(":")[0] for volume in mounted}
            assert made == {volume for volume in COMPOSE["volumes"] if volume.startswith("keys-")}
            assert made == {f"keys-{key.replace('_', '-')}" for key in (*IDENTITIES, "nats", "seaweedfs")}
        elif name in ("nats", "seaweedfs"):
            assert mounted == [f"keys-{name}:/etc/{name}/keys:ro"]
        elif name in (*OURS, "provision", "backup"):
            (key,) = [found[1] for volume in mounted if (found := KEYS.fullmatch(volume))]
            assert key == {"backup": "operator"}.get(name, re.sub("-(watch|latest|head)$", "", name))
            assert service["environment"]["UPCYCLE_BUS_NKEY"] == "/run/keys/bus.nk"
            has_a_key = key.replace("-", "_") in rights()
            assert service["environment"]["UPCYCLE_S3_KEY_FILE"] == ("/run/keys/s3.json" if has_a_key else "")
        else:
            assert mounted == []


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_memory_and_processes_are_limited(name: str) -> None:
    assert re.search(r"^\$?\{?.*\d[mg]\}?$", SERVICES[name]["mem_limit"])
    assert SERVICES[name]["pids_limit"] > 0


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_container_names_its_networks(name: str) -> None:
    """The network that Compose makes by itself would join all that name none."""
    service = SERVICES[name]
    networks = [*service.get("networks", [])]
    assert bool(networks) != (service.get("network_mode") == "none")
    inside = {network for network, how in COMPOSE["networks"].items() if how.get("internal")}
    outside = {*networks} - inside
    assert outside <= {f"outside-{name}"}
    assert outside or not service.get("ports"), "Docker publishes no port of an internal network"


def test_the_tiers_keep_apart_what_has_nothing_to_say_to_each_other() -> None:
    members = {
        network: {name for name, service in SERVICES.items() if network in service.get("networks", [])}
        for network in COMPOSE["networks"]
    }
    engines = {"policy-engine-latest", "policy-engine-head"}
    assert members["inference"] == engines | {"rollout-sampler", "model-gateway"}
    assert members["tables"] | members["gateway-tables"] == KEEP_TABLES | REACH_ALL_TABLES | {"postgres"}
    assert members["gateway-tables"] == {"postgres", "model-gateway"}
    assert not members["core"] & (engines | {"rollout-sampler", "model-gateway", "postgres"})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_keys_are_made_once_and_kept(tmp_path: Path) -> None:
    command = ["sh", str(ROOT / "deploy" / "keys.sh"), str(tmp_path)]
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    environ |= {"UPCYCLE_S3_ACCESS_KEY": "upcycle", "UPCYCLE_S3_SECRET_KEY": "store-canary"}

    def made() -> dict[str, bytes]:
        subprocess.run(command, env=environ, capture_output=True, timeout=250, check=True)
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.*")}

    once = made()
    assert once == made()
    assert once.keys() == {
        *(f"{name}/bus.nk" for name in IDENTITIES), "nats/accounts.conf", "nats/default.accounts",
        "scenario_runner/secrets.key", "seaweedfs/s3.json", *(f"{name}/s3.json" for name in rights()),
        *(f"seaweedfs/{name}" for name in FILES), "provision/logins.json",
        *(f"{name}/postgres.password" for name in LOGINS),
    }  # fmt: skip
    passwords = {once[f"{name}/postgres.password"].strip() for name in LOGINS}
    assert len(passwords) == len(LOGINS)
    assert not any(password in once["provision/logins.json"] for password in passwords)
    assert all(not path.stat().st_mode & 0o077 for path in tmp_path.rglob("*"))
    Sealer(tmp_path / "scenario_runner" / "secrets.key")
    assert b"store-canary" not in b"".join(text for name, text in once.items() if name != "seaweedfs/s3.json")

    environ["STORE_HAS_ONE_KEY"] = "true"
    shared = {name: text for name, text in made().items() if name.endswith("/s3.json")}
    assert all(b"store-canary" in text for text in shared.values())
    del environ["STORE_HAS_ONE_KEY"]
    parted = {name: text for name, text in made().items() if name.endswith("/s3.json")}
    assert [name for name, text in parted.items() if b"store-canary" in text] == ["seaweedfs/s3.json"]


def test_addresses_that_travel_in_messages_are_reachable_from_other_containers() -> None:
    """Leases carry them: a loopback or wildcard address would lead a sampler to its own container."""
    runner = SERVICES["scenario-runner"]["environment"]
    port = runner["SCENARIO_RUNNER_GRPC_PORT"]
    assert runner["SCENARIO_RUNNER_ADVERTISED_ADDRESS"] == f"scenario-runner:{port}"
    for _name, service in OURS.items():
        if service["command"] == ["upcycle-policy-engine"]:
            own_names = service["networks"]["inference"]["aliases"]
            assert [service["environment"]["POLICY_ENGINE_ENGINE_HOST"]] == own_names


SIGN = {
    "checkpoint-registry": "signing-registry",
    "grpo-trainer": "signing-trainer",
    "signing": "signing-operator",
}
PROVE = {"policy-engine-head", "policy-engine-latest", "rollout-sampler"}


def test_who_writes_versions_and_states_signs_with_its_own_key_and_who_reads_them_proves(
    composed: dict[str, dict[str, str]],
) -> None:
    proving = {name: one for name, one in composed.items() if "UPCYCLE_SIGNING_TRUSTED" in one}
    assert proving.keys() == {*SIGN, *PROVE}
    assert {name for name, one in proving.items() if "UPCYCLE_SIGNING_KEY" in one} == SIGN.keys()
    assert {one["UPCYCLE_SIGNING_UNSIGNED"] for one in proving.values()} == {"refuse"}
    for name, service in SERVICES.items():
        mounted = {one.partition(":")[0] for one in service.get("volumes", [])}
        keys = {volume for volume in mounted if volume.startswith("signing-")}
        if name not in {"volumes", "signing-keys"}:  # they make the keys and give them away
            assert keys == ({SIGN[name]} if name in SIGN else set()), name
            assert ("signing" in mounted) == (name in proving), name
