"""Reading an engine's replies: every shape is checked here, once, and a wrong one raises MalformedReply."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine_client.errors import GenerationAborted, MalformedReply
from engine_client.types import Completion, FinishReason, StagedScores, TokenSpan

_GENERATE: Final = "/inference/v1/generate"
_COMPLETIONS: Final = "/v1/completions"
_MAX_TOKENS: Final = 2**31
"""No vocabulary is larger; what is stored and trained on has 32 bits."""


def mapping(reply: Any, path: str) -> dict[str, Any]:
    """The reply as an object."""
    if not isinstance(reply, dict):
        raise MalformedReply(f"{path} answered with type {type(reply).__name__}, expected an object")
    return reply


def lacks_generate(message: str) -> bool:
    """Whether a refusal says that the route is off (vLLM without --enable-scale-out) or unknown."""
    return "scale-out" in message.lower() or message == "Not Found"


def weight_labels(reply: Any) -> list[str]:
    """The labels that /inference/v1/generate stamped on the tokens of choice 0. Raises GenerationAborted."""
    return sorted({label for label, _, _ in _label_spans(_sampled_choice(reply, _GENERATE))})


def generated(reply: Any, versions: Mapping[str, int]) -> Completion:
    """Choice 0 of /inference/v1/generate. versions: of each of its `weight_labels`."""
    choice = _sampled_choice(reply, _GENERATE)
    try:
        logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MalformedReply(f"{_GENERATE} left out logprobs: {error}") from error
    spans = [TokenSpan(versions[label], start, end) for label, start, end in _label_spans(choice)]
    return _completion(choice, logprobs, _merged(spans), exact=True)


def completed(reply: Any, version: int, *, exact: bool) -> Completion:
    """Choice 0 of /v1/completions with return_token_ids and logprobs; it says nothing about versions."""
    choice = _sampled_choice(reply, _COMPLETIONS)
    try:
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MalformedReply(f"{_COMPLETIONS} left out logprobs: {error}") from error
    return _completion(choice, logprobs, (TokenSpan(version, 0, len(logprobs)),), exact=exact)


def _sampled_choice(reply: Any, path: str) -> dict[str, Any]:
    choice = _first_choice(reply, path)
    reason = choice.get("finish_reason")
    if reason == "abort":
        raise GenerationAborted("the engine aborted the request; it produced no completion")
    if reason not in ("stop", "length"):
        raise MalformedReply(f"finish_reason is {reason!r}, expected stop, length or abort")
    return choice


def _label_spans(choice: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    try:
        return [(str(s["version"]), int(s["start"]), int(s["end"])) for s in choice["weight_versions"] or ()]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MalformedReply(f"{_GENERATE} left out weight_versions: {error}") from error


def _merged(spans: Sequence[TokenSpan]) -> tuple[TokenSpan, ...]:
    """Neighbours of one version as one span."""
    merged: list[TokenSpan] = []
    for span in spans:
        if merged and merged[-1].version == span.version:
            merged[-1] = TokenSpan(span.version, merged[-1].start, span.end)
        else:
            merged.append(span)
    return tuple(merged)


def _completion(
    choice: Mapping[str, Any], logprobs: list[float], spans: tuple[TokenSpan, ...], *, exact: bool
) -> Completion:
    token_ids = choice.get("token_ids")
    if not isinstance(token_ids, list) or not token_ids or len(token_ids) != len(logprobs):
        raise MalformedReply(f"{len(logprobs)} logprobs for token_ids {str(token_ids)[:60]}")
    if not all(type(token) is int and 0 <= token < _MAX_TOKENS for token in token_ids):
        raise MalformedReply(f"token_ids {str(token_ids)[:60]} are no whole numbers below 2**31")
    if not all(math.isfinite(value) for value in logprobs):
        raise MalformedReply("a sampled token has no finite logprob; the served weights are broken")
    edges = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != edges[:-1] or edges[-1] != len(token_ids):
        raise MalformedReply(f"version spans {spans} do not cover {len(token_ids)} tokens")
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        finish_reason=FinishReason(choice["finish_reason"]),
        version_spans=spans,
        spans_are_exact=exact,
    )


def prompt_logprobs(reply: Any, token_ids: Sequence[int]) -> list[float]:
    """`prompt_logprobs` of a completion: entry i holds, among others, the prompt's own token i."""
    choice = _first_choice(reply, _COMPLETIONS)
    try:
        entries = choice["prompt_logprobs"][1:]
        found = [
            float(entry[str(token)]["logprob"]) for entry, token in zip(entries, token_ids[1:], strict=True)
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MalformedReply(f"{_COMPLETIONS} left out prompt_logprobs: {error}") from error
    return found


def scored_rows(reply: Any, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """Result of the embedded engine's `prompt_logprobs` method."""
    return _rows_named(reply, "logprobs", rows)


def staged_scores(reply: Any, rows: Sequence[Sequence[int]]) -> StagedScores:
    """Result of the embedded engine's `stage_weights` method."""
    return StagedScores(_rows_named(reply, "logprobs", rows), _rows_named(reply, "before", rows))


def _rows_named(reply: Any, name: str, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    try:
        scored = [[float(value) for value in row] for row in reply["results"][0][name]]
    except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
        raise MalformedReply(f"/collective_rpc answered no rows {name!r}: {error}") from error
    if [len(row) for row in scored] != [len(row) - 1 for row in rows]:
        raise MalformedReply(f"/collective_rpc answered rows {name!r} of other lengths")
    return scored


def swap_seconds(reply: Any) -> float:
    """Result of the embedded engine's `swap_weights` method."""
    try:
        return float(reply["results"][0]["wall_s"])
    except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
        raise MalformedReply(f"/collective_rpc swap_weights answered no seconds: {error}") from error


def weight_label(reply: Any) -> str:
    """The label of /weight_info."""
    label = mapping(reply, "/weight_info").get("weight_version")
    if not isinstance(label, str):
        raise MalformedReply(f"/weight_info answered {reply!r}")
    return label


def is_paused(reply: Any) -> bool:
    """The answer of /is_paused."""
    return mapping(reply, "/is_paused").get("is_paused") is True


def was_refused(reply: Any) -> bool:
    """Whether an order was answered with `{"success": false}`; an empty answer is none."""
    return isinstance(reply, dict) and reply.get("success") is False


def first_model(reply: Any) -> str:
    """The name of the first model of /v1/models."""
    try:
        return str(reply["data"][0]["id"])
    except (KeyError, TypeError, IndexError) as error:
        raise MalformedReply(f"/v1/models names no model: {error}") from error


def _first_choice(reply: Any, path: str) -> dict[str, Any]:
    choices = mapping(reply, path).get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MalformedReply(f"{path} answered no choices")
    first: dict[str, Any] = choices[0]
    return first
