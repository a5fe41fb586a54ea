"""Reading an engine's replies: every shape is checked here, once, and a wrong one raises MalformedReply."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine_client.errors import GenerationAborted, MalformedReply
from engine_client.types import FinishReason, Generation, TokenSpan


class Choice(NamedTuple):
    """One choice as it came, before its version labels are understood."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    spans: list[tuple[str, int, int]]
    num_cached_tokens: int


def mapping(reply: Any, path: str) -> dict[str, Any]:
    """The reply as an object."""
    if not isinstance(reply, dict):
        raise MalformedReply(f"{path} answered a {type(reply).__name__}, expected an object")
    return reply


def lacks_generate(message: str) -> bool:
    """Whether a refusal says that the route is off (vLLM without --enable-scale-out) or unknown."""
    return "scale-out" in message.lower() or message == "Not Found"


def generate_choice(reply: Any) -> Choice:
    """Choice 0 of /inference/v1/generate."""
    choice = _first_choice(reply, "/inference/v1/generate")
    try:
        content = choice["logprobs"]["content"]
        spans = [(str(s["version"]), int(s["start"]), int(s["end"])) for s in choice["weight_versions"] or ()]
        logprobs = [float(entry["logprob"]) for entry in content]
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedReply(
            f"/inference/v1/generate left out logprobs or weight_versions: {error}"
        ) from error
    return _checked(choice, logprobs, spans, reply)


def completions_choice(reply: Any) -> Choice:
    """Choice 0 of /v1/completions with return_token_ids and logprobs; it says nothing about versions."""
    choice = _first_choice(reply, "/v1/completions")
    try:
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedReply(f"/v1/completions left out logprobs: {error}") from error
    return _checked(choice, logprobs, [], reply)


def generation(choice: Choice, versions: Mapping[str, int], *, exact: bool) -> Generation:
    """A choice with its labels understood. Raises GenerationAborted, MalformedReply."""
    merged: list[TokenSpan] = []
    for label, start, end in choice.spans:
        version = versions[label]
        if merged and merged[-1].version == version:
            merged[-1] = TokenSpan(version, merged[-1].start, end)
        else:
            merged.append(TokenSpan(version, start, end))
    edges = [0, *(span.end for span in merged)]
    if [span.start for span in merged] != edges[:-1] or edges[-1] != len(choice.token_ids):
        raise MalformedReply(f"version spans {choice.spans} do not cover {len(choice.token_ids)} tokens")
    return Generation(
        token_ids=tuple(choice.token_ids),
        logprobs=tuple(choice.logprobs),
        finish_reason=FinishReason(choice.finish_reason),
        version_spans=tuple(merged),
        spans_are_exact=exact,
        num_cached_tokens=choice.num_cached_tokens,
    )


def prompt_logprobs(reply: Any, token_ids: Sequence[int]) -> list[float]:
    """`prompt_logprobs` of a completion: entry i holds, among others, the prompt's own token i."""
    choice = _first_choice(reply, "/v1/completions")
    try:
        entries = choice["prompt_logprobs"][1:]
        found = [
            float(entry[str(token)]["logprob"]) for entry, token in zip(entries, token_ids[1:], strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedReply(f"/v1/completions left out prompt_logprobs: {error}") from error
    return found


def scored_rows(reply: Any, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """Result of the embedded engine's `prompt_logprobs` method."""
    try:
        scored = [[float(value) for value in row] for row in reply["results"][0]["logprobs"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MalformedReply(f"/collective_rpc prompt_logprobs answered no rows: {error}") from error
    if [len(row) for row in scored] != [len(row) - 1 for row in rows]:
        raise MalformedReply("/collective_rpc prompt_logprobs answered rows of other lengths")
    return scored


def models(reply: Any) -> dict[str, int]:
    """Served name -> max_model_len of /v1/models."""
    try:
        return {str(card["id"]): int(card.get("max_model_len") or 0) for card in reply["data"]}
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedReply(f"/v1/models answered no list of models: {error}") from error


def weight_label(reply: Any) -> str:
    """The label of /weight_info."""
    label = mapping(reply, "/weight_info").get("weight_version")
    if not isinstance(label, str):
        raise MalformedReply(f"/weight_info answered {reply!r}")
    return label


def _first_choice(reply: Any, path: str) -> dict[str, Any]:
    choices = mapping(reply, path).get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MalformedReply(f"{path} answered no choices")
    first: dict[str, Any] = choices[0]
    return first


def _checked(
    choice: Mapping[str, Any], logprobs: list[float], spans: list[tuple[str, int, int]], reply: Any
) -> Choice:
    reason = choice.get("finish_reason")
    if reason == "abort":
        raise GenerationAborted("the engine aborted the request; it produced no completion")
    if reason not in ("stop", "length"):
        raise MalformedReply(f"finish_reason is {reason!r}, expected stop, length or abort")
    token_ids = choice.get("token_ids")
    if not isinstance(token_ids, list) or not token_ids or len(token_ids) != len(logprobs):
        raise MalformedReply(f"{len(logprobs)} logprobs for token_ids {str(token_ids)[:60]}")
    if not all(math.isfinite(value) for value in logprobs):
        raise MalformedReply("a sampled token has no finite logprob; the served weights are broken")
    details = (reply.get("usage") or {}).get("prompt_tokens_details") or {}
    return Choice(
        [int(t) for t in token_ids], logprobs, reason, spans, int(details.get("cached_tokens") or 0)
    )
