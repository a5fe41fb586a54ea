"""The manifest of a policy version: its digest, its canonical bytes, and what makes it self-consistent."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping

from google.protobuf import json_format

from blob_store import BlobRef
from identities import objects
from identities.errors import InvalidIdentity
from policy_files.errors import InvalidManifest
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyManifest

REQUIRED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
_MAX_FILES = 4096
_TOKENIZER_FILES = frozenset(
    {
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
    }
)
"""With chat templates, which stand in files of their own or in tokenizer_config.json."""


def policy_digest(sha256_of: Mapping[str, str]) -> str:
    """Identity of a policy: sha256 over the sorted lines "name sha256\\n" of its files, lower-case hex."""
    lines = "".join(f"{name} {sha256_of[name]}\n" for name in sorted(sha256_of))
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()


def manifest_bytes(manifest: PolicyManifest) -> bytes:
    """Canonical JSON: equal manifests have equal bytes, so a repeated upload stores the same object."""
    plain = json_format.MessageToDict(manifest, preserving_proto_field_name=True)
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("utf-8")


def manifest_ref(manifest: PolicyManifest) -> BlobRef:
    """The claim check of an uploaded manifest, for events."""
    data = manifest_bytes(manifest)
    key = objects.policy_manifest(manifest.model, manifest.version)
    return BlobRef(key=key, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def manifest_from_bytes(data: bytes) -> PolicyManifest:
    """Parse and check. Unknown fields are ignored: manifests only grow. Raises InvalidManifest."""
    try:
        manifest = json_format.Parse(data, PolicyManifest(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidManifest(f"the manifest is not a PolicyManifest in JSON: {error}") from error
    check_manifest(manifest)
    return manifest


def tokenizer_files(manifest: PolicyManifest) -> dict[str, str]:
    """Name -> sha256 of the files that decide which text a token is: equal for two versions means that the
    tokens of one are those of the other."""
    return {file.name: file.blob.sha256 for file in manifest.files if _is_of_tokenizer(file.name)}


def _is_of_tokenizer(name: str) -> bool:
    return name in _TOKENIZER_FILES or "chat_template" in name


def check_manifest(manifest: PolicyManifest) -> None:
    """Raises InvalidManifest where names are unsafe, required files lack, or digest and files disagree."""
    what = f"manifest of {manifest.model!r} v{manifest.version}"
    try:
        objects.policy_version(manifest.model, manifest.version)
    except InvalidIdentity as error:
        raise InvalidManifest(str(error)) from error
    if not 0 < len(manifest.files) <= _MAX_FILES:
        raise InvalidManifest(f"{what} lists {len(manifest.files)} files, expected 1..{_MAX_FILES}")
    names = [file.name for file in manifest.files]
    for name in names:
        _check_name(name)
    if len(set(names)) != len(names):
        raise InvalidManifest(f"{what} lists a file twice: {sorted(names)}")
    _check_required(names, what)
    digest = policy_digest({file.name: file.blob.sha256 for file in manifest.files})
    if digest != manifest.digest:
        raise InvalidManifest(f"{what} says digest {manifest.digest!r}, but its files have {digest!r}")
    _check_canary(manifest.canary, what)


def _check_name(name: str) -> None:
    parts = name.split("/")
    if not name or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidManifest(f"file name {name!r} is not a plain relative path")
    if name == objects.MANIFEST:
        raise InvalidManifest(f"{objects.MANIFEST} is reserved for the manifest itself")


def _check_required(names: Iterable[str], what: str) -> None:
    present = set(names)
    missing = [name for name in REQUIRED_FILES if name not in present]
    if missing:
        raise InvalidManifest(f"{what} lacks {', '.join(missing)}")
    if not any(name.endswith(".safetensors") for name in present):
        raise InvalidManifest(f"{what} lists no .safetensors file")


def _check_canary(rows: Iterable[CanaryRow], what: str) -> None:
    for index, row in enumerate(rows):
        if len(row.token_ids) < 2 or len(row.logprobs) != len(row.token_ids) - 1:
            raise InvalidManifest(
                f"{what}: canary[{index}] has {len(row.token_ids)} ids and {len(row.logprobs)} logprobs; "
                "a row needs at least 2 ids and one logprob per id after the first"
            )
        if not all(math.isfinite(value) and value <= 0 for value in row.logprobs):
            raise InvalidManifest(f"{what}: canary[{index}] holds a logprob that is not finite and <= 0")
