"""Engines over vLLM's wire: the one with the least in flight, each token stamped with version and digest."""

import asyncio
import contextlib
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
from rollout_sampler import telemetry
from rollout_sampler.adapters.leases import EngineChoice, LeaseCache, choices_among
from rollout_sampler.adapters.windows import EngineWindow
from rollout_sampler.domain import PolicyWanted
from upcycle.api.common.v1.common_pb2 import Usage
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_SUSPECT_S: Final = 2.0
_MOST_SUSPECT_S: Final = 600.0
_MAX_GONE: Final = 16
"""Engines without a lease that are remembered: one whose lease lapsed for a moment keeps its connections."""
_NOT_SERVED: Final = 404
_STAYS: Final = 4
_ROOM_POLL_S: Final = 0.5


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


class Suspicions:
    """Engines that failed are not preferred for a while, after each further failure for twice as long: one
    that renews its lease and never answers, such as one whose certificate is not trusted, would else cost
    an episode each time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # until when, and how long that is

    def has(self, engine_id: str, now_s: float) -> bool:
        """Whether it failed lately."""
        return self._known.get(engine_id, (0.0, 0.0))[0] > now_s

    def add(self, engine_id: str, now_s: float) -> None:
        """It failed. Requests that fail together are one failure."""
        self._known = {
            one: (until, long) for one, (until, long) in self._known.items() if until + long > now_s
        }
        until_s, long_s = self._known.get(engine_id, (now_s, _SUSPECT_S / 2))
        if until_s <= now_s:
            long_s = min(2 * long_s, _MOST_SUSPECT_S)
            self._known[engine_id] = now_s + long_s, long_s

    def clear(self, engine_id: str) -> None:
        """It answered."""
        self._known.pop(engine_id, None)


DigestOf = Callable[[str, int], Awaitable[str]]
"""(model, version) -> digest of its weights."""


class LeasedEngines:
    """The first request connects, `stop` closes all connections."""

    def __init__(
        self,
        leases: LeaseCache,
        digest_of: DigestOf,
        *,
        turn_timeout_s: float,
        only_https: bool = False,
        look_s: float = 0.0,
    ) -> None:
        """look_s: as of EngineWindow."""
        self._leases = leases
        self._digest_of = digest_of
        self._turn_timeout_s = turn_timeout_s
        self._only_https = only_https
        self._clients: dict[str, EngineClient] = {}
        self._seconds: defaultdict[str, EngineSeconds] = defaultdict(lambda: EngineSeconds(time.monotonic))
        self._windows: defaultdict[str, EngineWindow] = defaultdict(lambda: EngineWindow(look_s))
        self._room = asyncio.Event()
        """A request ended since it was cleared."""
        self._suspicions = Suspicions()

    async def stop(self) -> None:
        """Close all connections."""
        for window in self._windows.values():
            await window.close()
        for client in self._clients.values():
            await client.close()

    async def sample(
        self,
        wanted: PolicyWanted,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        usage: Usage,
        *,
        before: str = "",
    ) -> Completion:
        """One completion from the best engine; the same call may be repeated on any engine.

        before: the engine that sampled the turn before, and may have its keys and values still. usage: the
        engine's seconds are added to it, also those of a request without an answer. Raises Unavailable where
        no engine gave a usable answer, ContextOverflow, EpisodeBroken.
        """
        choice = await self._with_room(wanted, before)
        try:
            seconds = self._seconds[choice.base_url]
            begun = seconds.begin()
            try:
                completion = await self._generate(choice, prompt_ids, sampling)
            finally:
                usage.engine_s += seconds.end(begun)
                self._room.set()
            stamped = await self._stamped(choice, completion, wanted)
        except EngineUnavailable as error:
            log.warning("engine_lost", extra={"engine_id": choice.engine_id, "why": str(error)})
            self._suspect(choice.engine_id)
            raise Unavailable(f"an engine for {wanted}: {error}") from error
        self._suspicions.clear(choice.engine_id)
        return stamped

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

    async def _with_room(self, wanted: PolicyWanted, before: str) -> EngineChoice:
        """The best engine, once it takes one more request."""
        with telemetry.WAITING_FOR_ROOM.track_inprogress():
            while True:
                choice = await self._best(wanted, before)
                if self._has_room(choice):
                    return choice
                self._room.clear()
                with contextlib.suppress(TimeoutError):  # its window may grow, or another engine come
                    async with asyncio.timeout(_ROOM_POLL_S):
                        await self._room.wait()

    def _has_room(self, choice: EngineChoice) -> bool:
        window, seconds = self._windows[choice.base_url], self._seconds[choice.base_url]
        if seconds.in_flight:
            window.look_at(self._client_of(choice).load, lambda: seconds.in_flight)
        return window.has_room(seconds.in_flight)

    async def _best(self, wanted: PolicyWanted, before: str) -> EngineChoice:
        """Ready before reloading before failed, not one that just failed, with room before without; then the
        least in flight, unless the one that sampled before has not many more; then in turns."""
        found = await self._choices(wanted)
        now = asyncio.get_running_loop().time()

        def order(choice: EngineChoice) -> tuple[bool, int, bool, float, float, str]:
            suspect = self._suspicions.has(choice.engine_id, now)
            seconds = self._seconds[choice.base_url]
            is_full = not self._windows[choice.base_url].has_room(seconds.in_flight)
            busy: float = seconds.in_flight
            if choice.engine_id == before:  # twice as busy and four more, and the prefix is still worth it
                busy = (busy - _STAYS) / 2 - 0.5
            return suspect, choice.rank, is_full, busy, seconds.begun_s, choice.engine_id

        await self._close_unused()
        return min(found, key=order)

    def _suspect(self, engine_id: str) -> None:
        """Prefer the others for a while, and read the leases again."""
        self._suspicions.add(engine_id, asyncio.get_running_loop().time())
        self._leases.forget()

    async def _generate(
        self, choice: EngineChoice, prompt_ids: Sequence[int], sampling: SamplingParams
    ) -> Completion:
        client = self._client_of(choice)
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

    def _client_of(self, choice: EngineChoice) -> EngineClient:
        client = self._clients.get(choice.base_url)
        if client is None:
            client = EngineClient(choice.base_url, only_https=self._only_https)
            self._clients[choice.base_url] = client
        return client

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
            if (window := self._windows.pop(url, None)) is not None:
                await window.close()
        for client in [self._clients.pop(url) for url in gone if url in self._clients]:
            await client.close()
