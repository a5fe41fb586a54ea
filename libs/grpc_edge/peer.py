"""A channel to another service, as a component of this one."""

from collections.abc import Collection

from service_kit.component import Closing
from upcycle.rpc import connect


class Peer(Closing):
    """A channel that is opened at construction and closed when the service stops.

    Nothing waits for the other service: the first call connects, and an absent peer does not make this
    service unready.
    """

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
        self.address = address
        self.channel = connect(
            address, default_timeout_s=default_timeout_s, idempotent=idempotent, api_key=api_key
        )
        # Calls in flight get a second to end.
        super().__init__(name, lambda: self.channel.close(grace=1.0))
