"""Which identity may do what with which objects, and the same as SeaweedFS reads it.

A service has what its code does, below the prefixes of `identities.objects`; the operator's key may do
everything. A key that is stolen from an engine reads weights, and writes nothing.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from blob_store.inner_ports import write_security
from blob_store.keys import StoreKey, load_or_make, write_key
from blob_store.keys import renew as renewed
from identities import objects
from identities.tenants import ONLY_TENANT, OWN_TENANT
from service_kit.private_files import write_private

OPERATOR: Final = "operator"
PROBE: Final = ".ready"
"""Key that every identity may look for: whether there is one or not, the bucket is there."""
_READ: Final = ("Read",)
_ADD: Final = ("Read", "Write")
_KEEP: Final = ("Read", "Write", "List")
"""Write: put and delete, at most what the store itself tells apart."""
_EVERYTHING: Final = ("Admin", "Read", "Write", "List", "Tagging")


class _Prefixes(NamedTuple):
    trajectories: str
    policies: str
    training: str
    interactive: str
    trainers: str
    sources: str

    @classmethod
    def of(cls, tenant: str) -> "_Prefixes":
        return cls(
            objects.trajectories(tenant),
            objects.policies(tenant),
            objects.training_states(tenant),
            objects.interactive_states(tenant),
            objects.trainers(tenant),
            objects.packed_sources(tenant),
        )


Rights = Mapping[str, tuple[str, ...]]
"""What is allowed by prefix."""


def rights(tenant: str = OWN_TENANT) -> Mapping[str, Rights]:
    """Of each service, by its identity on the bus."""
    of = _Prefixes.of(tenant)
    return {
        "scenario_runner": {of.sources: _KEEP, of.trajectories: _READ},
        "rollout_sampler": {of.policies: _READ, of.trajectories: _ADD},
        "policy_engine": {of.policies: _READ},
        "reward_grader": {of.trajectories: _READ},
        "trajectory_store": {of.trajectories: _KEEP},
        "grpo_trainer": {
            of.trajectories: _READ,
            of.policies: _KEEP,
            of.training: _KEEP,
            of.interactive: _KEEP,
            of.trainers: _KEEP,
        },
        "checkpoint_registry": {of.policies: _KEEP},
        "model_gateway": {of.trajectories: _ADD},
    }


def seaweed_identities(
    operator: StoreKey, keys: Mapping[str, StoreKey], bucket: str, tenant: str = OWN_TENANT
) -> dict[str, Any]:
    """The file that `weed` reads with `-s3.config`. keys: of services, each of which is in `rights`."""
    allowed = rights(tenant)
    ours = "" if tenant == ONLY_TENANT else f"{tenant}-"
    services = [
        _identity(f"{ours}{name}", key, [f"Read:{bucket}/{PROBE}*", *_actions(bucket, allowed[name])])
        for name, key in keys.items()
    ]
    return {"identities": [_identity(OPERATOR, operator, list(_EVERYTHING)), *services]}


def write_identities(
    folder: Path,
    operator: StoreKey,
    bucket: str,
    *,
    renew: Iterable[str] = (),
    one_key: bool = False,
    seen_at: Path | None = None,
) -> Path:
    """Keys of services in `folder`, made where they are missing or to be renewed, and what `weed` reads, in
    `folder`/seaweedfs: s3.json, whose path is returned, and security.toml. one_key: every service has the
    operator's. seen_at: where the server finds that folder. Raises StoreKeyRefused.
    """
    keys, taken = dict[str, StoreKey](), {operator.access_key}
    for name in rights():
        if one_key:
            write_key(folder, name, operator)
            continue
        if name in renew or load_or_make(folder, [name])[name].access_key in taken:
            renewed(folder, name)  # after one_key, too: of two with one access key the server knows the last
        keys |= load_or_make(folder, [name])
        taken.add(keys[name].access_key)
    server = folder / "seaweedfs" / "s3.json"
    write_rights(server, operator, keys, bucket)
    write_security(server.parent, seen_at)
    return server


def write_rights(path: Path, operator: StoreKey, keys: Mapping[str, StoreKey], bucket: str) -> None:
    """What `weed` reads with `-s3.config`, for the server alone: it holds every key."""
    write_private(path, json.dumps(seaweed_identities(operator, keys, bucket)).encode())


def _actions(bucket: str, allowed: Rights) -> list[str]:
    return [f"{action}:{bucket}/{prefix}*" for prefix, actions in allowed.items() for action in actions]


def _identity(name: str, key: StoreKey, actions: list[str]) -> dict[str, Any]:
    credentials = {"accessKey": key.access_key, "secretKey": key.secret_key}
    return {"name": name, "credentials": [credentials], "actions": actions}
