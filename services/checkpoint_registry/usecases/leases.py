"""Engine leases: which engines requests may be routed to, and until when unless the lease is renewed."""

import math
from datetime import timedelta
from urllib.parse import urlsplit

from checkpoint_registry.adapters.sql_models import SqlLeaseStore
from checkpoint_registry.domain.models import MAX_LEASE_TTL_S, EngineLease, LeaseRequest, validate_slug
from checkpoint_registry.ports import Clock
from service_kit.errors import InvalidRequest


class EngineLeases:
    """Stores and lists the leases. They are in SQL, so a restart loses none."""

    def __init__(self, store: SqlLeaseStore, *, now: Clock) -> None:
        self._store = store
        self._now = now

    async def renew(self, request: LeaseRequest) -> EngineLease:
        """Grants the lease for `ttl_s` from now. Raises InvalidRequest, UnknownModel."""
        _validate(request)
        expires_at = self._now() + timedelta(seconds=request.ttl_s)
        lease = EngineLease(request.engine_id, request.model, request.channel, request.body, expires_at)
        await self._store.renew(lease)
        return lease

    async def live(self, model: str, channel: int) -> list[EngineLease]:
        """Engines that promised to be alive now; empty model, channel 0: any."""
        return await self._store.live(model, channel, self._now())


def _validate(request: LeaseRequest) -> None:
    validate_slug(request.model)
    if not request.engine_id:
        raise InvalidRequest("lease.engine_id is empty; it names the engine across renewals")
    if request.channel == 0:
        raise InvalidRequest(
            f"engine {request.engine_id!r}: lease.channel is unspecified; say latest, head or candidate"
        )
    url = urlsplit(request.base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidRequest(
            f"engine {request.engine_id!r}: lease.base_url {request.base_url!r} is not http(s)://host[:port]"
        )
    if not math.isfinite(request.ttl_s) or not 0 < request.ttl_s <= MAX_LEASE_TTL_S:
        raise InvalidRequest(
            f"engine {request.engine_id!r}: ttl_s {request.ttl_s:g} is not in 0..{MAX_LEASE_TTL_S:g} s"
        )
