"""PlayEpisode: open the environment, let policy and environment take turns, keep the record once.

Guarantees: a record that exists is announced again, never sampled again; whatever goes wrong outside the
policy ends as a typed failure or as a named wait, never as a low reward; an environment that nobody will
grade is closed.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chat_format import AssistantTurn, InvalidMessages
from rollout_sampler import telemetry
from rollout_sampler.conversation import Conversation
from rollout_sampler.domain import (
    Completion,
    EpisodeTask,
    Failed,
    FailureKind,
    FinishReason,
    NotWanted,
    OpenedEnvironment,
    PlayOutcome,
    Recorded,
    RecordedFacts,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    TryLater,
    Turn,
    clip_text,
)
from rollout_sampler.ports import (
    Bodies,
    ContextFull,
    Engines,
    Environments,
    EpisodeBroken,
    Formats,
    GenerateRequest,
    NotPlanned,
    PolicyFormat,
    Unavailable,
)
from rollout_sampler.sampling import SampleTurn
from service_kit import DeadlineExceeded, deadline

log = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """What one episode may take of the sampler; seconds and counts."""

    episode_s: float = 120.0
    late_start_s: float = 30.0
    """Least time for an episode that starts after its deadline, or just before it."""
    patience_s: float = 30.0
    """Longest wait in the middle of an episode for an engine or for the object store to come back."""
    max_tool_calls_per_turn: int = 16
    max_tool_result_chars: int = 32_768


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything outside the process that an episode needs."""

    environments: Environments
    engines: Engines
    formats: Formats
    bodies: Bodies


class PlayEpisode:
    """Plays one episode from start to stored record."""

    def __init__(
        self,
        outside: Outside,
        limits: PlayLimits,
        *,
        now: Callable[[], datetime],
        new_nonce: Callable[[], str],
    ) -> None:
        """`new_nonce` tells the tool calls of two plays of one episode apart."""
        self._outside = outside
        self._limits = limits
        self._now = now
        self._new_nonce = new_nonce
        self._sample = SampleTurn(outside.engines, patience_s=limits.patience_s)

    async def __call__(self, task: EpisodeTask, *, may_be_stored: bool) -> PlayOutcome:
        """`may_be_stored`: the task came before, so look for its record first."""
        try:
            if may_be_stored and (facts := await self._outside.bodies.find(task)) is not None:
                return Recorded(facts)
            form = await self._outside.formats.of(task.policy)
            environment = await self._outside.environments.open(task.episode_id)
        except NotPlanned as error:
            return NotWanted(str(error))
        except Unavailable as error:
            return TryLater(error.delay_s, error.waiting_for)
        except EpisodeBroken as error:
            return Failed(error.kind, error.detail)
        return await self._play_opened(task, environment, form)

    async def _play_opened(
        self, task: EpisodeTask, environment: OpenedEnvironment, form: PolicyFormat
    ) -> PlayOutcome:
        graded_here = False
        try:
            async with deadline(f"episode {task.episode_id} to be played", self._time_left_s(task)):
                trajectory = await self._play(task, environment, form)
            facts = await self._keep(trajectory)
            graded_here = facts.lease_id == environment.lease_id
            return Recorded(facts)
        except Unavailable as error:
            return TryLater(error.delay_s, error.waiting_for)
        except EpisodeBroken as error:
            return Failed(error.kind, error.detail)
        except DeadlineExceeded as error:
            return Failed(FailureKind.TIMEOUT, str(error))
        finally:
            if not graded_here:
                await self._outside.environments.close(environment)

    def _time_left_s(self, task: EpisodeTask) -> float:
        """The planner asks again at the deadline; stop before, but give a late start a fair chance."""
        if task.deadline is None:
            return self._limits.episode_s
        left_s = (task.deadline - self._now()).total_seconds()
        return min(self._limits.episode_s, max(self._limits.late_start_s, left_s))

    async def _play(
        self, task: EpisodeTask, environment: OpenedEnvironment, form: PolicyFormat
    ) -> Trajectory:
        started_at = self._now()
        traceparent = telemetry.current_traceparent()
        player = _Player(task, environment, form, self._sample, self._outside.environments)
        stop_reason, answer = await player.play(self._limits, self._new_nonce())
        return Trajectory(
            task=task,
            environment=environment,
            turns=tuple(player.turns),
            stop_reason=stop_reason,
            answer=answer,
            started_at=started_at,
            ended_at=self._now(),
            traceparent=traceparent,
        )

    async def _keep(self, trajectory: Trajectory) -> RecordedFacts:
        """Store the record; a store that is away for a moment does not cost the episode."""
        return await _patiently(lambda: self._outside.bodies.keep(trajectory), self._limits.patience_s)


async def _patiently(attempt: Callable[[], Awaitable[RecordedFacts]], patience_s: float) -> RecordedFacts:
    """Repeat while Unavailable, for at most `patience_s`; then let it out."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + patience_s
    delay_s = _FIRST_RETRY_S
    while True:
        try:
            return await attempt()
        except Unavailable as error:
            if loop.time() + delay_s > give_up_at:
                raise
            log.warning("waits", extra={"waiting_for": error.waiting_for, "delay_s": delay_s})
        await asyncio.sleep(delay_s)
        delay_s = min(_MAX_RETRY_S, delay_s * 2)


class _Player:
    """The turns of one episode."""

    def __init__(
        self,
        task: EpisodeTask,
        environment: OpenedEnvironment,
        form: PolicyFormat,
        sample: SampleTurn,
        environments: Environments,
    ) -> None:
        self._task = task
        self._environment = environment
        self._conversation = Conversation(form.chat, environment)
        self._texts = form.texts
        self._stop_token_ids = tuple(sorted(form.chat.stop_token_ids))
        self._sample = sample
        self._environments = environments
        self._began_s = asyncio.get_running_loop().time()
        self.turns: list[Turn] = []

    async def play(self, limits: PlayLimits, nonce: str) -> tuple[StopReason, str]:
        """Why the episode ended, and the final answer (empty when a budget cut it off)."""
        budget = self._task.budget
        new_prompt_ids: Sequence[int] = self._begin()
        for index in range(budget.max_turns):
            if budget.completion_limit(len(self._conversation.token_ids)) <= 0:
                return StopReason.MAX_TOKENS, ""
            try:
                turn = await self._turn(index, new_prompt_ids, limits, nonce)
            except ContextFull as error:
                if not self.turns:
                    raise EpisodeBroken(FailureKind.CONTEXT_OVERFLOW, str(error)) from error
                return StopReason.MAX_TOKENS, ""
            self.turns.append(turn)
            if turn.completion.finish_reason is FinishReason.LENGTH:
                return StopReason.MAX_TOKENS, ""
            if not turn.tool_calls and not turn.parse_error:
                return StopReason.ANSWERED, turn.text
            if index + 1 < budget.max_turns:
                new_prompt_ids = self._reply(turn)
        return StopReason.MAX_TURNS, ""

    async def _turn(self, index: int, new_prompt_ids: Sequence[int], limits: PlayLimits, nonce: str) -> Turn:
        """Sample, read, and run what the policy asked for; a completion cut by length asks for nothing."""
        started_s = self._elapsed_s()
        completion = await self._complete(index)
        sampled_s = self._elapsed_s()
        assistant = self._conversation.read(completion)
        cut = completion.finish_reason is FinishReason.LENGTH
        calls = () if cut else _calls_of(assistant, f"{nonce}-t{index}")
        results = await self._run_tools(calls, limits)
        return Turn(
            new_prompt_ids=new_prompt_ids,
            completion=completion,
            token_texts=[self._texts[token] for token in completion.token_ids],
            text=assistant.text,
            tool_calls=calls,
            tool_results=results,
            parse_error=assistant.parse_error or "",
            sampling_s=sampled_s - started_s,
            tools_s=self._elapsed_s() - sampled_s,
            started_s=started_s,
        )

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    def _begin(self) -> list[int]:
        """The prompt's ids; a prompt without room for an answer is the taskset's fault, not the policy's."""
        try:
            ids = self._conversation.begin()
        except InvalidMessages as error:
            raise EpisodeBroken(
                FailureKind.SCENARIO_ERROR, f"the prompt cannot be rendered: {error}"
            ) from error
        limit = self._task.budget.max_tokens_per_episode
        if len(ids) >= limit:
            raise EpisodeBroken(
                FailureKind.CONTEXT_OVERFLOW,
                f"the prompt of task {self._task.task_slug!r} has {len(ids)} tokens, "
                f"max_tokens_per_episode is {limit}: raise it or shorten the prompt",
            )
        return ids

    async def _complete(self, index: int) -> Completion:
        budget = self._task.budget
        context = self._conversation.token_ids
        limit = budget.completion_limit(len(context))
        request = GenerateRequest(
            prompt_ids=context,
            max_tokens=limit,
            temperature=budget.temperature,
            top_p=budget.top_p,
            seed=budget.turn_seed(index),
            stop_token_ids=self._stop_token_ids,
        )
        with telemetry.chat_span(self._task, index, limit) as span, telemetry.TURN_S.time():
            completion = await self._sample(self._task.policy, request)
            telemetry.describe_completion(span, self._task.policy.model, completion, len(context))
        return completion

    async def _run_tools(self, calls: Sequence[ToolCall], limits: PlayLimits) -> tuple[ToolResult, ...]:
        """Results in the order of the calls, one after the other: a tool may need what an earlier one did."""
        results = []
        for position, call in enumerate(calls):
            if position < limits.max_tool_calls_per_turn:
                results.append(await self._run_tool(call, limits.max_tool_result_chars))
            else:
                refusal = f"refused: more than {limits.max_tool_calls_per_turn} tool calls in one turn"
                results.append(ToolResult(call.call_id, refusal, is_error=True, duration_s=0.0))
        return tuple(results)

    async def _run_tool(self, call: ToolCall, max_chars: int) -> ToolResult:
        with telemetry.tool_span(self._task, call.name, call.call_id) as span, telemetry.TOOL_S.time():
            result = await self._environments.call_tool(self._environment, call)
            if result.is_error:
                span.set_attribute("error.type", "tool_error")
        content = clip_text(result.content, max_chars)
        return ToolResult(result.call_id, content, result.is_error, result.duration_s)

    def _reply(self, turn: Turn) -> list[int]:
        try:
            if turn.parse_error:
                return self._conversation.reply_with_error(turn.parse_error)
            return self._conversation.reply_with_results([result.content for result in turn.tool_results])
        except InvalidMessages as error:
            raise EpisodeBroken(
                FailureKind.POLICY_UNREADABLE, f"the conversation cannot be continued: {error}"
            ) from error


def _calls_of(turn: AssistantTurn, prefix: str) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(f"{prefix}c{position}", call.name, json.dumps(call.arguments, ensure_ascii=False))
        for position, call in enumerate(turn.tool_calls)
    )
