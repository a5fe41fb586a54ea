"""What can be wrong with a policy's files; one class per reaction."""


class PolicyFilesError(Exception):
    """Base of this package's errors."""


class InvalidPolicyDir(PolicyFilesError, ValueError):
    """The directory is no policy: a file is missing or not what its name says. Nothing was stored."""


class InvalidManifest(PolicyFilesError, ValueError):
    """The manifest contradicts itself, so nothing that it describes may be served."""


class CorruptPolicy(PolicyFilesError):
    """Bytes that arrived are not the bytes that the manifest names."""


class UnknownPolicy(PolicyFilesError, LookupError):
    """No manifest is stored under that model and version."""


class FalseAnnouncement(PolicyFilesError, ValueError):
    """A fact says something about a version that is not so; handling it again changes nothing."""


class VersionTaken(PolicyFilesError):
    """Another digest is already uploaded as that version; versions are never reused."""
