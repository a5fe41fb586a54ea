"""Writes deploy/kubernetes/base from docker-compose.yml and edges.py: `python -m deploy.kubernetes.generate`.

A test compares, so an edit of what is written there is refused. What differs between clusters belongs into an
overlay.
"""

from pathlib import Path
from typing import Any, Final

import yaml
from deploy.kubernetes import composed
from deploy.kubernetes.edges import allowed, ours
from deploy.kubernetes.pods import INFRASTRUCTURE, NUM_REPLICAS, PART_OF, SETTINGS, labels, pod, ports

BASE: Final = Path(__file__).parent / "base"
NAMESPACE: Final = "upcycle"
EDGE: Final = "model-gateway"
"""The only service for clients outside."""
Manifest = dict[str, Any]
_HEAD: Final = "# Written by deploy/kubernetes/generate.py: change docker-compose.yml, or an overlay.\n"
_VOLUME_SIZE: Final = "20Gi"
_NO_INTERNET: Final = ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
"""Private networks, and the addresses at which clouds give away credentials."""


def workloads() -> list[str]:
    """Everything that runs, in the order of its files."""
    return [*INFRASTRUCTURE, *ours()]


def files() -> dict[str, str]:
    """File of the base -> its text."""
    found = {"namespace.yaml": [_namespace()], "settings.yaml": [_config_map(SETTINGS, composed.shared())]}
    found |= {f"{name}.yaml": of_workload(name) for name in workloads()}
    found["network-policies.yaml"] = [*_for_all(), *(_policy(name) for name in workloads())]
    texts = {name: _HEAD + "---\n".join(map(_text, manifests)) for name, manifests in found.items()}
    kustomization = {"namespace": NAMESPACE, "resources": sorted(texts)}
    return {
        **texts,
        "kustomization.yaml": _HEAD
        + _text({**_kind("kustomize.config.k8s.io/v1beta1", "Kustomization"), **kustomization}),
    }


def of_workload(name: str) -> list[Manifest]:
    """What belongs to one of them, but for its network policy."""
    found = [_controller(name), _service(name)]
    if mounted := composed.files(name):
        texts = {
            where.rpartition("/")[2]: (composed.ROOT / source).read_text()
            for where, source in mounted.items()
        }
        found.insert(0, _config_map(f"{name}-files", texts))
    if NUM_REPLICAS.get(name, 1) > 1:
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": labels(name)}}
        found.append(_named(_kind("policy/v1", "PodDisruptionBudget"), name, budget))
    return found


def _controller(name: str) -> Manifest:
    """What keeps files is a StatefulSet: each replica has a volume of its own."""
    spec: Manifest = {
        "replicas": NUM_REPLICAS.get(name, 1),
        "selector": {"matchLabels": labels(name)},
        "template": pod(name),
    }
    if not (kept := composed.kept(name)):
        return _named(_kind("apps/v1", "Deployment"), name, spec)
    size = {"resources": {"requests": {"storage": _VOLUME_SIZE}}}
    claims = [
        {"metadata": {"name": volume}, "spec": {"accessModes": ["ReadWriteOnce"], **size}} for volume in kept
    ]
    spec |= {"serviceName": name, "podManagementPolicy": "Parallel", "volumeClaimTemplates": claims}
    return _named(_kind("apps/v1", "StatefulSet"), name, spec)


def _service(name: str) -> Manifest:
    """Headless: a client finds each replica. One that is not ready is found, too: a service whose alarm asks
    for a person goes on working, and must not be cut off from the others."""
    listed = [{"name": short, "port": number, "targetPort": short} for short, number in ports(name).items()]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(name), "ports": listed}
    return _named(_kind("v1", "Service"), name, spec)


def _for_all() -> list[Manifest]:
    """Nothing is allowed; names are asked for; some may ask the internet."""
    dns = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    asks = {"to": [dns], "ports": [{"port": 53, "protocol": one} for one in ("UDP", "TCP")]}
    anywhere = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": _NO_INTERNET}}], "ports": _tcp(443)}
    marked = {"matchLabels": {"upcycle.dev/outside": "true"}}
    return [
        _network_policy("default-deny", {}, {"policyTypes": ["Ingress", "Egress"]}),
        _network_policy("names", {}, {"policyTypes": ["Egress"], "egress": [asks]}),
        _network_policy("outside", marked, {"policyTypes": ["Egress"], "egress": [anywhere]}),
    ]


def _policy(name: str) -> Manifest:
    """Both ends of each connection: what it may open, and what may reach it."""
    egress = [{"to": [_pods(host)], "ports": _tcp(port)} for host, port in _targets(name)]
    by_port: dict[int, list[Manifest]] = {}
    for client in workloads():
        for host, port in _targets(client):
            if host == name:
                by_port.setdefault(port, []).append(_pods(client))
    if name == EDGE:
        front = {"namespaceSelector": {"matchLabels": {"upcycle.dev/edge": "true"}}}
        by_port[ports(name)["public"]] = [front]
    ingress = [{"from": clients, "ports": _tcp(port)} for port, clients in sorted(by_port.items())]
    rules = {"policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}
    return _network_policy(name, {"matchLabels": labels(name)}, rules)


def _targets(name: str) -> list[tuple[str, int]]:
    return [(host, int(port)) for host, _, port in (one.rpartition(":") for one in allowed(name))]


def _pods(name: str) -> Manifest:
    return {"podSelector": {"matchLabels": labels(name)}}


def _tcp(port: int) -> list[Manifest]:
    return [{"port": port, "protocol": "TCP"}]


def _network_policy(name: str, pods: Manifest, rules: Manifest) -> Manifest:
    return _named(_kind("networking.k8s.io/v1", "NetworkPolicy"), name, {"podSelector": pods, **rules})


def _namespace() -> Manifest:
    """The cluster itself refuses pods that ask for more than these have."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return {**_kind("v1", "Namespace"), "metadata": {"name": NAMESPACE, "labels": {**PART_OF, **levels}}}


def _config_map(name: str, data: dict[str, str]) -> Manifest:
    return {**_kind("v1", "ConfigMap"), "metadata": {"name": name, "labels": PART_OF}, "data": data}


def _named(kind: Manifest, name: str, spec: Manifest) -> Manifest:
    return {**kind, "metadata": {"name": name, "labels": labels(name)}, "spec": spec}


def _kind(version: str, kind: str) -> Manifest:
    return {"apiVersion": version, "kind": kind}


class _Plain(yaml.SafeDumper):
    """Writes each text whole, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _represented)


def _text(manifest: Manifest) -> str:
    return yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=110)


def main() -> None:
    """Write the base anew."""
    for old in BASE.glob("*.yaml"):
        old.unlink()
    for name, text in files().items():
        (BASE / name).write_text(text)


if __name__ == "__main__":
    main()
