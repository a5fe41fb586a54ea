"""One episode in tokens, for the harness: what is sampled and inserted goes into its body as it comes."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from chat_format import InvalidMessages
from engine_client import Completion, ContextOverflow, FinishReason, SamplingParams, continued
from environment_client import EnvironmentClient, OpenedEnvironment
from episodes import EpisodeBroken, EpisodeFailure
from rollout_sampler import telemetry, wire
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.policies import PolicyFormat
from rollout_sampler.domain import EpisodeTask
from rollout_sampler.usecases.conversation import Conversation
from upcycle.api.common.v1.common_pb2 import Usage
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody, Turn
from upcycle.harness import (
    AssistantTurn,
    StopReason,
    TakenTurn,
    ToolCall,
    ToolOutcome,
    TurnLimits,
    play_turns,
)
from upcycle.harness.context import COMPRESS
from upcycle.retrying import retry
from upcycle.run_config import MAX_EPISODE_DEADLINE_S

_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 1.0
_ANSWER_MARGIN_S: Final = 2.0
"""In which the environment's word that a call took too long comes before the episode's deadline."""
_STOP_REASONS: Final = {
    StopReason.ANSWERED: trajectory_pb2.STOP_REASON_ANSWERED,
    StopReason.MAX_TURNS: trajectory_pb2.STOP_REASON_MAX_TURNS,
    StopReason.MAX_TOKENS: trajectory_pb2.STOP_REASON_MAX_TOKENS,
}


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """What one episode may take of the sampler; seconds and counts."""

    episode_s: float = MAX_EPISODE_DEADLINE_S
    late_start_s: float = 30.0
    """Least time for an episode that starts after its deadline, or just before it."""
    retry_s: float = 30.0
    """Longest wait in the middle of an episode for an engine or for the object store to come back."""
    max_tool_calls_per_turn: int = 16
    max_tool_result_chars: int = 32_768


class EpisodePlayer:
    """Plays one episode, once; to the harness it is a TurnDriver."""

    def __init__(
        self,
        task: EpisodeTask,
        environment: OpenedEnvironment,
        form: PolicyFormat,
        engines: LeasedEngines,
        environments: EnvironmentClient,
        *,
        time_s: float,
    ) -> None:
        self._task = task
        self._environment = environment
        self._conversation = Conversation(form.chat, environment, thinking=task.sampling.thinking)
        self._token_texts: Mapping[int, str] = form.texts
        self._stop_token_ids = tuple(sorted(form.chat.stop_token_ids))
        self._engines = engines
        self._environments = environments
        self.time_s = time_s
        """How long the episode may take."""
        self._began_s = asyncio.get_running_loop().time()
        self.engine_id = ""
        """Of the engine that sampled last."""
        self.tools_s = 0.0
        """Seconds that tools took which the policy had called, as their environment measured them: a call
        that has not come back may wait for the platform."""
        self._body, self._retry_s, self._nonce = TrajectoryBody(), 0.0, ""
        self._new_prompt_ids: Sequence[int] = ()
        self._sampled_s = 0.0
        self._restarts = False

    @property
    def is_mostly_tools(self) -> bool:
        """Tools took more than half of the time since the episode began."""
        return self.tools_s > self._elapsed_s() / 2

    async def play_into(self, body: TrajectoryBody, limits: PlayLimits, nonce: str) -> None:
        """Append the turns; set the stop reason and the answer, which stays empty when a budget cut it.

        A turn whose tools fail is in the body. Raises Unavailable, EpisodeBroken, and ContextOverflow where
        not even the first prompt fits.
        """
        body.stop_reason = trajectory_pb2.STOP_REASON_MAX_TURNS
        self._body, self._retry_s, self._nonce = body, limits.retry_s, nonce
        turns = TurnLimits(
            self._task.sampling.max_turns, limits.max_tool_calls_per_turn, limits.max_tool_result_chars
        )
        ending = await play_turns(self, turns)
        body.stop_reason, body.answer = _STOP_REASONS[ending.stop_reason], ending.answer

    async def note_last_state(self, body: TrajectoryBody) -> None:
        """Add the environment's state before the grade, where it declares one. It takes no time of the
        episode, which is over, and never raises."""
        if body.HasField("first_state"):
            body.last_state.CopyFrom(await self._environments.last_state(self._environment.lease))

    async def begin(self) -> None:
        """Render the prompt. Raises EpisodeBroken for one that leaves no room for an answer."""
        self._new_prompt_ids = self._begin()

    async def take_turn(self, index: int) -> TakenTurn | None:
        """The next turn of the body, with its calls; None when the episode's tokens are spent. A completion
        cut by length calls no tools."""
        if self._room() < self._task.sampling.max_tokens_per_turn:
            self._compress()
        started_s = self._elapsed_s()
        sampled = await self._sampled(index)
        if sampled is None:
            return None
        completion, inserted = sampled
        self.engine_id = completion.engine_id
        assistant = self._conversation.read(completion.token_ids)
        texts = [self._token_texts[token] for token in completion.token_ids]
        turn = self._body.turns.add()
        turn.CopyFrom(wire.sampled_turn(self._new_prompt_ids, completion, texts))
        turn.inserted_start, turn.num_inserted = inserted.start, len(inserted)
        turn.text, turn.parse_error = assistant.text, assistant.parse_error or ""
        turn.reasoning, turn.restarts_context = assistant.reasoning, self._restarts
        self._restarts = False
        turn.started_s, turn.sampling_s = started_s, self._elapsed_s() - started_s
        was_cut = completion.finish_reason is FinishReason.LENGTH
        if not was_cut:
            turn.tool_calls.extend(_calls_of(assistant, f"{self._nonce}-t{index}"))
        self._sampled_s = self._elapsed_s()
        return TakenTurn(assistant, was_cut, turn.restarts_context)

    async def run_call(self, position: int, call: ToolCall) -> ToolOutcome:
        """Run a call of the last turn. Raises Unavailable and EpisodeBroken."""
        try:
            return await self._run_tool(self._last_turn.tool_calls[position])
        finally:
            self._last_turn.tools_s = self._elapsed_s() - self._sampled_s

    def add_outcome(self, position: int, outcome: ToolOutcome) -> None:
        """Note it in the body."""
        turn = self._last_turn
        turn.tool_results.add(
            call_id=turn.tool_calls[position].call_id,
            content=outcome.content,
            is_error=outcome.is_error,
            duration_s=outcome.duration_s,
            state=outcome.state,
        )
        self.tools_s += outcome.duration_s

    def observe(self, messages: Sequence[dict[str, Any]]) -> None:
        """Render what the policy reads. Raises EpisodeBroken where the template refuses to go on."""
        with _continuing():
            self._new_prompt_ids = self._conversation.reply(messages)

    def _room(self) -> int:
        return self._task.completion_limit(len(self._conversation.token_ids))

    def _compress(self) -> bool:
        """Whether a shorter context, a new one, takes the place of the one that is full. Raises
        EpisodeBroken."""
        if self._task.sampling.context != COMPRESS:
            return False
        with _continuing():
            ids = self._conversation.compress()
        if ids is None:
            return False
        self._new_prompt_ids, self._restarts = ids, True
        return True

    async def _sampled(self, index: int) -> tuple[Completion, range] | None:
        """The turn's completion; None where the episode's tokens are spent. Raises EpisodeBroken where the
        engine's context is, and ContextOverflow where not even the first prompt fits."""
        while self._room() > 0:
            try:
                return await self._complete(index, self._retry_s, self._body.usage)
            except ContextOverflow as error:
                if not index:
                    raise
                if not self._compress():
                    raise EpisodeBroken(EpisodeFailure.CONTEXT_SPENT, str(error)) from error
        return None

    @property
    def _last_turn(self) -> Turn:
        return self._body.turns[-1]

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    def _begin(self) -> list[int]:
        """The prompt's ids. Raises EpisodeBroken for a prompt that leaves no room for an answer."""
        try:
            ids = self._conversation.begin()
        except InvalidMessages as error:
            raise EpisodeBroken(
                EpisodeFailure.SCENARIO_ERROR, f"the prompt cannot be rendered: {error}"
            ) from error
        limit = self._task.sampling.max_tokens_per_episode
        if len(ids) >= limit:
            raise EpisodeBroken(
                EpisodeFailure.CONTEXT_OVERFLOW,
                f"the prompt of task {self._task.identity.task_slug!r} has {len(ids)} tokens, "
                f"max_tokens_per_episode is {limit}: raise it or shorten the prompt",
            )
        return ids

    async def _complete(self, index: int, retry_s: float, usage: Usage) -> tuple[Completion, range]:
        """A turn's completion, and where in it the end of its thinking was inserted: a turn that spends its
        thinking budget is sampled in two requests."""
        context, asked = self._conversation.token_ids, self._task.sampling
        limit = self._task.completion_limit(len(context))
        budget = min(asked.thinking_budget or limit, limit)
        first = await self._request(index, context, budget, retry_s, usage)
        if first.finish_reason is not FinishReason.LENGTH or not len(first.token_ids) == budget < limit:
            return first, range(0)
        inserted = self._conversation.end_of_thinking(first.token_ids)
        room = limit - len(first.token_ids) - len(inserted)
        if room <= 0:
            return first, range(0)
        longer = [*context, *first.token_ids, *inserted]
        second = await self._request(asked.max_turns + index, longer, room, retry_s, usage)
        return continued(first, inserted, second), range(budget, budget + len(inserted))

    async def _request(
        self, index: int, context: Sequence[int], max_tokens: int, retry_s: float, usage: Usage
    ) -> Completion:
        """One request; when an engine is lost, the same goes to another one. index: of its seed."""
        policy, asked = self._task.policy, self._task.sampling
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=self._task.turn_seed(index),
            stop_token_ids=self._stop_token_ids,
        )
        with telemetry.chat_span(self._task, index, sampling.max_tokens) as span, telemetry.TURN_S.time():
            completion = await retry(
                lambda: self._engines.sample(policy, context, sampling, usage, before=self.engine_id),
                budget_s=retry_s,
                first_pause_s=_FIRST_RETRY_S,
                max_pause_s=_MAX_RETRY_S,
            )
            telemetry.describe_completion(span, policy.model, completion, len(context))
        return completion

    async def _run_tool(self, call: trajectory_pb2.ToolCall) -> ToolOutcome:
        with telemetry.tool_span(self._task, call.name, call.call_id) as span, telemetry.TOOL_S.time():
            opened = self._environment
            result = await self._environments.call_tool(
                opened.lease,
                call,
                limit_s=self._tool_limit_s(),
                own_limit_s=opened.tool_limits.get(call.name),
            )
            if result.is_error:
                span.set_attribute("error.type", "tool_error")
        state = result.state if result.HasField("state") else None
        return ToolOutcome(result.content, result.is_error, result.duration_s, state)

    def _tool_limit_s(self) -> float | None:
        """The time that is left for a call, where one that takes all of it makes the episode mostly tools.

        Else None: that the deadline cuts such a call off is not the policy's failure.
        """
        elapsed_s = self._elapsed_s()
        left_s = self.time_s - elapsed_s
        limit_s = left_s - min(_ANSWER_MARGIN_S, left_s / 5)
        is_mostly_tools = self.tools_s + limit_s > (elapsed_s + limit_s) / 2
        return limit_s if limit_s > 0 and is_mostly_tools else None


@contextmanager
def _continuing() -> Iterator[None]:
    try:
        yield
    except InvalidMessages as error:
        raise EpisodeBroken(
            EpisodeFailure.POLICY_UNREADABLE, f"the conversation cannot be continued: {error}"
        ) from error


def _calls_of(turn: AssistantTurn, prefix: str) -> list[trajectory_pb2.ToolCall]:
    return [
        trajectory_pb2.ToolCall(
            call_id=f"{prefix}c{position}",
            name=call.name,
            arguments_json=json.dumps(call.arguments, ensure_ascii=False),
        )
        for position, call in enumerate(turn.tool_calls)
    ]
