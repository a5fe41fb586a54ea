"""Every rpc of the running platform, called by one who has no key, a wrong one, or one of another role."""

import importlib
import pkgutil

import grpc
import pytest
from tests.attacks.conftest import Attacked
from tests.attacks.test_issued_keys import everywhere, keys, made
from tests.support import refused
from tests.support.keyless_calls import WRONG, services, status

import upcycle.api
from grpc_edge.access import callers_of
from upcycle.api.common.v1.access_pb2 import Role

SERVERS = ("tasksets", "trajectories", "training", "registry", "grading")
for module in pkgutil.walk_packages(upcycle.api.__path__, "upcycle.api."):
    if module.name.endswith("_pb2"):
        importlib.import_module(module.name)  # the contracts, which say who may call


@pytest.mark.parametrize("server", SERVERS)
def test_without_a_key_nothing_answers_but_health_and_the_schema(attacked: Attacked, server: str) -> None:
    with grpc.insecure_channel(attacked.addresses.peers[server]) as channel:
        found = list(services(channel))
        said = {
            f"{service}/{method}": {status(channel, service, method, key) for key in WRONG}
            for service, methods in found
            for method in methods
        }
    assert found
    assert {method: codes for method, codes in said.items() if codes != {"UNAUTHENTICATED"}} == {}
    refused.note("rpcs without a key of the platform", len(said) * len(WRONG))


@pytest.mark.parametrize("server", SERVERS)
def test_no_rpc_is_answered_to_a_key_of_a_role_that_its_contract_does_not_name(
    attacked: Attacked, server: str
) -> None:
    key_id, user = made(attacked, "--role", "user")
    assert set(everywhere(attacked, user, {"OK"}).values()) == {"OK"}
    of_roles = {
        Role.ROLE_OPERATOR: attacked.secrets["operator.key"],
        Role.ROLE_SERVICE: attacked.secrets["service.key"],
        Role.ROLE_USER: user,
    }
    with grpc.insecure_channel(attacked.addresses.peers[server]) as channel:
        said = {
            f"{service}/{method} with the key of {Role.Name(role)}": status(channel, service, method, key)
            for service, methods in services(channel)
            for method in methods
            for role, key in of_roles.items()
            if role not in callers_of(f"/{service}/{method}")
        }
    assert keys(attacked, "revoke", key_id).returncode == 0
    assert {call: code for call, code in said.items() if code != "PERMISSION_DENIED"} == {}
    assert said
    refused.note("rpcs with a key of another role", len(said))


def test_the_right_key_is_answered(attacked: Attacked) -> None:
    with grpc.insecure_channel(attacked.addresses.peers["registry"]) as channel:
        name = "upcycle.api.registry.v1.RegistryService"
        assert status(channel, name, "ListModels", attacked.secrets["operator.key"]) == "OK"
        assert status(channel, name, "ListEngines", attacked.secrets["service.key"]) == "OK"
