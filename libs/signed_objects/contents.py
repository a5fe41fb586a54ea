"""What can be seen of a signed object without its writer: whether it says what its place says."""

import json
from typing import Any
from urllib.parse import unquote

from google.protobuf import json_format

from identities import objects
from identities.errors import InvalidIdentity
from policy_files import InvalidManifest, manifest_from_bytes
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished


def fault_in(key: str, data: bytes) -> str:
    """Why the bytes cannot be the object of this key; empty where nothing is seen."""
    try:
        found = _place_of(key, data)
    except (ValueError, KeyError, TypeError, InvalidManifest, InvalidIdentity) as error:
        return f"it cannot be read: {type(error).__name__}: {error}"
    return "" if found == key else f"it says that it is {found}"


def _place_of(key: str, data: bytes) -> str:
    """The key that belongs to what the bytes say."""
    tenant = _tenant(key)
    if objects.parse_policy_manifest(key):
        manifest = manifest_from_bytes(data)
        return objects.policy_manifest(manifest.model, manifest.version, tenant)
    if objects.parse_policy_fact(key, objects.PUBLISHED):
        published = json_format.Parse(data, PolicyPublished(), ignore_unknown_fields=True)
        return objects.policy_fact(published.model, published.version, objects.PUBLISHED, tenant)
    if objects.parse_policy_fact(key, objects.SAVED):
        saved = json_format.Parse(data, CheckpointSaved(), ignore_unknown_fields=True)
        return objects.policy_fact(saved.model, saved.version, objects.SAVED, tenant)
    return _place_of_marker(key, json.loads(data))


def _place_of_marker(key: str, plain: dict[str, Any]) -> str:
    """A claim names no run: it is taken for one of its place."""
    marker = objects.parse_step_marker(key)
    if marker is None:  # a conversion names its marker by digest, and its place by none
        if not plain.keys() >= {"marker", "files"}:
            raise ValueError("it says no marker and no files")
        return key
    if isinstance(plain.get("claim"), dict) and "token" in plain["claim"]:
        return key
    session = plain.get("session", plain)
    model, run_id, tenant = session["spec"]["model"], session["spec"]["run_id"], _tenant(key)
    is_of_run = "session" not in plain
    line = (
        objects.training_run(model, run_id, tenant)
        if is_of_run
        else objects.interactive_session(model, tenant)
    )
    return objects.step_marker(objects.training_step(line, session["step"]), marker.number)


def _tenant(key: str) -> str:
    """What an object says of itself names no tenant: it is that of its place."""
    return unquote(key.partition("/")[0])
