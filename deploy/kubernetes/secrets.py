"""Makes the Secrets that deploy/kubernetes/base refers to: `python -m deploy.kubernetes.secrets FOLDER`.

FOLDER is yours to keep, and to keep secret: keys of NATS and of secrets, passwords of tables, values.env with
every other value, and secrets.yaml for `kubectl apply`. What is there is used again; a value is changed in
values.env.
"""

import secrets
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import yaml
from deploy.kubernetes.composed import SECRETS, SHARED
from deploy.kubernetes.generate import NAMESPACE, workloads
from deploy.kubernetes.pods import PART_OF, pod, secret_files

from blob_store.keys import StoreKey
from blob_store.rights import write_identities
from event_bus.accounts import write_accounts
from local_stack.credentials import secrets_key_file
from service_kit.private_files import write_private
from signed_objects.keys import load_or_make as make_signing_keys
from signed_objects.keys import trusted_file
from sql_store.logins import write_logins

_FOLDERS: Final = {"provision-watch": "provision"}
"""Workload -> the identity on the bus whose key it has, where that is not its own name."""
STORE_KEYS: Final = Path("/etc/seaweedfs/keys")
_BYTES: Final = 24


def values(folder: Path) -> dict[str, str]:
    """Of values.env, with what it lacks made and added."""
    file = folder / "values.env"
    known = dict(
        line.split("=", 1) for line in (file.read_text() if file.exists() else "").splitlines() if "=" in line
    )
    needed = [name for name in SECRETS if name in _must_be_there()]
    known |= {name: secrets.token_hex(_BYTES) for name in needed if name not in known}
    write_private(file, "".join(f"{name}={value}\n" for name, value in known.items()).encode())
    return known


def manifests(folder: Path) -> list[dict[str, Any]]:
    """One Secret for each workload that needs any, with what it needs."""
    known = values(folder)
    found = []
    for name in workloads():
        data = {key: known[key].encode() for key, _ in references(name) if key in known}
        data |= {one: _key_file(folder / "keys", name, one).read_bytes() for one in secret_files(name)}
        if data:
            found.append(_secret(name, data))
    return found


def references(name: str) -> list[tuple[str, bool]]:
    """(key of its Secret, whether its pod starts without it) of each variable of a workload."""
    spec = pod(name)["spec"]
    listed = [
        one["valueFrom"]["secretKeyRef"]
        for container in (*spec.get("initContainers", []), *spec["containers"])
        for one in container["env"]
        if "secretKeyRef" in one.get("valueFrom", {})
    ]
    return [(one["key"], one.get("optional", False)) for one in listed]


def _must_be_there() -> set[str]:
    asked = {key for name in workloads() for key, is_optional in references(name) if not is_optional}
    return asked | {"UPCYCLE_ACCESS_OPERATOR_KEY"}


def _key_file(folder: Path, name: str, file: str) -> Path:
    if file == trusted_file(folder).name:
        return trusted_file(folder)
    kind = "policy_engine" if name.startswith("policy-engine") else _FOLDERS.get(name, name.replace("-", "_"))
    return folder / kind / file


def _secret(name: str, data: dict[str, bytes]) -> dict[str, Any]:
    encoded = {key: b64encode(value).decode() for key, value in data.items()}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": PART_OF}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": encoded}


def main(folder: Path) -> None:
    """Make what is missing, and write secrets.yaml."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_accounts(folder / "keys")
    secrets_key_file(folder / "keys" / "scenario_runner")
    make_signing_keys(folder / "keys")
    write_logins(folder / "keys")
    known = values(folder)
    operator = StoreKey(known["UPCYCLE_S3_ACCESS_KEY"], known["UPCYCLE_S3_SECRET_KEY"])
    write_identities(folder / "keys", operator, SHARED["UPCYCLE_S3_BUCKET"], seen_at=STORE_KEYS)
    write_private(folder / "secrets.yaml", yaml.safe_dump_all(manifests(folder), sort_keys=False).encode())
    print(f"kubectl apply -f {folder / 'secrets.yaml'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m deploy.kubernetes.secrets FOLDER")
    main(Path(sys.argv[1]))
