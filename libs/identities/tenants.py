"""Whose data something is. There is one tenant until callers have keys."""

from typing import Final

DEFAULT_TENANT: Final = "default"
