"""Whose data a process works with. A process works for one tenant, which `UPCYCLE_TENANT` names.

The name begins each subject, object key and durable, and stands in the rows. A tenant's services have keys,
databases, an account of NATS and a bucket of their own, so that none of them can reach what is another's.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

from identities.errors import InvalidIdentity

VARIABLE: Final = "UPCYCLE_TENANT"
ONLY_TENANT: Final = "default"
"""Of a platform that is told no name."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_TAKEN: Final = frozenset({"request"})
"""`up.request.…` are questions to provisioning."""


def tenant_of(variables: Mapping[str, str]) -> str:
    """The tenant that a process with these variables works for. Raises InvalidIdentity."""
    name = variables.get(VARIABLE) or ONLY_TENANT
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise InvalidIdentity(
            f"{VARIABLE}={name[:60]!r} names no tenant: 1 to 40 lower-case letters, digits and hyphens, no "
            f"hyphen at either end, and not {' or '.join(_TAKEN)}"
        )
    return name


OWN_TENANT: Final = tenant_of(os.environ)
"""Fixed for the life of a process, as the names of its durables are."""
