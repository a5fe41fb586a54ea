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


def require_train(command: str) -> None:
    """Raises PlatformNotInstalled unless the platform is there with what its extra `train` brings."""
    require_platform(command)
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        raise PlatformNotInstalled(
            f"`upcycle {command}` needs torch and transformers, and they are not installed",
            "in a checkout: pip install ./libs '.[local,train]'",
        )
