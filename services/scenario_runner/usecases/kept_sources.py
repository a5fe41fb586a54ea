"""The packed source of an environment by its digest, for who grades an old run again.

Only the operator's key gets here (the contract of the rpc): a source may hold what a scenario looks for.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from scenario_runner.domain.runs import NotFound
from service_kit.errors import InvalidRequest
from upcycle.environment.deployed import deployed_digest, deployed_path
from upcycle.errors import SourceRefused

Packed = Callable[[str], Awaitable[bytes | None]]
_SHOWN: Final = 12


class ReadSource:
    """Reads what was packed at a submission, or sent by `upcycle deploy`."""

    def __init__(self, packed: Packed) -> None:
        """packed: by digest; None for what is not kept."""
        self._packed = packed

    async def __call__(self, digest: str) -> bytes:
        """The archive; who reads it checks it against the digest. Raises InvalidRequest for what is no
        digest, NotFound, Unavailable."""
        try:
            known = deployed_digest(deployed_path(digest))
        except SourceRefused as error:
            raise InvalidRequest(str(error)) from error
        packed = await self._packed(known)
        if packed is None:
            raise NotFound(
                f"source {known[:_SHOWN]} is not kept here: retention removed it, or it was never packed"
            )
        return packed
