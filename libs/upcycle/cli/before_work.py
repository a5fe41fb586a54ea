"""What a service refuses before anything has begun: a usage error of the command, exit status 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from upcycle.rpc import RemoteError


class NotBegun(UpcycleError):
    """The service's own sentence. reason: its word for it."""

    def __init__(self, refusal: "RemoteError") -> None:
        super().__init__(refusal.message)
        self.reason = refusal.reason


@contextmanager
def before_work() -> Iterator[None]:
    """Around what asks for work. Raises NotBegun where the answer says that the request is wrong; what says
    that the service is, or is away, passes."""
    from upcycle.rpc import REFUSALS, remote_errors

    try:
        with remote_errors():
            yield
    except REFUSALS as error:
        raise NotBegun(error) from error
