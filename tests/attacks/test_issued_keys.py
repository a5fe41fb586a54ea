"""Keys that were made at run time, misused: at every server of the running platform, and at the gateway."""

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator

import grpc
import pytest
from tests.attacks.conftest import UPCYCLE, Attacked
from tests.support.keyless_calls import services, status

SERVERS = {
    "tasksets": ("upcycle.api.taskset.v1.TasksetService", "ListTasksets"),
    "trajectories": ("upcycle.api.trajectory.v1.TrajectoryService", "GetLedger"),
    "training": ("upcycle.api.training.v1.TrainingService", "ListSessions"),
    "registry": ("upcycle.api.registry.v1.RegistryService", "ListModels"),
}
"""What a user may ask each server."""
HELD_S = 5.0
CHANGES = [
    ("registry", "upcycle.api.registry.v1.RegistryService", ("ImportModel", "ForkModel", "SetHead")),
    ("registry", "upcycle.api.keys.v1.KeyService", ("CreateKey", "ListKeys", "RevokeKey", "ListValidKeys")),
    ("tasksets", "upcycle.api.taskset.v1.TasksetService", ("DeployEnvironment", "DeleteTaskset")),
    ("tasksets", "upcycle.api.environment.v1.EnvironmentService", ("Open", "Grade")),
]
"""What none but an operator, or a service, may."""


def keys(attacked: Attacked, *words: str, key: str | None = None) -> "subprocess.CompletedProcess[str]":
    """`upcycle keys …`, by default as the operator."""
    where = {"UPCYCLE_UP_DATA_DIR": str(attacked.data_dir)}
    if key is not None:
        peers = attacked.addresses.peers
        where = {f"UPCYCLE_PEERS_{name.upper()}": address for name, address in peers.items()}
        where["UPCYCLE_USER_KEY"] = key
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UPCYCLE_")}
    return subprocess.run(
        [str(UPCYCLE), "keys", *words], env={**environ, **where}, capture_output=True, text=True, timeout=60,
        cwd="/", check=False,
    )  # fmt: skip


def made(attacked: Attacked, *words: str) -> tuple[str, str]:
    """Id and key."""
    done = keys(attacked, "create", "mallory", *words, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["key"]["key_id"], answer["secret"]


def said(attacked: Attacked, key: str) -> dict[str, str]:
    """Of each server, and of the gateway's own table of models."""
    found = {}
    for server, (service, method) in SERVERS.items():
        with grpc.insecure_channel(attacked.addresses.peers[server]) as channel:
            found[server] = status(channel, service, method, key)
    gateway = http.client.HTTPConnection(attacked.addresses.peers["gateway"], timeout=10)
    gateway.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    found["gateway"] = {200: "OK", 401: "UNAUTHENTICATED"}[gateway.getresponse().status]
    gateway.close()
    return found


def everywhere(attacked: Attacked, key: str, wanted: set[str]) -> dict[str, str]:
    """What all say, once it is as wanted; at the latest after five seconds."""
    give_up_at = time.monotonic() + HELD_S
    while set((found := said(attacked, key)).values()) != wanted and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return found


def at_grader(attacked: Attacked, key: str, wanted: str) -> str:
    """What the reward grader, which has rpcs for operators alone, says to a key, once it is as wanted; at the
    latest after five seconds."""
    give_up_at = time.monotonic() + HELD_S
    with grpc.insecure_channel(attacked.addresses.peers["grading"]) as channel:
        while (found := _graded(channel, key)) != wanted and time.monotonic() < give_up_at:
            time.sleep(0.1)
    return found


def _graded(channel: grpc.Channel, key: str) -> str:
    return status(channel, "upcycle.api.trajectory.v1.GradingService", "GradeSession", key)


@pytest.fixture(scope="module")
def user(attacked: Attacked) -> Iterator[tuple[str, str]]:
    """Id and key of a user, which all servers know."""
    key_id, key = made(attacked, "--role", "user")
    assert set(everywhere(attacked, key, {"OK"}).values()) == {"OK"}
    yield key_id, key
    assert keys(attacked, "revoke", key_id).returncode == 0


def test_an_altered_key_is_refused_everywhere(attacked: Attacked, user: tuple[str, str]) -> None:
    key_id, key = user
    other = "x" if key[-1] != "x" else "y"
    altered = (
        key[:-1],
        f"{key}x",
        key[:-1] + other,
        key.swapcase(),
        key.replace(key_id, "0" * 12),
        f"upk_{key_id}_",
    )
    for text in altered:
        assert set(said(attacked, text).values()) == {"UNAUTHENTICATED"}, text


@pytest.mark.parametrize(("server", "service", "methods"), CHANGES)
def test_a_users_key_changes_nothing_of_the_platform(
    attacked: Attacked, user: tuple[str, str], server: str, service: str, methods: tuple[str, ...]
) -> None:
    with grpc.insecure_channel(attacked.addresses.peers[server]) as channel:
        said = {method: status(channel, service, method, user[1]) for method in methods}
    assert said == dict.fromkeys(methods, "PERMISSION_DENIED")


def test_a_user_makes_no_key(attacked: Attacked, user: tuple[str, str]) -> None:
    done = keys(attacked, "create", "mallory", "--role", "operator", key=user[1])
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "is for the key of: operator" in done.stderr


def test_a_key_of_the_gateway_alone_reaches_no_rpc(attacked: Attacked) -> None:
    key_id, key = made(attacked, "--role", "operator", "--scope", "inference")
    wanted = {**dict.fromkeys(SERVERS, "PERMISSION_DENIED"), "gateway": "OK"}
    assert everywhere(attacked, key, set(wanted.values())) == wanted
    with grpc.insecure_channel(attacked.addresses.peers["registry"]) as channel:
        found = {
            f"{service}/{method}": status(channel, service, method, key)
            for service, methods in services(channel)
            for method in methods
        }
    assert set(found.values()) == {"PERMISSION_DENIED"}, found
    keys(attacked, "revoke", key_id)


def test_an_expired_key_is_refused_everywhere(attacked: Attacked) -> None:
    _, key = made(attacked, "--role", "user", "--expires", "4s")
    assert set(everywhere(attacked, key, {"OK"}).values()) == {"OK"}
    assert set(everywhere(attacked, key, {"UNAUTHENTICATED"}).values()) == {"UNAUTHENTICATED"}


def test_a_revoked_key_is_refused_everywhere_within_five_seconds(attacked: Attacked) -> None:
    key_id, key = made(attacked, "--role", "operator")
    assert set(everywhere(attacked, key, {"OK"}).values()) == {"OK"}
    assert at_grader(attacked, key, "INVALID_ARGUMENT") == "INVALID_ARGUMENT"
    assert keys(attacked, "revoke", key_id).returncode == 0
    assert set(everywhere(attacked, key, {"UNAUTHENTICATED"}).values()) == {"UNAUTHENTICATED"}
    assert at_grader(attacked, key, "UNAUTHENTICATED") == "UNAUTHENTICATED"
    listed = keys(attacked, "list", "--all", "--json").stdout
    assert next(one for one in map(json.loads, listed.splitlines()) if one["key_id"] == key_id)["revoked_at"]


def test_no_issued_key_lies_in_the_data_folder_or_a_log(attacked: Attacked, user: tuple[str, str]) -> None:
    places = [
        path for path in attacked.data_dir.parent.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    assert any(path.suffix == ".sqlite" for path in places)
    assert [path for path in places if user[1].rpartition("_")[2].encode() in path.read_bytes()] == []
