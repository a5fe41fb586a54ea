"""What a database cannot do and waiting will not change.

A database that cannot be used now raises upcycle.errors.Unavailable, a full one service_kit.StoreFull.
Conflicts (IntegrityError) belong to the caller and pass through.
"""


class UnsupportedDatabase(Exception):
    """The URL names a database that this platform does not run on."""


class MigrationFailed(Exception):
    """The tables cannot be brought to the version that this program needs; they are as they were."""


class OtherTenant(MigrationFailed):
    """The tables belong to another tenant than the one that this process works for."""
