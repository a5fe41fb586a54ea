"""Spans by the GenAI conventions, and the sampler's metrics. Neither carries prompt or completion text."""

from contextlib import AbstractContextManager
from typing import Final

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind
from prometheus_client import Counter, Gauge, Histogram

from engine_client import Completion
from rollout_sampler.domain import EpisodeTask

_tracer = trace.get_tracer("upcycle.rollout_sampler")

EPISODES = Counter(
    "upcycle_sampler_episodes_total", "Episodes by how the sampler's part ended", ["pool", "outcome", "kind"]
)
IN_FLIGHT = Gauge("upcycle_sampler_episodes_in_flight", "Episodes being played", ["pool"])
IDLE_RATIO = Gauge(
    "upcycle_sampler_idle_ratio", "Share of the slots that played nothing in the last 30 s", ["pool"]
)
TOKENS = Counter("upcycle_sampler_tokens_total", "Tokens that policies sampled", ["model"])
TURN_S = Histogram("upcycle_sampler_turn_sampling_seconds", "From request to completion of one turn")
TOOL_S = Histogram("upcycle_sampler_tool_call_seconds", "From call to result of one tool call")
WAITS = Counter("upcycle_sampler_waits_total", "Episodes put off because a service was unavailable", ["pool"])
WAITING_FOR_ROOM = Gauge(
    "upcycle_sampler_waiting_for_room", "Requests that wait until an engine has room for them"
)

PROVIDER: Final = "upcycle"


def agent_span(task: EpisodeTask) -> AbstractContextManager[Span]:
    """`invoke_agent`: the whole episode."""
    attributes: dict[str, str | int] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.agent.name": task.policy.model,
        "gen_ai.conversation.id": task.identity.trajectory_id,
        "gen_ai.request.model": task.policy.model,
        "upcycle.run.id": task.identity.run_id,
        "upcycle.group.id": task.identity.group_id,
        "upcycle.episode.id": task.identity.episode_id,
        "upcycle.task.slug": task.identity.task_slug,
    }
    name = f"invoke_agent {task.policy.model}"
    return _tracer.start_as_current_span(name, kind=SpanKind.INTERNAL, attributes=attributes)


def chat_span(task: EpisodeTask, turn: int, max_tokens: int) -> AbstractContextManager[Span]:
    """`chat`: one completion."""
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.conversation.id": task.identity.trajectory_id,
        "gen_ai.request.model": task.policy.model,
        "gen_ai.request.temperature": task.sampling.temperature,
        "gen_ai.request.top_p": task.sampling.top_p,
        "gen_ai.request.max_tokens": max_tokens,
        "upcycle.turn": turn,
    }
    name = f"chat {task.policy.model}"
    return _tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes)


def describe_completion(span: Span, model: str, completion: Completion, num_prompt_tokens: int) -> None:
    """What an engine answered: the weights that sampled, and how many tokens."""
    versions = completion.version_spans
    span.set_attributes(
        {
            "gen_ai.response.model": f"{model}@v{versions[-1].version}",
            "gen_ai.response.finish_reasons": [str(completion.finish_reason)],
            "gen_ai.usage.input_tokens": num_prompt_tokens,
            "gen_ai.usage.output_tokens": len(completion.token_ids),
            "upcycle.policy.version": versions[-1].version,
            "upcycle.policy.oldest_version": versions[0].version,
            "upcycle.engine.id": completion.engine_id,
        }
    )
    TOKENS.labels(model).inc(len(completion.token_ids))


def tool_span(task: EpisodeTask, name: str, call_id: str) -> AbstractContextManager[Span]:
    """`execute_tool`: one tool call."""
    attributes: dict[str, str] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call_id,
        "gen_ai.conversation.id": task.identity.trajectory_id,
    }
    return _tracer.start_as_current_span(
        f"execute_tool {name}", kind=SpanKind.INTERNAL, attributes=attributes
    )


def current_traceparent() -> str:
    """W3C context of the current span, empty where nothing is traced."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")
