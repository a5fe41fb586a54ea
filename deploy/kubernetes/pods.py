"""Pods of the platform: what each container of docker-compose.yml is in Kubernetes."""

from typing import Any, Final

from deploy.kubernetes import composed
from deploy.kubernetes.edges import COLLECTOR, OUTSIDE, PROVISIONING, ours

from blob_store.inner_ports import FILES

INFRASTRUCTURE: Final = ("nats", "seaweedfs", "postgres", COLLECTOR)
LEFT_OUT: Final = {
    "signing-keys": "deploy/kubernetes/secrets.py makes them, as Secrets",
    "signing": "upcycle signing sign, with the operator's key that secrets.py makes",
    "volumes": "fsGroup gives volumes to the user of the pod",
    "keys": "deploy/kubernetes/secrets.py makes them, as Secrets",
    "provision": "the first container of provision-watch, at each of its starts",
    "model": "upcycle models import, from where the model is",
    "backup": "upcycle backup, as docs/do/deploy.md tells",
    "minio": "a compatibility target",
}
"""Services of Compose that are no workload here, and what does their work."""
NUM_REPLICAS: Final = {"rollout-sampler": 2, "reward-grader": 2, "model-gateway": 2}
"""Where it is not one. The others may have more, too: docs/do/deploy.md says what each needs for it."""
HTTP_PORT: Final = 7200
USERS: Final = {"postgres": 70}
USER: Final = 10001
PART_OF: Final = {"app.kubernetes.io/part-of": "upcycle"}
SETTINGS: Final = "settings"
KEYS_FOLDER: Final = "/run/keys"
_REQUESTED: Final = {"memory": "256Mi", "cpu": "100m"}
_FILES_OF_SERVERS: Final = {
    "nats": (("accounts.conf",), "/etc/nats/keys"),
    "seaweedfs": (("s3.json", *FILES), "/etc/seaweedfs/keys"),
}
"""Server -> the files that say who may do what, and their folder."""
_KEY_FILES: Final = {
    "UPCYCLE_S3_KEY_FILE": "s3.json",
    "UPCYCLE_SQL_PASSWORD_FILE": "postgres.password",
    "SCENARIO_RUNNER_SECRETS_KEY_FILE": "secrets.key",
    "UPCYCLE_SIGNING_TRUSTED": "trusted.pub",
    "UPCYCLE_SIGNING_KEY": "signing.pem",
}
"""Setting of a file beside the key of NATS -> the file's name in the Secret."""
_SCRATCH: Final = "1Gi"
"""What a pod may write to memory, and beside its volumes."""
_PATHS: Final = {"postgres": {"PGDATA": "/var/lib/postgresql/data/pgdata"}}
"""The root of a volume is the cluster's: Postgres wants a folder that is its own."""
_ELSEWHERE: Final = {
    # A pod has one address, which leases and messages carry.
    "POLICY_ENGINE_ENGINE_HOST": "$(POD_IP)",
    "SCENARIO_RUNNER_ADVERTISED_ADDRESS": "$(POD_IP):7101",
    # One folder with the keys of a workload.
    "UPCYCLE_SIGNING_TRUSTED": f"{KEYS_FOLDER}/trusted.pub",
    "UPCYCLE_SIGNING_KEY": f"{KEYS_FOLDER}/signing.pem",
    # Environments are deployed: no file of a person's machine is here.
    "SCENARIO_RUNNER_ENVIRONMENT_ROOTS": "[]",
}


def labels(name: str) -> dict[str, str]:
    """By which services, policies and budgets find the pods of a workload."""
    return {"app.kubernetes.io/name": name, **PART_OF}


def ports(name: str) -> dict[str, int]:
    """Name -> number of each port that its container listens on."""
    if name in INFRASTRUCTURE:
        return {
            "nats": {"nats": 4222}, "seaweedfs": {"s3": 8333}, "postgres": {"postgres": 5432},
            COLLECTOR: {"otlp-http": 4318, "metrics": 8889},
        }[name]  # fmt: skip
    ends = {"_GRPC_PORT": "grpc", "_PUBLIC_PORT": "public", "_ENGINE_PORT": "engine", "_HTTP_PORT": "http"}
    settings = composed.variables(name).settings
    return {
        short: int(value)
        for key, value in settings.items()
        for end, short in ends.items()
        if key.endswith(end)
    }


def pod(name: str) -> dict[str, Any]:
    """The template of a workload."""
    user = USERS.get(name, USER)
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # Its variables, MODEL_GATEWAY_PORT for example, would be taken for settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": int(composed.COMPOSE["x-confined"]["stop_grace_period"][:-1]),
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(name)],
        "volumes": _volumes(name),
    }  # fmt: skip
    if name == PROVISIONING:
        spec["initContainers"] = [container("provision", of=name)]
    marks = {"upcycle.dev/outside": "true"} if name in OUTSIDE else {}
    return {"metadata": {"labels": {**labels(name), **marks}, "annotations": _scraped(name)}, "spec": spec}


def container(name: str, *, of: str | None = None) -> dict[str, Any]:
    """One container. of: the workload whose volumes and secrets it uses."""
    workload = of or name
    limits = {"memory": composed.memory(name), "cpu": "4", "ephemeral-storage": _SCRATCH}
    found: dict[str, Any] = {
        "name": name,
        "image": composed.image(name),
        "imagePullPolicy": "IfNotPresent",
        **composed.command(name),
        "env": _env(name, workload),
        "resources": {"requests": _REQUESTED, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(workload),
    }  # fmt: skip
    if workload in ours():
        found["envFrom"] = [{"configMapRef": {"name": SETTINGS}}]
    if name == workload:
        found["ports"] = [{"name": short, "containerPort": number} for short, number in ports(name).items()]
        found |= _probes(name)
    return found


def secret_files(name: str) -> list[str]:
    """Names of the files of its secret that a workload mounts."""
    if name in _FILES_OF_SERVERS:
        return [*_FILES_OF_SERVERS[name][0]]
    if name not in ours():
        return []
    settings = {**composed.shared(), **composed.variables(name).settings}
    logins = ["logins.json"] if name == PROVISIONING else []
    return ["bus.nk", *logins, *(file for variable, file in _KEY_FILES.items() if settings.get(variable))]


def _scraped(name: str) -> dict[str, str]:
    where = {"prometheus.io/scrape": "true", "prometheus.io/port": str(HTTP_PORT)}
    return where if name in ours() else {}


def _env(name: str, workload: str) -> list[dict[str, Any]]:
    """Secrets come first: a setting may name one that stands before it."""
    given = composed.variables(name)
    settings = {
        **{key: _ELSEWHERE.get(key, value) for key, value in given.settings.items()},
        **_PATHS.get(name, {}),
    }
    found: list[dict[str, Any]] = [
        {"name": variable, "valueFrom": {"secretKeyRef": _reference(workload, secret, must=must)}}
        for variable, (secret, must) in given.secrets.items()
    ]
    if any("$(POD_IP)" in value for value in settings.values()):
        found.append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    return [*found, *({"name": key, "value": value} for key, value in settings.items())]


def _reference(workload: str, secret: str, *, must: bool) -> dict[str, Any]:
    reference = {"name": workload, "key": secret}
    return reference if must else {**reference, "optional": True}


def _probes(name: str) -> dict[str, Any]:
    if name in ours():
        # Ready is what serves; an alarm that asks for a person is no reason to start a process again.
        often: dict[str, Any] = {"periodSeconds": 10, "timeoutSeconds": 5}
        live: dict[str, Any] = {"httpGet": {"path": "/livez", "port": "http"}, **often}
        ready = {"httpGet": {"path": "/readyz", "port": "http"}, **often}
        return {
            "startupProbe": {**live, "failureThreshold": 30},
            "livenessProbe": {**live, "failureThreshold": 6},
            "readinessProbe": ready,
        }
    if name == COLLECTOR:
        return {
            "readinessProbe": {"tcpSocket": {"port": "otlp-http"}},
            "livenessProbe": {"tcpSocket": {"port": "otlp-http"}},
        }
    how, *test = composed.COMPOSE["services"][name]["healthcheck"]["test"]
    command = ["sh", "-c", *test] if how == "CMD-SHELL" else test
    asks: dict[str, Any] = {"exec": {"command": command}, "timeoutSeconds": 5}
    return {
        "startupProbe": {**asks, "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {**asks, "periodSeconds": 5},
        "livenessProbe": {**asks, "periodSeconds": 10, "failureThreshold": 6},
    }


def _mounts(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": _volume(path), "mountPath": path} for path in _scratch(name)]
    found += [{"name": volume, "mountPath": path} for volume, path in composed.kept(name).items()]
    found += [
        {"name": "files", "mountPath": path, "subPath": path.rpartition("/")[2], "readOnly": True}
        for path in composed.files(name)
    ]
    if secret_files(name):
        _, folder = _FILES_OF_SERVERS.get(name, ((), KEYS_FOLDER))
        found.append({"name": "keys", "mountPath": folder, "readOnly": True})
    return found


def _volumes(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": _volume(path), "emptyDir": {"medium": "Memory", "sizeLimit": _SCRATCH}}
        for path in _scratch(name)
    ]
    if composed.files(name):
        found.append({"name": "files", "configMap": {"name": f"{name}-files"}})
    if files := secret_files(name):
        items = [{"key": one, "path": one} for one in files]
        found.append({"name": "keys", "secret": {"secretName": name, "items": items, "defaultMode": 0o440}})
    return found


def _scratch(name: str) -> list[str]:
    """Folders in memory; /dev/shm where Compose makes it larger than a runtime does."""
    kept = composed.kept(name).values()
    shared = ["/dev/shm"] if "shm_size" in composed.COMPOSE["services"][name] else []  # noqa: S108
    return [*(path for path in composed.in_memory(name) if path not in kept), *shared]


def _volume(path: str) -> str:
    return path.strip("/").replace("/", "-")
