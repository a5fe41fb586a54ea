"""deploy/kubernetes without a cluster: the schemas of Kubernetes, our rules, and what Compose says."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deploy.kubernetes import composed, generate, secrets
from deploy.kubernetes.edges import CALLS, LEASES, PROVISIONING, allowed, ours
from deploy.kubernetes.pods import INFRASTRUCTURE, LEFT_OUT, ports
from tests.deploy.rules import Manifest, breaches

from service_kit.groups import PeerSettings

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "deploy" / "kubernetes" / "base"
EXAMPLE = BASE.parent / "example"
KUBERNETES = "1.34"
"""Of the schemas: the oldest that its makers still repair."""


def _built(folder: Path = BASE) -> Iterator[Manifest]:
    """What `kubectl apply -k` would send."""
    kubectl = Path(sys.executable).parent / "kubectl"
    done = subprocess.run(
        [str(kubectl), "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    yield from yaml.safe_load_all(done.stdout)


MANIFESTS = [*_built()]
WORKLOADS = {
    one["metadata"]["name"]: one for one in MANIFESTS if one["kind"] in ("Deployment", "StatefulSet")
}
POLICIES = {one["metadata"]["name"]: one["spec"] for one in MANIFESTS if one["kind"] == "NetworkPolicy"}
CONTAINERS = {
    container["name"]: container
    for one in WORKLOADS.values()
    for container in (
        *one["spec"]["template"]["spec"]["containers"],
        *one["spec"]["template"]["spec"].get("initContainers", ()),
    )
}


def named(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def test_the_base_is_what_the_generator_writes() -> None:
    written = {path.name: path.read_text() for path in BASE.iterdir()}
    assert written == generate.files(), "run: python -m deploy.kubernetes.generate"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=named)
def test_it_follows_the_schema_of_kubernetes(manifest: Manifest) -> None:
    assert kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("manifest", WORKLOADS.values(), ids=named)
def test_no_workload_breaks_a_rule(manifest: Manifest) -> None:
    assert breaches(manifest) == []


def _spec(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]["template"]["spec"]
    return spec


def _container(manifest: Manifest) -> Manifest:
    container: Manifest = _spec(manifest)["containers"][0]
    return container


BREACHES: dict[str, Callable[[Manifest], object]] = {
    "may run as root": lambda one: _spec(one)["securityContext"].update(runAsNonRoot=False),
    "no filter of system calls": lambda one: _spec(one)["securityContext"].pop("seccompProfile"),
    "has a token of the cluster": lambda one: _spec(one).pop("automountServiceAccountToken"),
    "gets variables of every Service": lambda one: _spec(one).pop("enableServiceLinks"),
    "shares a namespace of the node": lambda one: _spec(one).update(hostNetwork=True),
    "mounts {'path': '/'} of the node": lambda one: _spec(one)["volumes"].append(
        {"name": "node", "hostPath": {"path": "/"}}
    ),
    "nats: writes to its root file system": lambda one: _container(one)["securityContext"].pop(
        "readOnlyRootFilesystem"
    ),
    "nats: may gain privileges": lambda one: _container(one)["securityContext"].update(privileged=True),
    "nats: keeps capabilities": lambda one: _container(one)["securityContext"].pop("capabilities"),
    "nats: has another user than its pod": lambda one: _container(one)["securityContext"].update(runAsUser=0),
    "nats: no request and limit of memory": lambda one: _container(one)["resources"]["limits"].pop("memory"),
    "nats: image nats is whatever is newest": lambda one: _container(one).update(image="nats"),
    "nats: POSTGRES_PASSWORD has its value in the manifest": lambda one: _container(one)["env"].append(
        {"name": "POSTGRES_PASSWORD", "value": "x"}
    ),
    "nats: no livenessProbe": lambda one: _container(one).pop("livenessProbe"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_workload_that_breaks_a_rule_is_refused(breach: str) -> None:
    bad = copy.deepcopy(WORKLOADS["nats"])
    BREACHES[breach](bad)
    assert breaches(bad) == [breach]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: _spec(one).update(hostNetwrk=True),
        lambda one: _container(one).update(image=1),
        lambda one: _container(one)["ports"].append({"name": "no-number"}),
    ],
    ids=["unknown-field", "wrong-type", "missing-field"],
)
def test_what_is_no_kubernetes_is_refused(spoil: Callable[[Manifest], object]) -> None:
    bad = copy.deepcopy(WORKLOADS["nats"])
    spoil(bad)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(bad, KUBERNETES, strict=True)


def test_the_example_names_our_images_by_digest_and_another_model() -> None:
    pods = {one["metadata"]["name"]: one for one in _built(EXAMPLE) if "template" in one.get("spec", {})}
    for name, workload in pods.items():
        image = _container(workload)["image"]
        assert image.startswith("registry.example/upcycle") == (name in ours())
        assert "@sha256:" in image or name not in ours()
    engine = {one["name"]: one.get("value") for one in _container(pods["policy-engine-head"])["env"]}
    assert engine["POLICY_ENGINE_MODEL"] == "my-model"


def test_every_service_of_compose_is_a_workload_or_named_as_left_out() -> None:
    assert {*WORKLOADS} | {*LEFT_OUT} == {*composed.COMPOSE["services"]}
    assert not {*WORKLOADS} & {*LEFT_OUT}


@pytest.mark.parametrize("name", sorted(CONTAINERS))
def test_it_runs_the_program_of_compose_from_its_image(name: str) -> None:
    service, container = composed.COMPOSE["services"][name], CONTAINERS[name]
    assert container["image"] == composed.default(service["image"])
    assert container.get("command", []) == service.get("entrypoint", [])
    assert container.get("args", []) == service.get("command", [])


@pytest.mark.parametrize("name", ours())
def test_it_has_the_variables_of_compose(name: str) -> None:
    """Those without a value in Compose say that a secret is not for this service."""
    service = composed.COMPOSE["services"][name]
    settings = next(one for one in MANIFESTS if named(one) == "ConfigMap/settings")["data"]
    env = {one["name"]: one.get("value") for one in CONTAINERS[name]["env"]}
    here = {*settings, *env} - {"POD_IP"} - {key for key, value in env.items() if value == ""}
    given = {key for key, value in service["environment"].items() if value != ""}
    optional = {key for key in given if key.startswith("REWARD_GRADER_JUDGE")}
    withheld = {key for key, value in service["environment"].items() if value == ""}
    assert given - here <= optional
    assert here - given == {*composed.SECRETS} - withheld - given


def test_secrets_are_made_for_each_workload_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    secrets.main(folder)
    made = {
        one["metadata"]["name"]: {*one["data"]}
        for one in yaml.safe_load_all((folder / "secrets.yaml").read_text())
    }
    asked: dict[str, dict[str, bool]] = {}
    for name, workload in WORKLOADS.items():
        for key, is_optional in _references(workload):
            asked.setdefault(name, {})[key] = is_optional
    assert made.keys() == asked.keys()
    for name, keys in asked.items():
        assert {key for key, is_optional in keys.items() if not is_optional} <= made[name] <= {*keys}
    before = (folder / "secrets.yaml").read_bytes()
    secrets.main(folder)
    assert (folder / "secrets.yaml").read_bytes() == before
    assert (folder / "secrets.yaml").stat().st_mode & 0o077 == 0


def _references(workload: Manifest) -> Iterator[tuple[str, bool]]:
    """(key, whether the pod starts without it), each of the Secret that has the workload's name."""
    spec, name = _spec(workload), workload["metadata"]["name"]
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        for variable in container["env"]:
            if (reference := variable.get("valueFrom", {}).get("secretKeyRef")) is not None:
                assert reference["name"] == name
                yield reference["key"], reference.get("optional", False)
    for volume in spec["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["secretName"] == name
            yield from ((item["key"], False) for item in volume["secret"]["items"])


def _sources(package: str) -> str:
    folder = ROOT / "services" / package
    files = folder.rglob("*.py") if folder.exists() else [ROOT / "libs/event_bus/provision_watch.py"]
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_the_calls_are_those_of_the_code(kind: str) -> None:
    """A service that begins to call another one needs its edge, and one that ends to, none."""
    named_in_code = {
        field
        for field in PeerSettings.model_fields
        if re.search(rf"\bpeers\.{field}\b", _sources(kind.replace("-", "_")))
    }
    assert {*CALLS[kind]} == named_in_code
    assert not {*CALLS} - {"policy-engine", *ours()}
    assert {*LEASES} <= {*ours()}


def test_nothing_is_allowed_that_no_policy_names() -> None:
    assert POLICIES["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert POLICIES["outside"]["egress"][0]["ports"] == [{"port": 443, "protocol": "TCP"}]


def _edges(direction: str, end: str) -> set[tuple[str, str, int]]:
    """(client, server, port) as the policies of one direction say."""
    found = set()
    for name in WORKLOADS:
        for rule in POLICIES[name].get(direction, ()):
            for peer in rule[end]:
                if "podSelector" in peer:
                    other = peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
                    pair = (name, other) if direction == "egress" else (other, name)
                    found |= {(*pair, port["port"]) for port in rule["ports"]}
    return found


def test_both_ends_of_a_connection_allow_it_and_the_server_listens() -> None:
    opened, accepted = _edges("egress", "to"), _edges("ingress", "from")
    assert opened == accepted
    assert opened == {(name, *_target(one)) for name in WORKLOADS for one in allowed(name)}
    for _, server, port in opened:
        assert port in ports(server).values(), server


def test_what_may_connect_here_has_a_network_of_compose_in_common() -> None:
    """Else Compose would cut what Kubernetes allows."""
    networks = {name: {*composed.COMPOSE["services"][name]["networks"]} for name in WORKLOADS}
    networks[PROVISIONING] |= {*composed.COMPOSE["services"]["provision"]["networks"]}
    for client, server, _ in _edges("egress", "to"):
        assert networks[client] & networks[server], f"{client} and {server}"


def test_only_the_front_reaches_the_gateway_from_elsewhere() -> None:
    from_elsewhere = {
        (name, port["port"]): peer["namespaceSelector"]["matchLabels"]
        for name in WORKLOADS
        for rule in POLICIES[name].get("ingress", ())
        for peer in rule["from"]
        if "namespaceSelector" in peer
        for port in rule["ports"]
    }
    assert from_elsewhere == {("model-gateway", 7180): {"upcycle.dev/edge": "true"}}


def test_the_engines_and_the_tables_have_few_callers() -> None:
    clients: dict[str, set[str]] = {}
    for client, server, port in _edges("egress", "to"):
        clients.setdefault(f"{server}:{port}", set()).add(client)
    assert clients["policy-engine-head:7300"] == {"rollout-sampler", "model-gateway"}
    assert clients["postgres:5432"] == {
        "scenario-runner", "trajectory-store", "checkpoint-registry", "model-gateway", PROVISIONING,
    }  # fmt: skip
    assert clients["grpo-trainer:7106"] == {"scenario-runner"}


def _target(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_a_replica_that_is_not_alone_may_be_taken_away() -> None:
    budgets = {one["metadata"]["name"] for one in MANIFESTS if one["kind"] == "PodDisruptionBudget"}
    replicated = {name for name, one in WORKLOADS.items() if one["spec"]["replicas"] > 1}
    assert budgets == replicated != set()


def test_probes_ask_ports_that_the_container_has() -> None:
    for name in (*ours(), *INFRASTRUCTURE):
        container: dict[str, Any] = CONTAINERS[name]
        known = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container.get(probe, {})
            where = asked.get("httpGet", asked.get("tcpSocket", {}))
            assert where.get("port", next(iter(known))) in known
