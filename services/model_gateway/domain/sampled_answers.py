"""What an engine says of the tokens that it sampled: collected for recording, and taken out of what the
client gets where it did not ask for it."""

from collections.abc import Mapping
from typing import Any, Final

from model_gateway.domain.calls import ApiRoute, CompletionCall
from model_gateway.domain.replies import choices_of, version_in
from model_gateway.domain.sessions import SampledChoice, VersionedSpan

_OWN_DISTRIBUTION: Final[Mapping[str, tuple[Any, ...]]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
"""Values that leave the tokens to the policy alone, beside null."""


def samples_another_distribution(body: Mapping[str, Any]) -> bool:
    """Whether a request has the engine draw from other than the policy's distribution at its temperature: the
    log-probabilities of such tokens are no policy's, so they must not train."""
    return any(
        body.get(name) is not None and body[name] not in own for name, own in _OWN_DISTRIBUTION.items()
    )


class AnswerCollector:
    """The choices of one reply, from the whole of it or from its chunks."""

    def __init__(self) -> None:
        self._choices: dict[int, SampledChoice] = {}

    @property
    def choices(self) -> list[SampledChoice]:
        """By their index. Choices of one prompt share its ids, which some engines say once."""
        found = [self._choices[index] for index in sorted(self._choices)]
        for one in found:
            one.prompt_ids = one.prompt_ids or found[0].prompt_ids
        return found

    def add(self, reply: Mapping[str, Any]) -> None:
        """Take what a reply or a chunk says."""
        for said in choices_of(reply):
            index = int(said.get("index") or 0)
            one = self._choices.setdefault(index, SampledChoice(index))
            prompt_ids = said.get("prompt_token_ids") or reply.get("prompt_token_ids")
            if prompt_ids and not one.prompt_ids:
                one.prompt_ids = prompt_ids
            one.token_ids += said.get("token_ids") or ()
            _add_logprobs(one, said.get("logprobs"))
            _add_message(one, said)
            _add_spans(one, said)
            one.finish_reason = said.get("finish_reason") or one.finish_reason


def _add_logprobs(one: SampledChoice, said: Any) -> None:
    if not isinstance(said, Mapping):
        return
    if (entries := said.get("content")) is not None:
        one.logprobs += [entry["logprob"] for entry in entries]
        one.token_texts += [entry["token"] for entry in entries]
    else:
        one.logprobs += said.get("token_logprobs") or ()
        one.token_texts += said.get("tokens") or ()


def _add_message(one: SampledChoice, said: Mapping[str, Any]) -> None:
    message = said.get("message") or said.get("delta") or {}
    one.text += message.get("content") or said.get("text") or ""
    one.reasoning += message.get("reasoning") or message.get("reasoning_content") or ""
    for position, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        known = one.tool_calls.setdefault(
            call.get("index", position), {"id": "", "name": "", "arguments": ""}
        )
        known["id"] = call.get("id") or known["id"]
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""


def _add_spans(one: SampledChoice, said: Mapping[str, Any]) -> None:
    for span in said.get("weight_versions") or ():
        version = version_in(span)
        if version is not None:
            one.spans.append(VersionedSpan(version, span["start"], span["end"]))


def without_unasked(call: CompletionCall, reply: dict[str, Any], *, streamed: bool) -> bool:
    """Takes what only the recording asked for out of a reply or a chunk. False: nothing is left of the
    chunk."""
    asked_for_logprobs = call.asks_for_logprobs
    if not call.return_token_ids:
        _forget(reply, "prompt_token_ids", streamed)
    left = not streamed or ("usage" in reply and not reply.get("choices"))
    for choice in choices_of(reply):
        if not call.return_token_ids:
            _forget(choice, "token_ids", streamed)
            _forget(choice, "prompt_token_ids", streamed)
        if not asked_for_logprobs and "logprobs" in choice:
            choice["logprobs"] = None
        left = left or _says_something(call, choice)
    return left or bool(reply.get("error"))


def _forget(said: dict[str, Any], name: str, streamed: bool) -> None:
    if streamed:
        said.pop(name, None)
    elif name in said:
        said[name] = None


def _says_something(call: CompletionCall, choice: Mapping[str, Any]) -> bool:
    """Engines send chunks without text for ids and log-probabilities alone."""
    if call.return_token_ids or call.asks_for_logprobs or choice.get("finish_reason"):
        return True
    return bool(choice.get("text") if call.route is ApiRoute.COMPLETIONS else choice.get("delta"))
