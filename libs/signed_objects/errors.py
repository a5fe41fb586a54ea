"""What can be wrong with a signature, and with the keys; one class per reaction."""

from blob_store import CorruptBlob
from upcycle.errors import UpcycleError


class UnprovenBlob(CorruptBlob):
    """No trusted key has signed these bytes for this object: they must not be used. Final, until a person
    signs them or trusts the key."""


class BeyondScope(UpcycleError):
    """This process's key may not sign objects of this kind; nothing was stored."""

    kind = "beyond_scope"


class SigningKeyRefused(UpcycleError):
    """A file with keys of signatures cannot be used."""

    kind = "signing_key_refused"
