"""What production capture stores has been through the operator's function; what fails is not stored."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.services.model_gateway import redactors
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.engine_double import WORDS, EngineDouble
from tests.services.model_gateway.test_recorded_sessions import MODEL, facts_of, other_key, recorded, rows
from tests.services.model_gateway.test_session_bounds import call_of
from tests.support.waiting import until

from grpo_trainer.domain.errors import Untrainable
from grpo_trainer.domain.token_rows import episode_tokens
from model_gateway import telemetry
from model_gateway.adapters.redaction import RedactionFailed, RedactionOverran, RedactionProcess
from model_gateway.domain.redaction import redacted, shown
from service_kit.groups import S3Settings
from service_kit.settings import SettingsError
from upcycle.api.trajectory.v1.events_pb2 import RecordedSessionOpened, TrajectoryRecorded

HERE = "tests.services.model_gateway.redactors"
SECRET = f"{redactors.CANARY}-of-ada"
TOKENS = [77001, 77002, 77003]


PAGE = Path(__file__).resolve().parents[3] / "docs" / "do" / "recorded-sessions.md"


def test_the_function_of_the_documentation_takes_addresses_and_drops_what_is_no_business_of_ours() -> None:
    ((code,),) = [re.findall(r"```python\n(\"\"\"Redaction.*?)```", PAGE.read_text(), re.DOTALL)]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    redact = names["redact"]
    call = shown(call_of("s", content="I am ada@example.org, +44 20 7946 0018"))
    answers = call["answers"]
    answers[0] |= {"text": "Dear ada@example.org", "sampled": "Dear ada@example.org<eos>"}
    said = redact(json.loads(json.dumps(call)))
    assert said["messages"] == [{"role": "user", "content": "I am [address], [number]"}]
    assert (said["answers"][0]["text"], said["model"]) == ("Dear [address]", "m")
    assert redact(json.loads(json.dumps(shown(call_of("s"))))) == shown(call_of("s"))
    assert redact(shown(call_of("s", content="INTERNAL ONLY: salaries"))) is None


def path_of(function: str) -> str:
    return f"{HERE}:{function}"


@pytest.fixture
async def process(request: pytest.FixtureRequest) -> AsyncIterator[RedactionProcess]:
    process = RedactionProcess(path_of(request.param), deadline_s=1.0)
    await process.start()
    yield process
    await process.stop()


@pytest.mark.parametrize(
    ("process", "error"),
    [
        ("hangs", RedactionOverran),
        ("sleeps", RedactionOverran),
        ("raises", RedactionFailed),
        ("exits", RedactionFailed),
        ("leaves", RedactionFailed),
    ],
    indirect=["process"],
)
async def test_a_function_that_fails_says_so_without_content_and_is_asked_again(
    process: RedactionProcess, error: type[Exception]
) -> None:
    call = shown(call_of("s", content=SECRET))
    for _ in range(2):
        with pytest.raises(error) as failed:
            await process(call)
        assert SECRET not in str(failed.value)
    assert process.ready() is None, "two in a row are no alarm yet"


@pytest.mark.parametrize("process", ["raises"], indirect=True)
async def test_failures_in_a_row_are_an_alarm(process: RedactionProcess) -> None:
    for _ in range(5):
        with pytest.raises(RedactionFailed):
            await process(shown(call_of("s")))
    alarm = process.ready() or ""
    assert "last 5 captured calls are not stored" in alarm
    assert "it raised ValueError" in alarm


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (f"{HERE}:nothing", "has no attribute 'nothing'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        (f"{HERE}:NO_LIST", "of type list, no function"),
        (f"{HERE}:later", "async function"),
    ],
)
async def test_a_function_that_cannot_be_loaded_keeps_the_gateway_from_starting(path: str, why: str) -> None:
    with pytest.raises(SettingsError, match="MODEL_GATEWAY_CAPTURE_REDACT") as error:
        await RedactionProcess(path, deadline_s=1.0).start()
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("more", "keeps_tokens"),
    [
        ({}, True),
        ({"stop": ["."]}, True),  # its text is among the sampled tokens, which the function is shown
        ({"prompt": [1, 2, 3], "messages": None}, False),
        ({"chat_template_kwargs": {"user": "ada"}}, False),
        ({"tokens": [1, 2]}, False),
        ({"return_tokens_as_token_ids": True}, False),
    ],
)
def test_tokens_stay_only_where_all_that_they_say_was_shown(more: dict[str, Any], keeps_tokens: bool) -> None:
    call = call_of("s", **more)
    call.choices[0].token_texts = ["so"]
    kept = redacted(call, shown(call), json.loads(json.dumps(shown(call))))
    assert kept.choices[0].has_tokens is keeps_tokens


@pytest.mark.parametrize("where", ["messages", "tools", "text", "reasoning", "tool_calls", "sampled"])
def test_a_change_of_any_text_takes_the_tokens(where: str) -> None:
    call = call_of("s")
    call.choices[0].token_texts = ["so"]
    after = json.loads(json.dumps(shown(call)))
    changed: dict[str, Any] = {
        "messages": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function"}],
        "tool_calls": [{"id": "", "name": "f", "arguments": ""}],
    }
    into = after if where in after else after["answers"][0]
    into[where] = changed.get(where, "?")
    kept = redacted(call, shown(call), after)
    assert not kept.choices[0].prompt_ids
    assert not kept.choices[0].token_ids
    assert not kept.choices[0].token_texts


def with_function(name: str) -> dict[str, Any]:
    return {"capture_fraction": 1.0, "capture_redact": path_of(name), "capture_redact_s": 1.0}


def counted() -> dict[str, float]:
    """Calls so far, by outcome."""
    names = ("unchanged", "changed", "dropped", "failed", "overran", "stopped")
    return {name: telemetry.CAPTURE_REDACTED.labels(name)._value.get() for name in names}


async def captured(gateway: Gateway, content: str, **more: Any) -> str:
    """The session id of a captured call."""
    consenting = gateway.client(await other_key(gateway, may_capture=True))
    raw = await consenting.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": content}], **more
    )
    assert raw.parse().choices, "the client gets its answer, whatever becomes of the capture"
    return str(raw.headers["x-request-id"])


def bytes_under(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("changes", [with_function("scrub")])
async def test_a_canary_is_in_no_bytes_of_the_store(
    gateway: Gateway,
    served: EngineDouble,
    s3_settings: S3Settings,
    changes: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.prompt_ids = TOKENS
    tools: Any = [{"type": "function", "function": {"name": f"look_{SECRET}", "parameters": {}}}]
    plain = await captured(gateway, f"why, {SECRET}?")
    tool = await captured(gateway, "why?", tools=tools)
    kept = ""
    for session_id in (plain, tool):
        body = await recorded(gateway, s3_settings, session_id)
        kept += str(body)
        assert sum(len(turn.sampled_ids) + len(turn.new_prompt_ids) for turn in body.turns) == 0
        with pytest.raises(Untrainable):
            episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
        for kind in (RecordedSessionOpened, TrajectoryRecorded):
            kept += str(await facts_of(gateway, kind, session_id))
    assert "why, [gone]" in kept
    assert "the pool is [gone]" in kept
    stored = bytes_under(tmp_path / "sql")
    before = [{"role": "user", "content": f"why, {SECRET}?"}]
    digest = hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()
    for secret in (redactors.CANARY, redactors.SAID, digest):
        assert secret not in kept
        assert secret.encode() not in stored
        assert secret not in caplog.text
    assert b"sqlite" in stored.lower(), "the bytes that were looked through are those of the database"


@pytest.mark.parametrize("changes", [with_function("unchanged")])
async def test_a_call_that_the_function_leaves_alone_keeps_its_tokens(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, changes: dict[str, Any]
) -> None:
    before = counted()
    body = await recorded(gateway, s3_settings, await captured(gateway, "why?"))
    assert list(body.turns[0].sampled_ids) == [11, 12, 13, 14]
    assert counted()["unchanged"] == before["unchanged"] + 1


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        (with_function("drop"), "dropped"),
        (with_function("raises"), "failed"),
        (with_function("hangs"), "overran"),
        (with_function("exits"), "failed"),
        (with_function("fewer"), "failed"),
        (with_function("no_call"), "failed"),
        (with_function("no_text"), "failed"),
    ],
    ids=lambda one: one if isinstance(one, str) else one["capture_redact"].partition(":")[2],
)
async def test_what_is_not_redacted_is_not_stored_and_counted(
    gateway: Gateway,
    served: EngineDouble,
    changes: dict[str, Any],
    outcome: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = counted()
    await captured(gateway, SECRET)
    await until(lambda: counted() != before, "the call to be counted")
    assert {name: n - before[name] for name, n in counted().items() if n != before[name]} == {outcome: 1}
    assert await rows(gateway, "select * from recorded_session") == []
    assert SECRET.encode() not in bytes_under(tmp_path / "sql")
    assert SECRET not in caplog.text


@pytest.mark.parametrize("changes", [{**with_function("sleeps"), "capture_redact_s": 30.0}])
async def test_a_gateway_that_stops_stores_nothing_that_still_waits(
    gateway: Gateway, served: EngineDouble, changes: dict[str, Any]
) -> None:
    before = counted()
    for _ in range(3):
        await captured(gateway, SECRET)
    async with asyncio.timeout(20):
        await gateway.service.stop()
    assert {name: n - before[name] for name, n in counted().items() if n != before[name]} == {"stopped": 3}


@pytest.mark.parametrize("changes", [{**with_function("drop"), "session_idle_s": 1.0}])
async def test_a_session_that_its_client_names_is_recorded_as_it_is(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, changes: dict[str, Any]
) -> None:
    named = gateway.client(default_headers={"X-Session-ID": "mine"})
    await named.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "why?"}])
    body = await recorded(gateway, s3_settings, "mine")
    assert body.answer.split() == list(WORDS)
