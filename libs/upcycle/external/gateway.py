"""A registered model through our gateway, as any OpenAI client asks it."""

from typing import Final

from upcycle.external.dialects import OpenAIChat
from upcycle.external.naming import NO_SCREEN, ExternalModel, external_model, is_external
from upcycle.playing.errors import PlayRefused

KEY: Final = "UPCYCLE_API_KEY"


async def gateway_model(slug: str, **sampling: float | None) -> ExternalModel:
    """Raises PlayRefused for a model that the gateway does not serve, PlatformNotFound and Unavailable."""
    from upcycle.platform import find_addresses

    if slug.partition("#")[0] in NO_SCREEN:
        external_model(slug)
    addresses = find_addresses()
    key, url = addresses.gateway_key(), addresses.gateway_url
    given = {name: value for name, value in sampling.items() if value is not None}
    headers = {"Authorization": f"Bearer {key}"}
    model = ExternalModel(f"gateway#{slug}", url, slug, KEY, OpenAIChat, headers, key, given)
    server = model.server()
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
            f"the gateway at {url} serves no model {slug!r}: it serves registered models ({has}), and "
            f"models of others behind it come with a later version{own}"
        )
    return model
