"""The file of upstream providers: read once, at the start, and refused whole where a part is wrong."""

from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from identities.entities import SLUG, SLUG_RULE
from model_gateway.domain.engine_fields import CHAT_FIELDS
from model_gateway.domain.upstream.providers import (
    Fallback,
    Price,
    Provider,
    ProviderLimits,
    UpstreamDialect,
    UpstreamModel,
    Upstreams,
)

_STRICT: Final = ConfigDict(extra="forbid", frozen=True)
_Seconds = Annotated[float, Field(gt=0, le=3600)]
_Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_MAX_KEY_CHARS: Final = 4096


class BadProviders(ValueError):
    """The file cannot be used; the message names the file and the place in it, and shows no key."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"MODEL_GATEWAY_PROVIDERS_FILE {path}: {problem}")


class ModelEntry(BaseModel):
    """A model of a provider. upstream_name: as the provider knows it, where that is another name."""

    model_config = _STRICT
    upstream_name: str = ""
    input_price: _Price = 0.0
    output_price: _Price = 0.0
    max_tokens: int = Field(4096, ge=1)


class ProviderEntry(BaseModel):
    """One provider."""

    model_config = _STRICT
    url: str
    dialect: UpstreamDialect
    key_file: Path | None = None
    models: dict[str, ModelEntry] = Field(min_length=1)
    extra_fields: list[str] = []
    connect_s: _Seconds = 5.0
    first_byte_s: _Seconds = 120.0
    idle_s: _Seconds = 60.0
    max_tries: int = Field(3, ge=1, le=10)
    retry_share: float = Field(0.1, ge=0, le=1)
    opens_after: int = Field(5, ge=1)
    open_s: _Seconds = 30.0
    hedge_after_s: float = Field(0.0, ge=0, le=3600)

    @field_validator("url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http or https URL, such as https://api.openai.com/v1")
        if parts.username is not None or parts.password is not None:
            raise ValueError("holds a user or a password; put the key into a file, and name it in key_file")
        if parts.query or parts.fragment:
            raise ValueError("has a query or a fragment; leave them out")
        return url.rstrip("/")

    @field_validator("extra_fields")
    @classmethod
    def _are_known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in CHAT_FIELDS:
                raise ValueError(f"{name!r} is no field that the gateway takes")
        return names


class FallbackEntry(BaseModel):
    """What answers for a registered model, and after how many seconds without an engine."""

    model_config = _STRICT
    model: str
    after_s: float = Field(2.0, ge=0, le=3600)


class ProvidersFile(BaseModel):
    """The whole file."""

    model_config = _STRICT
    providers: dict[str, ProviderEntry] = {}
    fallbacks: dict[str, FallbackEntry] = {}


def read_providers(path: Path) -> Upstreams:
    """Raises BadProviders."""
    try:
        entries = ProvidersFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadProviders(path, f"cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BadProviders(path, f"{place}: {first['msg']}" if place else first["msg"]) from None
    providers: dict[str, Provider] = {}
    models: dict[str, UpstreamModel] = {}
    for name, entry in entries.providers.items():
        providers[name] = provider = _provider(path, name, entry)
        for model_name, model in entry.models.items():
            full = f"{name}/{model_name}"
            if "/" in name or "/" in model_name or not SLUG.fullmatch(full):
                raise BadProviders(
                    path,
                    f"providers.{name}.models.{model_name}: clients ask for {full!r}, and a name of a model "
                    f"is {SLUG_RULE}; give it another one, and its own as upstream_name",
                )
            price = Price(model.input_price, model.output_price)
            served_name = model.upstream_name or model_name
            models[full] = UpstreamModel(full, provider, served_name, price, model.max_tokens)
    return Upstreams(providers, models, _fallbacks(path, entries, models))


def _provider(path: Path, name: str, entry: ProviderEntry) -> Provider:
    limits = ProviderLimits(
        connect_s=entry.connect_s,
        first_byte_s=entry.first_byte_s,
        idle_s=entry.idle_s,
        max_tries=entry.max_tries,
        retry_share=entry.retry_share,
        opens_after=entry.opens_after,
        open_s=entry.open_s,
        hedge_after_s=entry.hedge_after_s,
    )
    key = _key(path, name, entry.key_file) if entry.key_file is not None else ""
    return Provider(name, entry.url, entry.dialect, key, limits, frozenset(entry.extra_fields))


def _key(path: Path, name: str, key_file: Path) -> str:
    """One line of the file, which is found from the folder of the providers' file."""
    where = f"providers.{name}.key_file"
    try:
        key = (path.parent / key_file).read_text(encoding="ascii").strip()
    except OSError as error:
        raise BadProviders(path, f"{where} {key_file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BadProviders(path, f"{where} {key_file} holds no key: it is not ASCII") from None
    if not key or len(key) > _MAX_KEY_CHARS or not key.isprintable() or " " in key:
        raise BadProviders(path, f"{where} {key_file} holds no key: one line without spaces is expected")
    return key


def _fallbacks(path: Path, entries: ProvidersFile, models: dict[str, UpstreamModel]) -> dict[str, Fallback]:
    found: dict[str, Fallback] = {}
    for name, entry in entries.fallbacks.items():
        if not SLUG.fullmatch(name) or name.partition("/")[0] in entries.providers:
            raise BadProviders(path, f"fallbacks.{name}: is no name of a registered model")
        if entry.model not in models:
            raise BadProviders(
                path,
                f"fallbacks.{name}.model: {entry.model!r} is none of {', '.join(sorted(models)) or 'none'}",
            )
        found[name] = Fallback(models[entry.model], entry.after_s)
    return found
