"""Policy versions as files: uploaded with a manifest last, fetched by digest, never half-visible."""

from policy_files.adapters import ADAPTER_FOLDER, AdapterInfo, adapter_of
from policy_files.announcements import Announcement
from policy_files.cache import fetch, prune, verify
from policy_files.errors import (
    CorruptPolicy,
    FalseAnnouncement,
    InvalidManifest,
    InvalidPolicyDir,
    PolicyFilesError,
    UnknownPolicy,
    VersionTaken,
)
from policy_files.kept_facts import AnnouncedVersions, Fact, KeptFacts
from policy_files.manifest import (
    check_manifest,
    manifest_bytes,
    manifest_from_bytes,
    manifest_ref,
    policy_digest,
    tokenizer_files,
)
from policy_files.uploading import PolicyFacts, load, upload
from policy_files.weights import TensorInfo, read_tensors, tensors_of_directory

__all__ = [
    "ADAPTER_FOLDER",
    "AdapterInfo",
    "AnnouncedVersions",
    "Announcement",
    "CorruptPolicy",
    "Fact",
    "FalseAnnouncement",
    "InvalidManifest",
    "InvalidPolicyDir",
    "KeptFacts",
    "PolicyFacts",
    "PolicyFilesError",
    "TensorInfo",
    "UnknownPolicy",
    "VersionTaken",
    "adapter_of",
    "check_manifest",
    "fetch",
    "load",
    "manifest_bytes",
    "manifest_from_bytes",
    "manifest_ref",
    "policy_digest",
    "prune",
    "read_tensors",
    "tensors_of_directory",
    "tokenizer_files",
    "upload",
    "verify",
]
