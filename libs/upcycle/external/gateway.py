"""A registered model, or one of a provider behind it, through our gateway, as any OpenAI client asks it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from upcycle.external import behind_gateway
from upcycle.external.behind_gateway import OURS, Served
from upcycle.external.dialects import OpenAIChat
from upcycle.external.naming import NO_SCREEN, ExternalModel, external_model
from upcycle.playing.errors import PlayRefused

if TYPE_CHECKING:
    from upcycle.platform import Addresses

KEY: Final = "UPCYCLE_API_KEY"


def gateway_at(addresses: "Addresses", slug: str, **sampling: float | None) -> ExternalModel:
    """A model of a platform's gateway, which is not asked for it. Raises PlatformNotFound without a key."""
    key = addresses.gateway_key()
    given = {name: value for name, value in sampling.items() if value is not None}
    headers = {"Authorization": f"Bearer {key}"}
    return ExternalModel(f"gateway#{slug}", addresses.gateway_url, slug, KEY, OpenAIChat, headers, key, given)


async def gateway_model(slug: str, **sampling: float | None) -> ExternalModel:
    """slug: a registered model, `provider/name`, or an agent of others (`claude`, `openai#NAME`), whose model
    a provider behind the gateway has. Raises PlayRefused for a model that the gateway does not serve,
    PlatformNotFound and Unavailable."""
    from upcycle.platform import find_addresses

    if slug.partition("#")[0] in NO_SCREEN:
        external_model(slug)
    addresses = find_addresses()
    served = await _served(gateway_at(addresses, slug), addresses)
    known = [one.name for one in served]
    if slug not in known and behind_gateway.is_agent(slug):
        slug = behind_gateway.model_of(slug, served, addresses.gateway_url)
    if slug not in known:
        has = ", ".join(known[:5]) or "none"
        raise PlayRefused(
            f"the gateway at {addresses.gateway_url} serves no model {slug!r}: it serves {has}; "
            "models of others are those of its providers, as provider/name",
            behind_gateway.without_gateway(slug),
        )
    is_registered = Served(slug, OURS) in served
    return replace(gateway_at(addresses, slug, **sampling), is_registered=is_registered)


async def _served(asking: ExternalModel, addresses: "Addresses") -> list[Served]:
    """What its key may use. Raises PlayRefused, Unavailable."""
    server = asking.server()
    try:
        status, answer = await server.get(OpenAIChat.model_path)
    finally:
        await server.close()
    if status == 401:
        raise PlayRefused(f"the gateway at {asking.url} answered 401", addresses.gateway_key_hint())
    rows = answer.get("data") if status == 200 and isinstance(answer, Mapping) else None
    return [Served(str(row["id"]), str(row.get("owned_by") or "")) for row in rows or () if "id" in row]
