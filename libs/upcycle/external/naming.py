"""What people call an agent that is no model of ours: `claude`, `openai#gpt-5`, `openai:http://host:8000/v1#model`,
or that URL alone, of a server of one model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from upcycle.external.anthropic_messages import VERSION, AnthropicMessages
from upcycle.external.dialects import Dialect, OpenAIChat
from upcycle.external.gemini_content import GeminiContent
from upcycle.external.keys import AGENT_KEY
from upcycle.external.player import ModelPlayer
from upcycle.external.server import PAUSES_S, ModelServer
from upcycle.playing.errors import PlayRefused
from upcycle.user_settings.catalogue import BY_VARIABLE
from upcycle.user_settings.layers import variables

OPENAI_HOST: Final = "api.openai.com"
COMPATIBLE: Final = "openai_compatible"
NO_SCREEN: Final = ("operator", "gemini_cua")
"""Agents of other SDKs that see a screen."""
URL_SCHEMES: Final = ("http://", "https://")
_FORM: Final = "write openai:http://127.0.0.1:8000/v1#model"
_SAMPLING: Final = ("temperature", "top_p")


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A named agent. url_variable: an address in the vendor's place, such as a proxy of the user."""

    url_variable: str
    key_variables: tuple[str, ...]
    model_variable: str
    dialect: Callable[[str], Dialect]
    headers: Callable[[str], dict[str, str]]

    def url(self, env: Mapping[str, str]) -> str:
        """Of its server."""
        return env.get(self.url_variable, "").strip() or BY_VARIABLE[self.url_variable].default

    def model(self, env: Mapping[str, str]) -> str:
        """The one that plays where none is named."""
        return env.get(self.model_variable, "").strip() or BY_VARIABLE[self.model_variable].default


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _anthropic(key: str) -> dict[str, str]:
    return {"x-api-key": key, "anthropic-version": VERSION}


def _google(key: str) -> dict[str, str]:
    return {"x-goog-api-key": key}


VENDORS: Final[Mapping[str, _Vendor]] = {
    "claude": _Vendor(
        "ANTHROPIC_BASE_URL", ("ANTHROPIC_API_KEY",), "UPCYCLE_CLAUDE_MODEL", AnthropicMessages, _anthropic
    ),
    "openai": _Vendor("OPENAI_BASE_URL", ("OPENAI_API_KEY",), "UPCYCLE_OPENAI_MODEL", OpenAIChat, _bearer),
    "gemini": _Vendor(
        "GEMINI_BASE_URL",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "UPCYCLE_GEMINI_MODEL",
        GeminiContent,
        _google,
    ),
}
NAMES: Final = (*VENDORS, COMPATIBLE)


@dataclass(frozen=True, slots=True)
class ExternalModel:
    """A model behind a server that is not ours. name: as people read it, without a key. headers: hold the
    key, and are shown nowhere. is_registered: a model of the platform, asked through its gateway."""

    name: str
    url: str
    model: str
    key_variable: str
    dialect: Callable[[str], Dialect] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: str = field(default="", repr=False)
    sampling: Mapping[str, float] = field(default_factory=dict)
    is_registered: bool = False

    def server(self, *, pauses_s: tuple[float, ...] = PAUSES_S) -> ModelServer:
        """Its server; one for all episodes of an evaluation."""
        doing = "is not accepted: set another one" if self.key else "is missing: set it"
        return ModelServer(
            self.url,
            headers=self.headers,
            key=self.key,
            key_hint=f"the key {doing} in {self.key_variable}",
            model_hint=f"does it serve model {self.model!r} at {self.url}{self.dialect(self.model).path}?",
            pauses_s=pauses_s,
        )

    def player(self, server: ModelServer, dialect: Dialect | None = None) -> ModelPlayer:
        """A player for one episode. dialect: of the evaluation, so that what one episode learns of the server
        is known to the next."""
        return ModelPlayer(server, dialect or self.dialect(self.model), self.sampling)


def is_external(name: str) -> bool:
    """Whether an agent's name is none of a registered model: a vendor, a URL, or one that is refused."""
    kind = name.partition("#")[0]
    return kind in NAMES or kind in NO_SCREEN or kind.startswith(("openai:", *URL_SCHEMES))


def is_at_url(name: str) -> bool:
    """Whether an agent is a server's address, with or without a model: `openai:URL#model`, `URL`."""
    return with_kind(name).startswith(tuple(f"openai:{scheme}" for scheme in URL_SCHEMES))


def names_no_model(name: str) -> bool:
    """Whether an agent is a server's address alone, whose only model is asked for: `openai:URL`, `URL`."""
    return is_at_url(name) and not name.partition("#")[2]


def with_kind(name: str) -> str:
    """A URL alone is that of an OpenAI-compatible server."""
    return f"openai:{name}" if name.startswith(URL_SCHEMES) else name


def external_model(
    name: str, *, environ: Mapping[str, str] | None = None, **sampling: float | None
) -> ExternalModel:
    """From `claude`, `openai`, `gemini`, `openai_compatible`, each with an optional `#model`, from
    `openai:URL#model` or `URL#model`. environ: by default the user's settings. sampling: temperature, top_p.
    Raises PlayRefused."""
    env = variables() if environ is None else environ
    given = {key: value for key, value in sampling.items() if value is not None}
    if unknown := sorted(set(given) - set(_SAMPLING)):
        raise PlayRefused(f"{unknown[0]!r} is no sampling field of an agent", f"use {', '.join(_SAMPLING)}")
    name = with_kind(name)
    kind, _, model = name.partition("#")
    if kind in NO_SCREEN:
        raise PlayRefused(
            f"agent {kind!r} needs a screen, and no episode here has one",
            f"use one that calls tools: {', '.join(NAMES)}, or openai:URL#model",
        )
    if kind in VENDORS:
        return _of_vendor(kind, model, env, given)
    if kind == COMPATIBLE:
        return _compatible(model, env, given)
    return _at_url(name, env, given)


def agents_hint(name: str) -> str:
    """For a name that is none of them: the nearest, and all."""
    near = get_close_matches(name.partition("#")[0].partition(":")[0], (*NAMES, *NO_SCREEN), n=1, cutoff=0.7)
    start = f"did you mean the agent {near[0]!r}? There" if near else "there"
    return f"{start} are agents of others, which play here: {', '.join(NAMES)}, openai:URL#model"


def key_variable(url: str, environ: Mapping[str, str] | None = None) -> str:
    """The variable that holds the key of the server at a URL."""
    env = variables() if environ is None else environ
    is_openai = urlsplit(url).hostname == OPENAI_HOST
    return "OPENAI_API_KEY" if is_openai and AGENT_KEY not in env else AGENT_KEY


def _of_vendor(kind: str, model: str, env: Mapping[str, str], sampling: Mapping[str, float]) -> ExternalModel:
    vendor = VENDORS[kind]
    keys = {name: env.get(name, "").strip() for name in vendor.key_variables}
    variable = next((name for name in keys if keys[name]), vendor.key_variables[0])
    if not keys[variable]:
        raise PlayRefused(
            f"agent {kind!r} has no key",
            f"set {variable} to your own key, or store it: upcycle set {variable}",
        )
    url = _checked_url(vendor.url(env), kind)
    if vendor.dialect is AnthropicMessages:
        url = url.removesuffix("/v1")  # its path has it
    chosen = model or vendor.model(env)
    headers = vendor.headers(keys[variable])
    return ExternalModel(
        f"{kind}#{chosen}", url, chosen, variable, vendor.dialect, headers, keys[variable], sampling
    )


def _compatible(model: str, env: Mapping[str, str], sampling: Mapping[str, float]) -> ExternalModel:
    url = env.get("OPENAI_BASE_URL", "").strip()
    chosen = model or env.get("UPCYCLE_OPENAI_MODEL", "").strip()
    if not url:
        raise PlayRefused(
            f"agent {COMPATIBLE!r} names no server", "set OPENAI_BASE_URL, or use --agent openai:URL#model"
        )
    if not chosen:
        raise PlayRefused(f"agent {COMPATIBLE!r} names no model", f"write {COMPATIBLE}#model")
    names = (AGENT_KEY, "OPENAI_API_KEY")
    variable = next((name for name in names if env.get(name, "").strip()), AGENT_KEY)
    return _openai(_checked_url(url, COMPATIBLE), chosen, variable, env, sampling)


def _at_url(agent: str, env: Mapping[str, str], sampling: Mapping[str, float]) -> ExternalModel:
    kind, colon, rest = agent.partition(":")
    if not colon or kind != "openai":
        raise PlayRefused(
            f"agent {agent!r} is of no kind that plays here",
            f"{agents_hint(agent)}; a registered model stands in the place of MODEL (`upcycle models list`)",
        )
    url, _, model = rest.partition("#")
    checked = _checked_url(url, agent)
    if not model:
        raise PlayRefused(f"agent {agent!r} names no model", _FORM)
    return _openai(checked, model, key_variable(url, env), env, sampling)


def _openai(
    url: str, model: str, variable: str, env: Mapping[str, str], sampling: Mapping[str, float]
) -> ExternalModel:
    key = env.get(variable, "").strip()
    headers = _bearer(key) if key else {}
    return ExternalModel(f"openai:{url}#{model}", url, model, variable, OpenAIChat, headers, key, sampling)


def _checked_url(url: str, agent: str) -> str:
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise PlayRefused("an agent's URL holds a password", f"put the key into {AGENT_KEY}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PlayRefused(f"agent {agent!r} names no http URL", _FORM)
    return url.rstrip("/")
