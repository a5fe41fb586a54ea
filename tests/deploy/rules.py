"""What no manifest of the platform may lack, as a function that names each breach."""

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]
_CAPABILITIES = {"drop": ["ALL"]}


def breaches(manifest: Manifest) -> list[str]:
    """Every rule that a workload, with all containers of it, does not keep; none for other kinds."""
    template = manifest.get("spec", {}).get("template")
    if template is None:
        return []
    spec = template["spec"]
    found = [*_of_pod(spec)]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        found += [f"{container['name']}: {what}" for what in _of_container(container)]
    for container in spec["containers"]:
        found += [f"{container['name']}: no {probe}" for probe in _probes_without(container)]
    return found


def _of_pod(spec: Manifest) -> Iterator[str]:
    context = spec.get("securityContext", {})
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        yield "may run as root"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no filter of system calls"
    if spec.get("automountServiceAccountToken") is not False:
        yield "has a token of the cluster"
    if spec.get("enableServiceLinks") is not False:
        yield "gets variables of every Service"
    if any(spec.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC")):
        yield "shares a namespace of the node"
    for volume in spec.get("volumes", ()):
        if "hostPath" in volume:
            yield f"mounts {volume['hostPath']} of the node"


def _of_container(container: Manifest) -> Iterator[str]:
    context = container.get("securityContext", {})
    if context.get("readOnlyRootFilesystem") is not True:
        yield "writes to its root file system"
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        yield "may gain privileges"
    if context.get("capabilities") != _CAPABILITIES:
        yield "keeps capabilities"
    if {"runAsUser", "runAsNonRoot"} & context.keys():
        yield "has another user than its pod"
    image = container["image"].rpartition("/")[2]
    if "@sha256:" not in image and image.rpartition(":")[2] in (image, "latest"):
        yield f"image {container['image']} is whatever is newest"
    yield from _without_limits(container.get("resources", {}))
    for variable in container.get("env", ()):
        is_path = str(variable.get("value", "")).startswith("/")
        if "value" in variable and _is_secret(variable["name"]) and not is_path:
            yield f"{variable['name']} has its value in the manifest"


def _without_limits(resources: Manifest) -> Iterator[str]:
    for what in ("memory", "cpu"):
        if not (resources.get("limits", {}).get(what) and resources.get("requests", {}).get(what)):
            yield f"no request and limit of {what}"


def _probes_without(container: Manifest) -> list[str]:
    return [probe for probe in ("readinessProbe", "livenessProbe") if probe not in container]


def _is_secret(name: str) -> bool:
    return name.endswith(("_KEY", "_KEYS", "PASSWORD", "_TOKEN"))
