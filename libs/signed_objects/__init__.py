"""Signatures of manifests and training states: made where they are written, proven before they are used."""

from signed_objects.errors import BeyondScope, SigningKeyRefused, UnprovenBlob
from signed_objects.keys import SigningKey, TrustedKeys
from signed_objects.store import SignedStore, signed_store

__all__ = [
    "BeyondScope",
    "SignedStore",
    "SigningKey",
    "SigningKeyRefused",
    "TrustedKeys",
    "UnprovenBlob",
    "signed_store",
]
