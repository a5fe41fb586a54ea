"""Samples of the model in training, through the platform's gateway, in the form in which they train."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import Unavailable, UpcycleError
from upcycle.train.inputs import Sample

if TYPE_CHECKING:
    from upcycle.platform import Addresses

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or messages as in chat completions."""

_CONNECT_S: Final = 5.0
_NOT_NOW: Final = frozenset({"version_not_served", "no_room", "no_engine", "engine_lost", "shutting_down"})
_NOT_YET: Final = "version_not_found"
_SHOWN_CHARS: Final = 300


class SamplingRefused(UpcycleError):
    """The gateway refuses what was asked for; the message is its own."""

    kind = "sampling_refused"


@dataclass(frozen=True, slots=True)
class Sampled(Sample):
    """What the policy said, with its tokens and log-probabilities: `Trajectory([sampled], reward)` trains it.
    version: of the weights that sampled it. finish_reason: `stop`, `length` or `tool_calls`."""

    text: str = ""
    version: int = 0
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What is asked of the gateway. model: a slug, or `slug@v12`."""

    model: str
    prompt: Prompt
    num_samples: int
    max_tokens: int
    temperature: float
    stop: Sequence[str]
    seed: int | None

    @property
    def is_chat(self) -> bool:
        """The prompt is a list of messages."""
        return not isinstance(self.prompt, str) and isinstance(next(iter(self.prompt), None), Mapping)

    def body(self) -> dict[str, Any]:
        """As the gateway reads it."""
        ours = {
            "model": self.model,
            "n": self.num_samples,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "return_token_ids": True,
        }
        if self.stop:
            ours["stop"] = list(self.stop)
        if self.seed is not None:
            ours["seed"] = self.seed
        if self.is_chat:
            return {**ours, "messages": list(self.prompt), "logprobs": True}
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        return {**ours, "prompt": prompt, "logprobs": 0}


async def sampled(
    addresses: "Addresses", request: SamplingRequest, timeout_s: float, *, is_published: bool
) -> list[Sampled]:
    """Asks once. is_published: the version is, so that the registry is only yet to record it. Raises
    Unavailable while no engine serves the weights; SamplingRefused; PlatformNotFound without a key of the
    gateway."""
    import httpx2

    if not request.prompt:
        raise SamplingRefused("the prompt is empty", "give text, token ids or messages")
    url = f"{addresses.gateway_url}/{'chat/completions' if request.is_chat else 'completions'}"
    headers = {"Authorization": f"Bearer {addresses.gateway_key()}"}
    timeout = httpx2.Timeout(timeout_s, connect=_CONNECT_S)
    try:
        async with httpx2.AsyncClient(timeout=timeout, headers=headers) as client:
            response = await client.post(url, json=request.body())
    except httpx2.TransportError as error:
        raise Unavailable(f"the gateway at {url} does not answer: {error!r}") from error
    if response.status_code == 200:
        return _read(response.json(), int(response.headers["x-upcycle-version"]))
    code, message = _refusal(response)
    said = f"sample of {request.model!r}: {response.status_code} {code}: {message}"
    if code in _NOT_NOW or (is_published and code == _NOT_YET):
        raise Unavailable(said)
    raise SamplingRefused(said, addresses.gateway_key_hint() if response.status_code == 401 else "")


def _refusal(response: Any) -> tuple[str, str]:
    """Code and message of the envelope."""
    try:
        error = response.json()["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", response.text[:_SHOWN_CHARS]


def _read(answer: Mapping[str, Any], version: int) -> list[Sampled]:
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    shared = answer.get("prompt_token_ids") or choices[0].get("prompt_token_ids") or []
    return [_one(choice, choice.get("prompt_token_ids") or shared, version) for choice in choices]


def _one(choice: Mapping[str, Any], prompt_ids: Sequence[int], version: int) -> Sampled:
    said = choice.get("logprobs") or {}
    entries = said.get("content")
    logprobs = said.get("token_logprobs") if entries is None else [one["logprob"] for one in entries]
    message = choice.get("message") or {}
    return Sampled(
        prompt_token_ids=list(prompt_ids),
        output_token_ids=list(choice.get("token_ids") or ()),
        output_logprobs=list(logprobs or ()),
        text=choice.get("text") or message.get("content") or "",
        version=version,
        finish_reason=choice.get("finish_reason") or "",
    )
