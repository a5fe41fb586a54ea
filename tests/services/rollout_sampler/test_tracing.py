"""One episode is one trace: the agent's span holds its completions and tool calls, by the GenAI names."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import MODEL, tool_call
from tests.support.waiting import until


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    memory = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    yield memory
    memory.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_an_episode_is_one_trace(bed: Testbed, exporter: InMemorySpanExporter) -> None:
    bed.environments.tools = {"search_logs": lambda _: "oom"}
    turns = iter([tool_call("search_logs"), "OOM"])
    await bed.engine(lambda _, __: next(turns))
    await bed.sampler()
    request = bed.request()
    await bed.ask(request)
    (fact,) = await bed.outcomes(1)
    wanted = {f"invoke_agent {MODEL}", "execute_tool search_logs"}  # a span ends after its reply
    await until(lambda: wanted <= {s.name for s in exporter.get_finished_spans()})
    named = [s for s in exporter.get_finished_spans() if s.context is not None]
    (agent,) = [s for s in named if s.name == f"invoke_agent {MODEL}"]
    chats = [s for s in named if s.name == f"chat {MODEL}"]
    (tool,) = [s for s in named if s.name == "execute_tool search_logs"]
    assert agent.context is not None
    children = {s.name for s in named if s.parent and s.parent.span_id == agent.context.span_id}
    assert {f"chat {MODEL}", "execute_tool search_logs"} <= children
    assert len(chats) == 2
    assert attributes(agent)["gen_ai.operation.name"] == "invoke_agent"
    assert attributes(agent)["gen_ai.conversation.id"] == fact.episode.trajectory_id
    chat = attributes(chats[0])
    assert chat["gen_ai.response.model"] == f"{MODEL}@v3"
    assert chat["gen_ai.response.finish_reasons"] == ("stop",)
    assert chat["gen_ai.usage.output_tokens"] + attributes(chats[1])["gen_ai.usage.output_tokens"] == (
        fact.num_sampled_tokens
    )
    assert attributes(tool)["gen_ai.tool.name"] == "search_logs"
    body = await bed.body(fact)
    assert body.traceparent.split("-")[1] == f"{agent.context.trace_id:032x}"
    ours = {s.context.trace_id for s in (agent, tool, *chats) if s.context is not None}
    assert len(ours) == 1
    text = " ".join(str(attributes(span)) for span in (agent, tool, *chats))
    assert "OOM" not in text, "no content leaves by telemetry"
