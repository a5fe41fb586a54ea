"""Every rpc of the running platform, called by one who has no key, a wrong one, or one of another role."""

import grpc
import pytest
from tests.attacks.conftest import Attacked
from tests.support import refused
from tests.support.keyless_calls import WRONG, services, status

SERVERS = ("tasksets", "trajectories", "training", "registry")


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


def test_neither_the_operator_nor_a_service_may_do_what_is_the_others(attacked: Attacked) -> None:
    operator, service = attacked.secrets["operator.key"], attacked.secrets["service.key"]
    closed = {
        operator: [
            ("tasksets", "upcycle.api.environment.v1.EnvironmentService", "Open"),
            ("tasksets", "upcycle.api.environment.v1.EnvironmentService", "Grade"),
            ("registry", "upcycle.api.registry.v1.RegistryService", "RenewEngineLease"),
            ("registry", "upcycle.api.retention.v1.ReferenceService", "ListReferences"),
        ],
        service: [
            ("tasksets", "upcycle.api.taskset.v1.TasksetService", "DeployEnvironment"),
            ("tasksets", "upcycle.api.taskset.v1.TasksetService", "RegisterTaskset"),
            ("registry", "upcycle.api.registry.v1.RegistryService", "ImportModel"),
            ("training", "upcycle.api.training.v1.TrainingService", "OptimStep"),
            ("trajectories", "upcycle.api.trajectory.v1.TrajectoryService", "DismissAlarm"),
        ],
    }
    for key, calls in closed.items():
        for server, name, method in calls:
            with grpc.insecure_channel(attacked.addresses.peers[server]) as channel:
                assert status(channel, name, method, key) == "PERMISSION_DENIED", method
                refused.note("rpcs with a key of another role", 1)


def test_the_right_key_is_answered(attacked: Attacked) -> None:
    with grpc.insecure_channel(attacked.addresses.peers["registry"]) as channel:
        name = "upcycle.api.registry.v1.RegistryService"
        assert status(channel, name, "ListModels", attacked.secrets["operator.key"]) == "OK"
        assert status(channel, name, "ListEngines", attacked.secrets["service.key"]) == "OK"
