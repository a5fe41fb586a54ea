"""Engines over vLLM's wire: the one with the least in flight, each token stamped with version and digest."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from engine_client import (
    Completion,
    ContextOverflow,
    EngineClient,
    EngineRejected,
    EngineUnavailable,
    SamplingParams,
)
from episodes import EpisodeBroken, EpisodeFailure
from rollout_sampler.adapters.leases import EngineChoice, LeaseCache, choices_among
from rollout_sampler.domain import PolicyWanted
from upcycle.api.common.v1.common_pb2 import Usage
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_SUSPECT_S: Final = 2.0
_MAX_GONE: Final = 16
"""Engines without a lease that are remembered: one whose lease lapsed for a moment keeps its connections."""
_NOT_SERVED: Final = 404


class EngineSeconds:
    """Shares each second of one engine equally among the requests in flight there, so that the seconds of all
    requests add up to the time in which the engine had any."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.in_flight = 0
        self.begun_s = 0.0
        """When its last request was sent."""
        self._now_s = now_s
        self._at_s = 0.0
        self._share_s = 0.0
        """What one request that was always in flight would have got until `_at_s`."""

    def begin(self) -> float:
        """A request is sent; what it returns goes to `end`."""
        self._go_on(1)
        self.begun_s = self._at_s
        return self._share_s

    def end(self, begun: float) -> float:
        """The request is over, answered or not; its seconds."""
        self._go_on(-1)
        return self._share_s - begun

    def _go_on(self, change: int) -> None:
        now_s = self._now_s()
        if self.in_flight:
            self._share_s += (now_s - self._at_s) / self.in_flight
        self._at_s, self.in_flight = now_s, self.in_flight + change


DigestOf = Callable[[str, int], Awaitable[str]]
"""(model, version) -> digest of its weights."""


class LeasedEngines:
    """The first request connects, `stop` closes all connections."""

    def __init__(self, leases: LeaseCache, digest_of: DigestOf, *, turn_timeout_s: float) -> None:
        self._leases = leases
        self._digest_of = digest_of
        self._turn_timeout_s = turn_timeout_s
        self._clients: dict[str, EngineClient] = {}
        self._seconds: defaultdict[str, EngineSeconds] = defaultdict(lambda: EngineSeconds(time.monotonic))
        self._suspect_until: dict[str, float] = {}

    async def stop(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()

    async def sample(
        self, wanted: PolicyWanted, prompt_ids: Sequence[int], sampling: SamplingParams, usage: Usage
    ) -> Completion:
        """One completion from the best engine; the same call may be repeated on any engine.

        usage: the engine's seconds are added to it, also those of a request without an answer. Raises
        Unavailable where no engine gave a usable answer, ContextOverflow, EpisodeBroken.
        """
        choice = await self._best(wanted)
        try:
            seconds = self._seconds[choice.base_url]
            begun = seconds.begin()
            try:
                completion = await self._generate(choice, prompt_ids, sampling)
            finally:
                usage.engine_s += seconds.end(begun)
            return await self._stamped(choice, completion, wanted)
        except EngineUnavailable as error:
            log.warning("engine_lost", extra={"engine_id": choice.engine_id, "why": str(error)})
            self._suspect(choice.engine_id)
            raise Unavailable(f"an engine for {wanted}: {error}") from error

    async def version_now(self, wanted: PolicyWanted) -> int:
        """The version that `wanted` means now. Raises Unavailable when no engine serves it."""
        found = await self._choices(wanted)
        if wanted.pinned_version is not None:
            return wanted.pinned_version
        return int(min(found, key=lambda choice: choice.rank).lease.version)

    async def _choices(self, wanted: PolicyWanted) -> list[EngineChoice]:
        found = choices_among(await self._leases.of_model(wanted.model), wanted)
        if not found:
            verb = "holds" if wanted.pinned_version is not None else "serves"
            raise Unavailable(f"an engine that {verb} {wanted}")
        return found

    async def _best(self, wanted: PolicyWanted) -> EngineChoice:
        """Ready before reloading before failed, not one that just failed, least in flight, then in turns."""
        found = await self._choices(wanted)
        now = asyncio.get_running_loop().time()

        def order(choice: EngineChoice) -> tuple[bool, int, int, float, str]:
            suspect = self._suspect_until.get(choice.engine_id, 0.0) > now
            seconds = self._seconds[choice.base_url]
            return suspect, choice.rank, seconds.in_flight, seconds.begun_s, choice.engine_id

        await self._close_unused()
        return min(found, key=order)

    def _suspect(self, engine_id: str) -> None:
        """Prefer the others for a while, and read the leases again."""
        now = asyncio.get_running_loop().time()
        self._suspect_until = {one: until for one, until in self._suspect_until.items() if until > now}
        self._suspect_until[engine_id] = now + _SUSPECT_S
        self._leases.forget()

    async def _generate(
        self, choice: EngineChoice, prompt_ids: Sequence[int], sampling: SamplingParams
    ) -> Completion:
        client = self._clients.setdefault(choice.base_url, EngineClient(choice.base_url))
        try:
            return await client.generate(
                choice.model_name, prompt_ids, sampling, timeout_s=self._turn_timeout_s
            )
        except ContextOverflow:
            raise
        except EngineRejected as error:
            if error.status == _NOT_SERVED:  # another engine may serve the name
                raise EngineUnavailable(str(error)) from error
            raise EpisodeBroken(EpisodeFailure.ENGINE_ERROR, str(error)) from error

    async def _stamped(
        self, choice: EngineChoice, completion: Completion, wanted: PolicyWanted
    ) -> Completion:
        """The completion with the engine's name and the digest of each version. Raises EngineUnavailable."""
        versions = {span.version for span in completion.version_spans}
        if wanted.pinned_version is not None and versions != {wanted.pinned_version}:
            raise EngineUnavailable(
                f"engine {choice.engine_id} sampled with versions {sorted(versions)}, "
                f"asked for v{wanted.pinned_version}"
            )
        lease = choice.lease
        digests = {}
        for version in versions:
            known = lease.digest if version == lease.version else ""
            digests[version] = known or await self._digest_of(lease.model, version)
        return replace(completion, engine_id=choice.engine_id, weights_digests=digests)

    async def _close_unused(self) -> None:
        """Engines come back at other addresses; forget the old ones and close the connections to them."""
        live = self._leases.addresses
        if len(self._seconds) <= len(live) + _MAX_GONE:
            return
        gone = [url for url, one in self._seconds.items() if url not in live and not one.in_flight]
        for url in gone:
            del self._seconds[url]
        for client in [self._clients.pop(url) for url in gone if url in self._clients]:
            await client.close()
