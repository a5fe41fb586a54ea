"""Commands that start platform processes, or speak to the bus, need the distribution `upcycle-platform`."""

import importlib.util

from upcycle.errors import UpcycleError


class PlatformNotInstalled(UpcycleError):
    """The command starts the platform, or speaks to its bus, and only the SDK is installed."""

    kind = "platform_not_installed"


def require_platform(command: str) -> None:
    """Raises PlatformNotInstalled unless the services can be imported."""
    if importlib.util.find_spec("local_stack") is None:
        raise PlatformNotInstalled(
            f"`upcycle {command}` needs the platform, and only the SDK is installed",
            "in a checkout: pip install ./libs '.[local,train]'",
        )
