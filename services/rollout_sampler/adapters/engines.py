"""Engines over vLLM's wire: the one with the least in flight, each token stamped with version and digest."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from engine_client import (
    ContextOverflow,
    EngineClient,
    EngineRejected,
    EngineUnavailable,
    FinishReason,
    Generation,
    SamplingParams,
)
from rollout_sampler import domain
from rollout_sampler.adapters.leases import Leases, Offer, nobody_serves, offers
from rollout_sampler.domain import Completion, FailureKind, PolicyWanted, TokenVersions
from rollout_sampler.ports import ContextFull, EngineLost, EpisodeBroken, GenerateRequest

_SUSPECT_S: Final = 2.0
_MAX_IDLE_CLIENTS: Final = 16
_FINISH: Final = {
    FinishReason.STOP: domain.FinishReason.STOP,
    FinishReason.LENGTH: domain.FinishReason.LENGTH,
}

DigestOf = Callable[[str, int], Awaitable[str]]
"""(model, version) -> weights digest."""


class LeasedEngines:
    """Implements ports.Engines."""

    def __init__(self, leases: Leases, digest_of: DigestOf, *, turn_timeout_s: float) -> None:
        self._leases = leases
        self._digest_of = digest_of
        self._turn_timeout_s = turn_timeout_s
        self._clients: dict[str, EngineClient] = {}
        self._in_flight: Counter[str] = Counter()
        self._suspect_until: dict[str, float] = {}

    async def pick(self, wanted: PolicyWanted) -> "LeasedEngine":
        """The best engine now."""
        found = offers(await self._leases.of(wanted.model), wanted)
        if not found:
            raise nobody_serves(wanted)
        now = asyncio.get_running_loop().time()

        def order(offer: Offer) -> tuple[bool, int, int, str]:
            suspect = self._suspect_until.get(offer.engine_id, 0.0) > now
            return suspect, offer.rank, self._in_flight[offer.base_url], offer.engine_id

        best = min(found, key=order)
        await self._prune({offer.base_url for offer in found})
        return LeasedEngine(best, self)

    async def version_now(self, wanted: PolicyWanted) -> int:
        """The version that `wanted` means now. Raises NoEngine when nobody serves it."""
        found = offers(await self._leases.of(wanted.model), wanted)
        if not found:
            raise nobody_serves(wanted)
        if wanted.pinned_version is not None:
            return wanted.pinned_version
        return int(min(found, key=lambda offer: offer.rank).lease.version)

    def suspect(self, engine_id: str) -> None:
        """Prefer the others for a while, and read the leases again."""
        self._suspect_until[engine_id] = asyncio.get_running_loop().time() + _SUSPECT_S
        self._leases.forget()

    async def generate(self, offer: Offer, request: GenerateRequest) -> Completion:
        """One request to one engine."""
        sampling = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            stop_token_ids=request.stop_token_ids,
        )
        client = self._client(offer.base_url)
        self._in_flight[offer.base_url] += 1
        try:
            generation = await client.generate(
                offer.model_name, request.prompt_ids, sampling, timeout_s=self._turn_timeout_s
            )
        except EngineUnavailable as error:
            raise EngineLost(str(error)) from error
        except ContextOverflow as error:
            raise ContextFull(str(error)) from error
        except EngineRejected as error:
            raise _refused(error) from error
        finally:
            self._in_flight[offer.base_url] -= 1
        return await self._stamped(offer, generation)

    async def stop(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()

    async def _stamped(self, offer: Offer, generation: Generation) -> Completion:
        model = offer.lease.model
        versions = []
        for span in generation.version_spans:
            if span.version == offer.lease.version and offer.lease.digest:
                digest = offer.lease.digest
            else:
                digest = await self._digest_of(model, span.version)
            versions.append(TokenVersions(span.version, digest, span.end - span.start))
        return Completion(
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            finish_reason=_FINISH[generation.finish_reason],
            versions=tuple(versions),
            engine_id=offer.engine_id,
        )

    def _client(self, base_url: str) -> EngineClient:
        client = self._clients.get(base_url)
        if client is None:
            client = self._clients[base_url] = EngineClient(base_url)
        return client

    async def _prune(self, live: set[str]) -> None:
        """Engines come back at other addresses; connections to the old ones are let go."""
        if len(self._clients) <= _MAX_IDLE_CLIENTS:
            return
        for base_url in [url for url in self._clients if url not in live and not self._in_flight[url]]:
            await self._clients.pop(base_url).close()
            del self._in_flight[base_url]


class LeasedEngine:
    """Implements ports.Engine."""

    def __init__(self, offer: Offer, engines: LeasedEngines) -> None:
        self._offer = offer
        self._engines = engines

    @property
    def engine_id(self) -> str:
        """Name of its lease."""
        return self._offer.engine_id

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample once."""
        return await self._engines.generate(self._offer, request)


def _refused(error: EngineRejected) -> Exception:
    """A name that is not served (any more) is for another engine; any other refusal is for good."""
    if error.status == 404:
        return EngineLost(str(error))
    return EpisodeBroken(FailureKind.ENGINE_ERROR, str(error))
