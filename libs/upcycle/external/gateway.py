"""A registered model, or one of a provider behind it, through our gateway, as any OpenAI client asks it."""

from typing import TYPE_CHECKING, Final

from upcycle.external.dialects import OpenAIChat
from upcycle.external.naming import NO_SCREEN, ExternalModel, external_model, is_external
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
    """Raises PlayRefused for a model that the gateway does not serve, PlatformNotFound and Unavailable."""
    from upcycle.platform import find_addresses

    if slug.partition("#")[0] in NO_SCREEN:
        external_model(slug)
    model = gateway_at(find_addresses(), slug, **sampling)
    url, server = model.url, model.server()
    try:
        status, answer = await server.get(OpenAIChat.model_path)
    finally:
        await server.close()
    if status == 401:
        raise PlayRefused(f"the gateway at {url} answered 401", f"set the key of this platform in {KEY}")
    known = OpenAIChat(slug).models_in(answer) if status == 200 else []
    if slug not in known:
        has = ", ".join(known[:5]) or "none"
        own = f"; without --gateway, {slug} plays with your own key" if is_external(slug) else ""
        raise PlayRefused(
            f"the gateway at {url} serves no model {slug!r}: it serves {has}; models of others are those of "
            f"its providers, as provider/name{own}"
        )
    return model
