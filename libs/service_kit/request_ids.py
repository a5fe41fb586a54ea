"""Ids of HTTP requests, which answers carry as `x-request-id` and logs have."""

import itertools
import secrets
from collections.abc import Callable
from typing import Final

REQUEST_ID: Final = "x-request-id"


def request_ids() -> Callable[[], str]:
    """Unique: random per process, then counted, as a fresh random number per request is a system call."""
    process, counter = secrets.token_hex(6), itertools.count()
    return lambda: f"req-{process}{next(counter):08x}"


new_request_id = request_ids()
