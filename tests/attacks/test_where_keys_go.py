"""A repository that somebody cloned says where commands connect: their keys stay here.

Files of a clone belong to who cloned it, so that they are another user's says nothing about these.
"""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1 import service_pb2_grpc as rpc
from upcycle.platform import PEERS, Platform, find_addresses, running_stack
from upcycle.user_settings.files import SettingsRefused

EVIL = "198.51.100.7"
MINE = {peer: f"127.0.0.1:{number}" for number, peer in enumerate(PEERS, 1)}
OPERATOR, GATEWAY, OF_ANOTHER = "operator-key-of-mine", "gateway-key-of-mine", "key-of-the-profile"
SOMEWHERE = "198.51.100.8"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, and an empty profile."""
    folder = tmp_path / "clone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UPCYCLE_PROFILE", str(tmp_path / "profile.toml"))
    for name in ("UPCYCLE_OPERATOR_KEY", "UPCYCLE_USER_KEY", "UPCYCLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return folder


def profile(clone: Path, text: str) -> None:
    path = clone.parent / "profile.toml"
    path.write_text(text)
    path.chmod(0o600)


def stack(folder: Path, **changes: Any) -> Path:
    """A platform that runs here, as `upcycle up` leaves its folder."""
    data = folder / ".upcycle" / "up"
    data.mkdir(parents=True)
    for name, key in (("operator.key", OPERATOR), ("gateway.key", GATEWAY)):
        (data / name).touch(mode=0o600)
        (data / name).write_text(f"{key}\n")
    files = {"operator_key_file": str(data / "operator.key"), "gateway_key_file": str(data / "gateway.key")}
    state = data / "state.json"
    state.write_text(json.dumps({"pid": os.getpid(), "peers": MINE, **files, **changes}))
    state.chmod(0o600)
    return data


class Noting(rpc.RegistryServiceServicer):
    """Somebody's server: keeps the metadata of each call."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        self.seen += context.invocation_metadata()
        return pb.ListModelsResponse()


@pytest.fixture
async def theirs() -> AsyncIterator[tuple[str, Noting]]:
    servicer = Noting()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    await server.add(rpc.add_RegistryServiceServicer_to_server, servicer).start()
    yield server.address, servicer
    await server.stop()


async def test_the_key_of_a_platform_here_goes_to_no_other_server(
    clone: Path, theirs: tuple[str, Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, servicer = theirs
    stack(clone)
    monkeypatch.setenv("UPCYCLE_PEERS_REGISTRY", address)
    found = find_addresses()

    async with Platform(found) as platform:
        await platform.registry.ListModels(pb.ListModelsRequest(), timeout=10)

    assert "authorization" not in dict(servicer.seen)
    assert servicer.seen
    assert found.platform_key("tasksets") == OPERATOR


def test_the_gateways_key_of_a_platform_here_goes_to_no_other_gateway(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack(clone)
    profile(clone, f'[keys]\nUPCYCLE_API_KEY = "{OF_ANOTHER}"\n')
    assert find_addresses().gateway_key() == GATEWAY
    assert "stop `upcycle up`" in find_addresses().gateway_key_hint()
    monkeypatch.setenv("UPCYCLE_PEERS_GATEWAY", f"{SOMEWHERE}:1")
    assert find_addresses().gateway_key() == OF_ANOTHER
    assert find_addresses().gateway_key_hint() == "set the key of this platform in UPCYCLE_API_KEY"


def test_a_key_of_the_environment_that_the_gateway_refuses_is_named_beside_the_platforms_own(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack(clone)
    monkeypatch.setenv("UPCYCLE_API_KEY", OF_ANOTHER)
    found = find_addresses()
    assert found.gateway_key() == OF_ANOTHER
    hint = found.gateway_key_hint()
    assert "unset UPCYCLE_API_KEY" in hint
    assert hint.endswith(str(found.gateway_key_file))


@pytest.mark.parametrize("with_stack", [True, False])
@pytest.mark.parametrize("named", ["host", "registry", "gateway"])
def test_a_projects_file_alone_says_not_where_keys_go(clone: Path, named: str, with_stack: bool) -> None:
    if with_stack:
        stack(clone)
    profile(clone, f'[keys]\nUPCYCLE_OPERATOR_KEY = "{OF_ANOTHER}"\nUPCYCLE_API_KEY = "{OF_ANOTHER}"\n')
    addresses = {"host": "127.0.0.1", named: EVIL if named == "host" else f"{EVIL}:7"}
    lines = [f'{name} = "{address}"' for name, address in addresses.items()]
    (clone / "upcycle.toml").write_text("\n".join(["[platform]", *lines]) + "\n")

    found = find_addresses()
    away = {peer for peer, address in found.peers.items() if address.startswith(EVIL)}
    assert away == ({*PEERS} if named == "host" else {named})
    for peer in away:
        said = rf"upcycle\.toml:\d has .* at {EVIL}:\d+, to which .*UPCYCLE_PEERS_{peer.upper()}={EVIL}"
        with pytest.raises(SettingsRefused, match=said):
            found.gateway_key() if peer == "gateway" else found.platform_key(peer)
    for peer in PEERS.keys() - away - {"gateway"}:
        assert found.platform_key(peer) == OF_ANOTHER


async def test_no_call_is_made_where_one_of_the_addresses_is_not_confirmed(clone: Path) -> None:
    profile(clone, f'[keys]\nUPCYCLE_OPERATOR_KEY = "{OF_ANOTHER}"\n')
    (clone / "upcycle.toml").write_text(f'[platform]\nhost = "{EVIL}"\n')
    with pytest.raises(SettingsRefused, match=EVIL):
        async with Platform(find_addresses()):
            raise AssertionError("it is open")


def test_a_host_that_the_profile_or_the_environment_names_too_gets_the_key(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = f'[keys]\nUPCYCLE_OPERATOR_KEY = "{OF_ANOTHER}"\n'
    (clone / "upcycle.toml").write_text(f'[platform]\nhost = "{SOMEWHERE}"\n')
    profile(clone, f'[platform]\nhost = "{SOMEWHERE}"\n{keys}')
    assert find_addresses().platform_key() == OF_ANOTHER
    profile(clone, f'[platform]\nregistry = "{SOMEWHERE}:9"\n{keys}')
    assert find_addresses().platform_key() == OF_ANOTHER
    profile(clone, keys)
    monkeypatch.setenv("UPCYCLE_PLATFORM_HOST", SOMEWHERE)
    assert find_addresses().platform_key() == OF_ANOTHER
    monkeypatch.delenv("UPCYCLE_PLATFORM_HOST")
    with pytest.raises(SettingsRefused):
        find_addresses().platform_key()
    profile(clone, "")
    assert find_addresses().platform_key() is None  # there is nothing to send


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peers": {**MINE, "registry": f"{EVIL}:1"}}, f"registry at {EVIL}:1"),
        ({"peers": {**MINE, "gateway": "localhost.example:1"}}, "gateway at localhost.example:1"),
        ({"operator_key_file": "/etc/passwd"}, "/etc/passwd"),
        ({"gateway_key_file": "../../secret"}, "secret"),
        ({"credentials_file": "/etc/passwd"}, "/etc/passwd"),
        ({"bus": {"url": f"nats://{EVIL}:4222", "nkey": None}}, f"NATS at nats://{EVIL}:4222"),
        ({"bus": {"url": "nats://127.0.0.1:4222", "nkey": "/etc/passwd"}}, "/etc/passwd"),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_a_state_file_that_came_with_the_clone_is_refused(
    clone: Path, changes: dict[str, Any], said: str
) -> None:
    data = stack(clone, **changes)

    for look in (find_addresses, running_stack):
        with pytest.raises(SettingsRefused, match=f"{data}/state.json names .*{said}"):
            look()


def test_a_link_beside_the_state_file_leads_to_no_other_file(clone: Path) -> None:
    data = stack(clone)
    (data / "operator.key").unlink()
    (data / "operator.key").symlink_to("/etc/passwd")

    with pytest.raises(SettingsRefused, match=r"operator\.key"):
        find_addresses()


def test_a_data_folder_that_is_reached_by_a_link_is_followed(clone: Path, tmp_path: Path) -> None:
    stack(tmp_path / "elsewhere")
    (clone / ".upcycle").symlink_to(tmp_path / "elsewhere" / ".upcycle")
    assert find_addresses().platform_key() == OPERATOR
