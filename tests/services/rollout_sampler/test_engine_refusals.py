"""What an engine or the chat template refuses: a request, a prompt, a context that is spent."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import MODEL, tool_call, write_policy
from tests.support.waiting import until

from policy_files import PolicyFacts, upload
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.api.trajectory.v1.trajectory_pb2 import STOP_REASON_FAILED

SPENT = "This model's maximum context length is 512 tokens. However, your request has 530 input tokens."
STRICT_TEMPLATE = """\
{%- for m in messages %}
{%- if m.role not in ('user', 'assistant', 'tool') %}
{{- raise_exception(m.role ~ ' role not supported') }}
{%- endif %}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""As the templates of several models do with a role that they do not know."""


def refusal(kind: type[web.HTTPClientError], message: str) -> web.HTTPClientError:
    """As vLLM words it."""
    return kind(text=json.dumps({"error": {"message": message}}), content_type="application/json")


@pytest.mark.parametrize("kind", [web.HTTPUnprocessableEntity, web.HTTPBadRequest, web.HTTPForbidden])
async def test_a_request_that_an_engine_refuses_is_asked_of_no_other(
    bed: Testbed, kind: type[web.HTTPClientError]
) -> None:
    def refuse(_: str, __: dict[str, Any]) -> str:
        raise refusal(kind, "top_p must be in (0, 1]")

    engines = [await bed.engine(refuse, engine_id=name) for name in ("engine-a", "engine-b")]
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "engine_error"
    assert f"HTTP {kind.status_code}: top_p must be in (0, 1]" in fact.detail
    assert sum(len(engine.requests) for engine in engines) == 1
    await until(lambda: bed.environments.closed == ["lease-0"])


def spent_after_a_turn(prompt: str, _: dict[str, Any]) -> str:
    if "<tool_response>" in prompt:
        raise refusal(web.HTTPBadRequest, SPENT)
    return tool_call("search_logs", page=1)


async def test_a_context_that_is_spent_after_turns_is_the_policys_failure_at_the_first_attempt(
    bed: Testbed,
) -> None:
    bed.environments.tools = {"search_logs": lambda _: "a page"}
    engine = await bed.engine(spent_after_a_turn)
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryRecorded)
    body = await bed.body(fact)
    assert (fact.failure.kind, body.stop_reason, body.answer) == ("context_spent", STOP_REASON_FAILED, "")
    assert "maximum context length is 512" in body.failure.detail
    assert (len(body.turns), len(body.turns[0].tool_results), len(engine.requests)) == (1, 1, 2)
    assert fact.num_sampled_tokens == len(body.turns[0].sampled_ids) > 0
    await until(lambda: bed.environments.closed == ["lease-0"], "the environment, which no grader needs")


async def test_it_is_missing_in_a_run_that_does_not_score_failures(bed: Testbed) -> None:
    bed.environments.tools = {"search_logs": lambda _: "a page"}
    await bed.engine(spent_after_a_turn)
    await bed.sampler()
    await bed.ask(bed.request(failures_are_missing=True))
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "context_spent"


async def test_a_first_prompt_that_the_engine_has_no_room_for_is_a_typed_failure(bed: Testbed) -> None:
    def script(_: str, __: dict[str, Any]) -> str:
        raise refusal(web.HTTPBadRequest, SPENT)

    await bed.engine(script)
    await bed.sampler()
    await bed.ask(bed.request())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "context_overflow"
    assert "maximum context length" in fact.detail


async def test_a_prompt_that_the_chat_template_refuses_is_the_scenarios_failure(
    bed: Testbed, tmp_path: Path
) -> None:
    folder = write_policy(tmp_path / "strict", 5.0)
    (folder / "chat_template.jinja").write_text(STRICT_TEMPLATE)
    await upload(bed.blobs, folder, PolicyFacts(model=MODEL, version=5, created_at=datetime.now(UTC)))
    engine = await bed.engine(lambda _, __: "an answer", version=5)
    await bed.sampler()
    bed.environments.role = "system"
    await bed.ask(bed.request(0))
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "scenario_error"
    assert "system role not supported" in fact.detail
    assert engine.requests == []
    await until(lambda: bed.environments.closed == ["lease-0"])
    bed.environments.role = "user"
    await bed.ask(bed.request(1))
    _, played = await bed.outcomes(2)
    assert isinstance(played, TrajectoryRecorded)
