"""Providers, their models and prices, as the operator's file has them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from model_gateway.domain.errors import UnknownModel

_MILLION: Final = 1_000_000


class UpstreamDialect(StrEnum):
    """What a provider speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens, in whatever currency the operator counts in."""

    input: float = 0.0
    output: float = 0.0

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / _MILLION


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """Of calls to a provider. Seconds: connect_s until there is a connection; first_byte_s until the answer
    begins; idle_s between its parts. max_tries: of one request. retry_share: of all requests may be tries
    after the first. opens_after: failures in a row after which nothing is sent for open_s; then one request
    tries. hedge_after_s: without an answer so long, a second request is sent beside the first; 0: never."""

    connect_s: float = 5.0
    first_byte_s: float = 120.0
    idle_s: float = 60.0
    max_tries: int = 3
    retry_share: float = 0.1
    opens_after: int = 5
    open_s: float = 30.0
    hedge_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Provider:
    """One server of models. url: what the route is put behind, such as `https://api.openai.com/v1`. key: is
    shown nowhere. extra_fields: of chat requests beyond OpenAI's own that it honours."""

    name: str
    url: str
    dialect: UpstreamDialect
    key: str = field(repr=False)
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    extra_fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of a provider. name: `provider/name`, as clients ask for it. served_name: as the provider knows
    it. max_tokens: for a provider that wants a limit, of requests that name none."""

    name: str
    provider: Provider
    served_name: str
    price: Price = Price()
    max_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class Fallback:
    """The model that answers for a registered one that no engine has answered for within after_s."""

    model: UpstreamModel
    after_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Upstreams:
    """All of them. models: by the name that clients use. fallbacks: by registered model."""

    providers: Mapping[str, Provider] = field(default_factory=dict)
    models: Mapping[str, UpstreamModel] = field(default_factory=dict)
    fallbacks: Mapping[str, Fallback] = field(default_factory=dict)

    def find(self, model: str) -> UpstreamModel | None:
        """None: a registered model, if any. Raises UnknownModel for a provider that does not serve it."""
        found = self.models.get(model)
        provider, slash, _ = model.partition("/")
        if found is None and slash and provider in self.providers:
            served = ", ".join(sorted(name for name in self.models if name.startswith(f"{provider}/")))
            raise UnknownModel(
                f"model {model!r} does not exist: provider {provider!r} serves {served} here", param="model"
            )
        return found
