"""How many files and sockets this process may have open."""

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

_WANTED: Final = 65_536
_SHARE: Final = 2
"""A request that is passed on takes a socket on either side."""


def raise_descriptor_limit() -> int:
    """As high as this process may, up to 65,536: shells give 1,024. Returns the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connections_that_fit(wanted: int) -> int:
    """`wanted`, or what half of the descriptors allow; then a line in the log says how to get more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if soft == resource.RLIM_INFINITY else max(1, soft // _SHARE)
    if most < wanted:
        extra = {"connections": most, "wanted": wanted, "descriptors": soft, "hard_limit": hard}
        log.warning("descriptors_limit_connections", extra={**extra, "way_out": "raise `ulimit -Hn`"})
    return min(wanted, most)
