"""Every rpc of the running platform, called by one who has no key, a wrong one, or one of another role."""

from collections.abc import Iterator

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.attacks.conftest import Attacked

SERVERS = ("tasksets", "trajectories", "training", "registry")
OPEN = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
WRONG = (None, "", "wrong", "Bearer", "0" * 64)
CALL_S = 20.0


def services(channel: grpc.Channel) -> Iterator[tuple[str, list[str]]]:
    """Each service of a server that is not open to all, and its methods, as reflection shows them."""
    from google.protobuf.descriptor_pool import DescriptorPool

    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    for service in database.get_services():
        if service not in OPEN:
            yield service, list(pool.FindServiceByName(service).methods_by_name)


def status(channel: grpc.Channel, service: str, method: str, key: str | None) -> str:
    """Of one call with an empty request."""
    call = channel.stream_stream(
        f"/{service}/{method}", request_serializer=lambda body: body, response_deserializer=lambda body: body
    )
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    answers = call(iter([b""]), timeout=CALL_S, metadata=metadata)
    try:
        next(answers, None)
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        answers.cancel()
    return "OK"


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


def test_the_right_key_is_answered(attacked: Attacked) -> None:
    with grpc.insecure_channel(attacked.addresses.peers["registry"]) as channel:
        name = "upcycle.api.registry.v1.RegistryService"
        assert status(channel, name, "ListModels", attacked.secrets["operator.key"]) == "OK"
        assert status(channel, name, "ListEngines", attacked.secrets["service.key"]) == "OK"
