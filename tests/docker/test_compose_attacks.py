"""Attacks on docker-compose.yml from inside its containers: ports of other tiers, subjects of others on the
bus, files that are not its own.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.docker.composed import Composed
from tests.support import keyless_calls, refused, table_logins

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]
INTRUDER = (Path(__file__).parent / "intruder.py").read_text()
AT_SERVERS = (Path(__file__).parent / "server_intruder.py").read_text()
KEYLESS = Path(keyless_calls.__file__).read_text()
TABLE_LOGINS = Path(table_logins.__file__).read_text()
GRPC = {
    "scenario-runner": 7101, "trajectory-store": 7105, "grpo-trainer": 7106, "checkpoint-registry": 7107,
    "reward-grader": 7108,
}  # fmt: skip
SERVERS = {
    "nats": (4222, 8222), "seaweedfs": (8333,), "postgres": (5432,), "otel-collector": (4318,),
    "model-gateway": (7180,), "policy-engine-latest": (7300,), "policy-engine-head": (7300,),
    **{name: (port,) for name, port in GRPC.items()},
}  # fmt: skip
ALL_PORTS = {f"{name}:{port}" for name, ports in SERVERS.items() for port in ports}
ENGINES = {"policy-engine-latest:7300", "policy-engine-head:7300"}
BOTH = {"nats:4222", "seaweedfs:8333", "otel-collector:4318"}
CORE = BOTH | {f"{name}:{port}" for name, port in GRPC.items()}
IN_ENGINES = BOTH | {
    "scenario-runner:7101", "checkpoint-registry:7107", "reward-grader:7108", "model-gateway:7180",
}  # fmt: skip
TABLES = {"postgres:5432", "scenario-runner:7101", "trajectory-store:7105", "checkpoint-registry:7107"}
REACHED = {
    "provision-watch": CORE,
    "trajectory-store": CORE | TABLES,
    "grpo-trainer": CORE,
    "scenario-runner": CORE | IN_ENGINES | TABLES,
    "checkpoint-registry": CORE | IN_ENGINES | TABLES,
    "reward-grader": CORE | IN_ENGINES,
    "rollout-sampler": IN_ENGINES | ENGINES,
    "policy-engine-latest": IN_ENGINES | ENGINES,
    "policy-engine-head": IN_ENGINES | ENGINES,
    "model-gateway": IN_ENGINES | ENGINES | {"postgres:5432"},
}
"""Service -> every port of the platform that answers it, at any address that its containers have."""
GRADE = "up.default.decision.outcome.incident.forged.graded"
PROMOTION = "up.default.evt.checkpoint.promoted.incident"
OWNERS = {GRADE: "reward-grader", PROMOTION: "checkpoint-registry"}
PROVISIONING = "provision-watch"
"""It may do everything on the bus, and is asked nothing here that would be stored."""
ENGINE_SERVICES = {"policy-engine-latest", "policy-engine-head"}
"""Of one service, so with one key."""
KEYS = ["bus.nk", "s3.json"]
KEPT = ["bus.nk", "postgres.password", "s3.json"]
SECRETS = {
    "scenario-runner": [*KEPT, "secrets.key"],
    "provision-watch": ["bus.nk", "logins.json"],
    **dict.fromkeys(("trajectory-store", "checkpoint-registry", "model-gateway"), KEPT),
}


@pytest.fixture(scope="module")
def intruded(composed: Composed) -> dict[str, dict[str, Any]]:
    """What an intruder in each service found."""
    targets = {
        f"{address}:{port}": f"{name}:{port}"
        for name, ports in SERVERS.items()
        for address in composed.addresses_of(name)
        for port in ports
    }
    assert len(targets) > len(SERVERS)
    found = {}
    for name in REACHED:
        others = [subject for subject, owner in OWNERS.items() if name not in (owner, PROVISIONING)]
        said = composed.execute(name, "python", "-c", INTRUDER, *targets, "--", *others)
        found[name] = json.loads(said)
        found[name]["open"] = {targets[address] for address in found[name]["open"]}
    return found


REFUSED = {"400", "401", "403", "404", "405", "closed", "AccessDenied", "refused", "UNAUTHENTICATED"}
"""What a server says to who may not."""


@pytest.fixture(scope="module")
def said(composed: Composed) -> dict[str, dict[str, str]]:
    """Attack by attack, what servers said to an intruder in each service."""
    found = {}
    for name, reached in REACHED.items():
        others = {one for one in reached if not one.startswith(name)}
        servers = [
            one for one in ("seaweedfs", "postgres") if any(address.startswith(one) for address in others)
        ]
        targets = {
            "grpc": sorted(f"{one}:{port}" for one, port in GRPC.items() if f"{one}:{port}" in others),
            "engines": [f"inference-{one[14:]}" for one in sorted(ENGINES & others)],
            "gateways": sorted(others & {"model-gateway:7180"}),
        }
        at_servers = composed.execute(name, "python", "-c", AT_SERVERS, "upcycle", *servers)
        keyless = composed.execute(name, "python", "-c", KEYLESS, json.dumps(targets))
        found[name] = json.loads(at_servers) | json.loads(keyless)
    return found


@pytest.mark.parametrize("name", sorted(REACHED))
def test_no_server_does_what_an_intruder_asks(name: str, said: dict[str, dict[str, str]]) -> None:
    """At the object store's S3 and inner ports, Postgres, every rpc, engines and the gateway."""
    assert {attack: answer for attack, answer in said[name].items() if answer not in REFUSED} == {}
    refused.note("requests to servers", len(said[name]))
    for server in {address.partition(":")[0] for address in REACHED[name]} & {*GRPC} - {name}:
        assert any(attack.startswith(server) for attack in said[name]), f"{server} was not attacked"


@pytest.mark.parametrize("name", sorted(one for one, kept in SECRETS.items() if "postgres.password" in kept))
def test_its_login_at_postgres_reads_and_writes_its_own_rows_alone(name: str, composed: Composed) -> None:
    """Other databases and logins, tables, triggers of the audit log, files and programs of the server."""
    found: dict[str, str] = json.loads(composed.execute(name, "python", "-c", TABLE_LOGINS))
    assert {attack: said for attack, said in found.items() if said != "refused"} == {}
    assert len(found) > len(table_logins.STATEMENTS)
    refused.note("of Postgres with the login of a service", len(found))


@pytest.mark.parametrize("name", sorted(REACHED))
def test_it_reaches_the_ports_of_its_tiers_and_no_other(
    name: str, intruded: dict[str, dict[str, Any]]
) -> None:
    own = {f"{name}:{port}" for port in SERVERS.get(name, ())}
    assert intruded[name]["open"] - own == REACHED[name] - own
    refused.note("ports of other tiers", len(ALL_PORTS - own - REACHED[name]))


@pytest.mark.parametrize("name", sorted(REACHED))
def test_it_writes_to_memory_alone_and_has_no_rights(name: str, intruded: dict[str, dict[str, Any]]) -> None:
    found = intruded[name]
    assert set(found["writes"].values()) == {"Read-only file system"}, found["writes"]
    refused.note("writes to its root file system", len(found["writes"]))
    assert found["tmp"] == ""
    assert (found["uid"], found["no_new_privileges"]) == (10001, "1")
    assert int(found["capabilities"], 16) == 0


@pytest.mark.parametrize("name", sorted(REACHED))
def test_it_has_one_key_of_each_server_and_does_not_change_it(
    name: str, intruded: dict[str, dict[str, Any]]
) -> None:
    found = intruded[name]
    assert found["keys"] == SECRETS.get(name, KEYS)
    assert not found["changes_its_key"]
    others = {*REACHED} - {name} - (ENGINE_SERVICES if name in ENGINE_SERVICES else set())
    assert found["key"] not in {intruded[one]["key"] for one in others}


@pytest.mark.parametrize("name", sorted({*REACHED} - {PROVISIONING}))
def test_it_publishes_no_grade_and_no_promotion_of_another(
    name: str, intruded: dict[str, dict[str, Any]]
) -> None:
    assert intruded[name]["bus"]["stored"] == []
    refused.note("facts of others", len([one for one in OWNERS.values() if one != name]))


@pytest.mark.parametrize("name", sorted(REACHED))
def test_nats_refuses_who_has_no_key(name: str, intruded: dict[str, dict[str, Any]]) -> None:
    bus = intruded[name]["bus"]
    assert bus["asks_as_provisioning" if name == PROVISIONING else "asks_as_a_service"]
    assert bus["asks_as_provisioning"] == (name == PROVISIONING)
    assert (bus["without_a_login"], bus["with_a_guess"]) == (False, False)
    refused.note("logins at NATS", 2)
