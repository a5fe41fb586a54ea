"""A channel to another service, as a component of this one."""

from collections.abc import Collection

from upcycle.rpc import connect


class Peer:
    """A channel that is opened at construction and closed when the service stops."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        default_timeout_s: float = 10.0,
        idempotent: Collection[str] = (),
        api_key: str | None = None,
    ) -> None:
        """Arguments as of `upcycle.rpc.connect`. Needs a running event loop."""
        self.name = name
        self.address = address
        self.channel = connect(
            address, default_timeout_s=default_timeout_s, idempotent=idempotent, api_key=api_key
        )

    async def start(self) -> None:
        """Does nothing: the first call connects, and the other service may start later than this one."""

    async def stop(self) -> None:
        """Close the channel; calls in flight get a second to end."""
        await self.channel.close(grace=1.0)

    def ready(self) -> str | None:
        """Ready at once: an absent peer does not make this service unready."""
        return None
