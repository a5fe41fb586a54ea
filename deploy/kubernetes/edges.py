"""Who connects to whom: what the network policies allow, and nothing else.

A call is a field of PeerSettings that the code of a service names, so a test can compare; a lease is an
address that travels in a message; the rest follows from docker-compose.yml.
"""

from typing import Final

from deploy.kubernetes.composed import COMPOSE, SHARED, variables

CALLS: Final = {
    "scenario-runner": ("registry", "training", "trajectories"),
    "rollout-sampler": ("environments", "registry"),
    "reward-grader": ("registry",),
    "trajectory-store": ("registry", "tasksets"),
    "grpo-trainer": ("registry", "tasksets", "trajectories"),
    "checkpoint-registry": ("tasksets", "trajectories"),
    "policy-engine": ("registry", "tasksets"),
    "model-gateway": ("grading", "registry"),
    "provision-watch": ("registry",),
}
"""Service -> fields of PeerSettings; `policy-engine` means the engines of all channels."""
LEASES: Final = {
    "rollout-sampler": ("policy-engine-latest:7300", "policy-engine-head:7300"),
    "model-gateway": ("policy-engine-latest:7300", "policy-engine-head:7300"),
    "reward-grader": ("scenario-runner:7101",),
}
"""Service -> what it finds by a lease of an engine or the address of an environment."""
SCRAPED_PORT: Final = 7200
OUTSIDE: Final = ("scenario-runner", "reward-grader", "model-gateway")
"""They ask hosts of the internet: of environments, judges, and other models."""
COLLECTOR: Final = "otel-collector"
PROVISIONING: Final = "provision-watch"
"""Its first container makes streams, the bucket, and the databases with their logins."""


def allowed(name: str) -> list[str]:
    """host:port of everything that a service may connect to."""
    if name == COLLECTOR:
        return [f"{one}:{SCRAPED_PORT}" for one in ours()]
    if name not in ours():
        return []
    found = {_address(field) for field in CALLS[_kind(name)]} | {*LEASES.get(name, ())}
    found |= {SHARED["UPCYCLE_BUS_URL"].removeprefix("nats://"), f"{COLLECTOR}:4318"}
    given = variables(name)
    if given.settings.get("UPCYCLE_S3_KEY_FILE", "shared") or name == PROVISIONING:
        found.add("seaweedfs:8333")
    if "UPCYCLE_SQL_URL" in given.settings or name == PROVISIONING:
        found.add("postgres:5432")
    return sorted(found)


def ours() -> list[str]:
    """Services of the platform that stay."""
    services: dict[str, dict[str, object]] = COMPOSE["services"]
    return sorted(
        name for name, service in services.items() if "env_file" in service and service["restart"] != "no"
    )


def _kind(name: str) -> str:
    return "policy-engine" if name.startswith("policy-engine") else name


def _address(field: str) -> str:
    return SHARED[f"UPCYCLE_PEERS_{field.upper()}"]
