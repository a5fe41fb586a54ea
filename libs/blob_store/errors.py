"""One class per reaction of a caller.

A store that did not do it within the retry budget raises upcycle.errors.Unavailable, a full one
service_kit.StoreFull, which is an Unavailable too.
"""

from upcycle.errors import Unavailable, UpcycleError


class BlobError(Exception):
    """Base of everything this package raises on purpose."""


class MissingBlob(BlobError):
    """The key holds nothing. Final: a reference is only published after its bytes."""


class InvalidKey(MissingBlob, ValueError):
    """No store takes this key, so it holds nothing."""


class CorruptBlob(BlobError):
    """The key holds other bytes than the reference promises. Final: do not use them."""


class StoreDenied(BlobError, Unavailable):
    """The credentials are wrong or do not allow this. Work waits until an operator corrects them."""


class BucketMissing(BlobError, Unavailable):
    """The bucket was never created: provisioning did not run. Work waits until it does."""


class UnknownStoreError(BlobError, Unavailable):
    """The store answered with an error that this package does not know. Work waits for an operator."""


class StoreKeyRefused(UpcycleError):
    """A file with a key of the object store cannot be used."""

    kind = "store_key_refused"
