"""Which model behind a gateway an agent of others stands for: `claude` is one of the provider `anthropic`,
the one that plays without a gateway too, or the only one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.external.naming import COMPATIBLE, NAMES, VENDORS, is_external
from upcycle.playing.errors import PlayRefused
from upcycle.user_settings.layers import variables

OURS: Final = "upcycle"
"""The owner of registered models in a gateway's list."""
PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "claude": ("anthropic", "claude"),
    "openai": ("openai",),
    "gemini": ("google", "gemini"),
}
"""What a vendor's provider may be called. One with another name is `openai_compatible`."""
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Served:
    """A model that a gateway has. name: as it is asked for. owner: its provider, or OURS."""

    name: str
    owner: str


def is_agent(slug: str) -> bool:
    """Whether it is the name of an agent of others, with or without a model."""
    return slug.partition("#")[0] in NAMES


def model_of(agent: str, served: Sequence[Served], gateway: str) -> str:
    """`provider/name`. Raises PlayRefused where no provider has it, or several models may be meant."""
    kind, _, named = agent.partition("#")
    found = [one for one in served if _is_of(kind, one.owner)]
    if not found:
        raise _no_provider(kind, gateway)
    wanted, is_asked = _wanted(kind, named)
    fitting = [one for one in found if wanted in (one.name, one.name.removeprefix(f"{one.owner}/"))]
    if not fitting and not is_asked:
        fitting = found
    if len(fitting) == 1:
        return fitting[0].name
    has = ", ".join(one.name for one in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    which = f" as {wanted!r}" if is_asked else ""
    way_out = f"name one in the place of {agent}: {(fitting or found)[0].name}"
    raise PlayRefused(
        f"agent {kind!r}{which} is not one model of the gateway at {gateway}: it has {has}{more}", way_out
    )


def without_gateway(slug: str) -> str:
    """The way out for an agent that the gateway lacks; "" for what is none."""
    return f"without --gateway, {slug} plays with your own key" if is_external(slug) else ""


def _is_of(kind: str, owner: str) -> bool:
    if kind != COMPATIBLE:
        return owner in PROVIDERS[kind]
    return owner != OURS and not any(owner in names for names in PROVIDERS.values())


def _wanted(kind: str, named: str) -> tuple[str, bool]:
    """The model, and whether the user asked for it by name."""
    env = variables()
    variable = "UPCYCLE_OPENAI_MODEL" if kind == COMPATIBLE else VENDORS[kind].model_variable
    asked = named or env.get(variable, "").strip()
    return asked or ("" if kind == COMPATIBLE else VENDORS[kind].model(env)), bool(asked)


def _no_provider(kind: str, gateway: str) -> PlayRefused:
    names = " or ".join(PROVIDERS.get(kind, ()))
    called = f"is called {names}" if names else "is no vendor's"
    return PlayRefused(
        f"the gateway at {gateway} has no models of {kind!r}: none of its providers {called}",
        f"name one in its MODEL_GATEWAY_PROVIDERS_FILE; {without_gateway(kind)}",
    )
