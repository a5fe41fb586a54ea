"""Follows the engines: the sampler takes the commands of exactly those models that one serves."""

import asyncio
import logging
from collections.abc import Sequence

from event_bus import QueueSubscriber
from rollout_sampler.adapters.leases import LeaseCache
from service_kit.loops import until_stopped

log = logging.getLogger(__name__)


class FollowEngines:
    """The commands of a model without an engine stay in its queue, where they hold up no other model's."""

    def __init__(self, leases: LeaseCache, queues: Sequence[QueueSubscriber], *, every_s: float) -> None:
        self._leases = leases
        self._queues = queues
        self._every_s = every_s
        self._models: frozenset[str] = frozenset()

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the registry is unavailable, the last models are followed."""
        await until_stopped(stop, self._follow, every_s=self._every_s, waiting="engines_unknown")

    async def _follow(self) -> None:
        models = await self._leases.served_models()
        for queue in self._queues:
            queue.follow(models)
        if models != self._models:
            begun, ended = sorted(models - self._models), sorted(self._models - models)
            log.info("models_followed", extra={"count": len(models), "begun": begun, "ended": ended})
        self._models = models
