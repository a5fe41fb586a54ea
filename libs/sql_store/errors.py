"""What a store cannot do, one class per reaction. Conflicts (IntegrityError) belong to the caller and
pass through.
"""


class StoreError(Exception):
    """Base of every error of this package."""


class StoreFull(StoreError):
    """The disk, or the quota, of the database is used up. Nothing was written; make room and try again."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, opened or written. Nothing was written; the same call may succeed
    later.
    """


class UnsupportedDatabase(StoreError):
    """The URL names a database that this platform does not run on."""


class MigrationFailed(StoreError):
    """The tables cannot be brought to the version that this program needs; they are as they were."""
