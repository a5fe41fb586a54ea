"""Versions that requests ask for and no engine serves: the registry has an engine hold them for a while."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, TypeVar

from model_gateway.adapters.holds import RegistryHolds
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import GatewayError

log = logging.getLogger(__name__)

T = TypeVar("T")

_ASK_AGAIN_S: Final = 1.0
"""Between two questions about a version that no engine serves yet."""
_KEPT: Final = 1024
"""Holds that are remembered. The registry's expiry ends one that is forgotten."""


class HoldVersions:
    """Asks for each version once, however many requests want it, and again while it is used."""

    def __init__(
        self, holds: RegistryHolds, *, hold_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """hold_s: how long a version is held after its last request; 0: nothing is ever held."""
        self._holds = holds
        self._hold_s = hold_s
        self._monotonic = monotonic
        self._granted_at: dict[ModelTarget, float] = {}
        self._refused: dict[ModelTarget, tuple[GatewayError, float]] = {}
        self._asking: dict[ModelTarget, asyncio.Task[None]] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything is held."""
        return self._hold_s > 0

    async def hold(self, target: ModelTarget) -> None:
        """Returns once an engine is to serve the version, which it may still have to load. Raises
        UnknownVersion, VersionRemoved, VersionNotServed, NoRoom; NoEngine where the registry is away."""
        now = self._monotonic()
        error, refused_at = self._refused.get(target, (None, 0.0))
        if error is not None and now - refused_at < _ASK_AGAIN_S:
            raise type(error)(error.message, param=error.param)
        if now - self._granted_at.get(target, -math.inf) >= _ASK_AGAIN_S:
            await asyncio.shield(self._ask(target))

    def used(self, target: ModelTarget) -> None:
        """A request goes to a version; one that we have held stays held."""
        if self._monotonic() - self._granted_at.get(target, math.inf) >= self._hold_s / 2:
            self._ask(target).add_done_callback(_said)

    def _ask(self, target: ModelTarget) -> asyncio.Task[None]:
        asking = self._asking.get(target)
        if asking is None:
            asking = self._asking[target] = asyncio.create_task(self._granted(target))
            asking.add_done_callback(lambda _: self._asking.pop(target, None))
        return asking

    async def _granted(self, target: ModelTarget) -> None:
        try:
            await self._holds.hold(target, self._hold_s)
        except GatewayError as error:
            _remember(self._refused, target, (error, self._monotonic()))
            raise
        self._refused.pop(target, None)
        _remember(self._granted_at, target, self._monotonic())


def _remember(kept: dict[ModelTarget, T], target: ModelTarget, value: T) -> None:
    kept.pop(target, None)
    kept[target] = value
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]


def _said(asked: asyncio.Task[None]) -> None:
    """An extension that failed is tried with the next request; until the old hold ends nothing is lost."""
    error = None if asked.cancelled() else asked.exception()
    if isinstance(error, GatewayError):
        log.warning("hold_not_extended", extra={"why": str(error)})
