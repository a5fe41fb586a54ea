"""One trace from SubmitRun to each grade; a training step links to every trajectory it learnt from."""

from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
import pytest_asyncio
from tests.e2e.otlp_sink import OtlpSink, Span
from tests.platform_recipes import MODEL, POLICY_DIR, REPOSITORY, addresses, register_incident, small_training
from tests.support.waiting import until

from local_stack.stack import Stack, StackSettings
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED
from upcycle.platform import Platform
from upcycle.run_client import follow_run, submit_run

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]
OTEL_DEFAULT_LINK_LIMIT = 128


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sink() -> AsyncIterator[OtlpSink]:
    """Where all processes export to."""
    async with OtlpSink() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def traced(sink: OtlpSink, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform that exports, by nothing but the standard variables."""
    settings = StackSettings(
        data_dir=Path(tmp_path_factory.mktemp("traced")),
        model=MODEL,
        model_dir=POLICY_DIR,
        environment_roots=(REPOSITORY,),
        ephemeral_ports=True,
        extra_env={
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        },
    )
    async with Stack(settings) as running:
        await register_incident(running)
        yield running


async def eventually(sink: OtlpSink, part: str, service: str, traces: Collection[str]) -> list[Span]:
    """Spans of a name once at least one of these traces arrived: exporters batch, and not by trace."""

    def arrived() -> list[Span]:
        found = [span for span in sink.named(part) if span.service == service]
        return found if any(span.trace_id in traces for span in found) else []

    spans: list[Span] = await until(arrived, f"{part} of {service} in the trace", timeout_s=60)
    return spans


async def test_the_whole_path_is_one_trace_and_the_step_links_all_trajectories(
    traced: Stack, sink: OtlpSink
) -> None:
    spec = small_training(steps=1, gate=False)
    spec.group_size, spec.training.prompts_per_step = 16, 9  # 144 links in the step
    async with Platform(addresses(traced)) as platform:
        run = await submit_run(platform, spec)
        done = await follow_run(platform, run.run_id, timeout_s=200)
    assert done.state == RUN_STATE_COMPLETED, done.failure
    assert len(run.trace_id) == 32

    for part, service in (
        ("SubmitRun", "scenario_runner"),
        ("invoke_agent", "rollout_sampler"),
        ("chat", "rollout_sampler"),
        ("execute_tool", "rollout_sampler"),
        ("process", "reward_grader"),
    ):
        await eventually(sink, part, service, {run.trace_id})

    def stepped() -> list[Span]:
        return [span for span in sink.named("train_step") if span.service == "grpo_trainer"]

    steps: list[Span] = await until(stepped, "the span of the step", timeout_s=60)
    widest = max(steps, key=lambda span: len(span.links))
    assert len(widest.links) > OTEL_DEFAULT_LINK_LIMIT
    assert run.trace_id in widest.linked_traces
    await eventually(sink, "reload", "policy_engine", {span.trace_id for span in steps})


async def test_no_content_is_exported_unless_asked_for(sink: OtlpSink, traced: Stack) -> None:
    keys = {key for span in sink.spans for key in span.attributes}
    assert not {key for key in keys if key.startswith(("gen_ai.input.messages", "gen_ai.output.messages"))}
