"""Why there is no backup, or no restored platform."""

from upcycle.errors import Failed, UpcycleError


class BackupRefused(UpcycleError):
    """Not as things are: the platform runs, or the target holds something. Nothing was changed."""

    kind = "backup_refused"


class BackupDamaged(Failed):
    """Files of a backup are missing, or are not what was written. Nothing was changed."""

    kind = "backup_damaged"


class BackupFailed(Failed):
    """It was begun and could not be finished. The same command may be repeated."""

    kind = "backup_failed"
