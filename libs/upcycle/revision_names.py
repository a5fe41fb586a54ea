"""Names of tasksets with and without their revision: `incidents@2` is the second revision of `incidents`."""

import re
from typing import Final

REVISION_SUFFIX: Final = re.compile(r"@\d+$")
"""The platform numbers revisions."""


def plain_name(taskset: str) -> str:
    """The name of a taskset without its revision: `incidents@2` is a revision of `incidents`."""
    return REVISION_SUFFIX.sub("", taskset)


def exact_name(taskset: str, revision: int) -> str:
    """The name of one revision; the plain name where the platform numbers none (0)."""
    return f"{taskset}@{revision}" if revision else taskset
