"""Request bodies.

Unknown fields are ignored, as vLLM ignores them. Fields that vLLM honours and this engine cannot
are refused when they are set to anything but their default.
"""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embedded_engine.errors import BadRequest

T = TypeVar("T")
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""What tokenizers and tensors take; whether the vocabulary has it is looked at later."""
Many = Annotated[list[T], Field(fail_fast=True)]
"""The first wrong element is reported, not each of a million."""

_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "best_of": (1, None),
    "suffix": ("", None),
    "bad_words": ([], None),
    "allowed_token_ids": (None,),
    "prompt_embeds": (None,),
    "use_beam_search": (False, None),
    "truncate_prompt_tokens": (None,),
    "reasoning_effort": (None, "none"),
    "include_reasoning": (True, None),
    "chat_template_kwargs": ({}, None),
    "add_generation_prompt": (True, None),
    "continue_final_message": (False, None),
    "add_special_tokens": (False, None),
    "spaces_between_special_tokens": (True, None),
}


class SamplingBody(BaseModel):
    """What every way of asking for tokens has in common."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | Many[str] | None = None
    stop_token_ids: Many[int] | None = None
    ignore_eos: bool = False
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    @model_validator(mode="after")
    def _only_what_is_supported(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name in _DEFAULTS and value not in _DEFAULTS[name]:
                raise BadRequest(f"{name} is not supported by the embedded engine", param=name)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, empty ones left out."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in given if stop)


class StreamOptions(BaseModel):
    """OpenAI's stream options."""

    include_usage: bool | None = False


LogprobsForm = Literal["columns"]
"""Log-probabilities as `{"tokens": […], "token_logprobs": […]}`, of the sampled tokens alone, for a gateway
that records them: building, sending and reading an object for each token costs ten times as much."""


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    model: str | None = None
    prompt: Many[TokenId] | Many[Many[TokenId]] | str | Many[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    logprobs_as: LogprobsForm | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    model: str | None = None
    messages: Many[dict[str, Any]]
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    logprobs_as: LogprobsForm | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    tokens: Many[TokenId] | None = None
    """On /v1/chat/completions/tokens: the prompt, already rendered."""
    prompt_token_ids: Many[TokenId] | None = None
    """All ids so far; with `continuation_from`, only the messages after that count are rendered."""
    continuation_from: int | None = None


class GenerateSampling(SamplingBody):
    """`sampling_params` of /inference/v1/generate."""

    logprobs: int | None = None


class GenerateBody(BaseModel):
    """POST /inference/v1/generate."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    request_id: str | None = None
    token_ids: Many[TokenId]
    sampling_params: GenerateSampling
    stream: bool = False


class TokenizeBody(BaseModel):
    """POST /tokenize: a prompt or a conversation."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    prompt: str | None = None
    messages: Many[dict[str, Any]] | None = None
    tools: Many[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: Many[TokenId]


class RpcBody(BaseModel):
    """POST /collective_rpc."""

    model_config = ConfigDict(extra="allow")

    method: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """`kwargs` of the call; a field of that name would clash with pydantic's own."""
        given = (self.model_extra or {}).get("kwargs") or {}
        if not isinstance(given, dict):
            raise BadRequest("kwargs must be an object", param="kwargs")
        return given


class WeightVersionBody(BaseModel):
    """POST /update_weight_version."""

    new_version: str


class AdapterBody(BaseModel):
    """POST /v1/load_lora_adapter, /v1/unload_lora_adapter."""

    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str | None = None
