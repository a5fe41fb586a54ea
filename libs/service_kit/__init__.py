"""What every service shares: settings, lifecycle, operations endpoints, telemetry, logging, deadlines.

Names are loaded on first use: `from service_kit.groups import S3Settings` imports no HTTP server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service_kit.background import BackgroundTasks, Worker
    from service_kit.clock import new_id, utc_now
    from service_kit.component import Closing, Component, TaskDied
    from service_kit.deadlines import DeadlineExceeded, deadline
    from service_kit.errors import StoreFull
    from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
    from service_kit.loops import pause, retry, until_stopped
    from service_kit.main import run_main
    from service_kit.service import Service
    from service_kit.settings import ServiceSettings, SettingsError, load_settings

__all__ = [
    "BackgroundTasks",
    "BusSettings",
    "Closing",
    "Component",
    "DeadlineExceeded",
    "PeerSettings",
    "S3Settings",
    "Service",
    "ServiceSettings",
    "SettingsError",
    "SqlSettings",
    "StoreFull",
    "TaskDied",
    "Worker",
    "deadline",
    "load_settings",
    "new_id",
    "pause",
    "retry",
    "run_main",
    "until_stopped",
    "utc_now",
]

_HOMES = {
    "background": ("BackgroundTasks", "Worker"),
    "clock": ("new_id", "utc_now"),
    "component": ("Closing", "Component", "TaskDied"),
    "deadlines": ("DeadlineExceeded", "deadline"),
    "groups": ("BusSettings", "PeerSettings", "S3Settings", "SqlSettings"),
    "errors": ("StoreFull",),
    "loops": ("pause", "retry", "until_stopped"),
    "main": ("run_main",),
    "service": ("Service",),
    "settings": ("ServiceSettings", "SettingsError", "load_settings"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'service_kit' has no attribute {name!r}")
    return getattr(import_module(f"service_kit.{_HOME_OF[name]}"), name)
