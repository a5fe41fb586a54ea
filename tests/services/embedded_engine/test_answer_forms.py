"""Answers that must have a form, asked for with the unmodified `openai` client on real engines."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict
from tests.services.embedded_engine.conftest import MODEL, POLICY, EngineProcess, running_engine

ASK: Any = [{"role": "user", "content": "amber-queue is failing: why?"}]


class Finding(BaseModel):
    """What an agent might want to parse."""

    model_config = ConfigDict(extra="forbid")

    service: Literal["amber-queue", "birch-cache"]
    cause: Literal["database_down", "out_of_memory"]
    sure: bool


def function(name: str, **properties: Any) -> Any:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


DISK: Any = {"enum": ["disk", "queue"]}
SEARCH = function("search", query=DISK)
RESTART = function("restart", service={"$ref": "#/$defs/Service"}, force={"type": "boolean"})
RESTART["function"]["parameters"]["$defs"] = {"Service": {"enum": ["amber-queue", "birch-cache"]}}
TOOLS: Any = [SEARCH, RESTART]


def named(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def ask(engine: EngineProcess, **body: Any) -> Any:
    extra = {name: body.pop(name) for name in ("structured_outputs", "return_token_ids") if name in body}
    given: dict[str, Any] = {"max_tokens": 120, "temperature": 1.0, "seed": 5, **body}
    return engine.client.chat.completions.create(model=MODEL, messages=ASK, extra_body=extra, **given)


def calls_of(reply: Any) -> list[tuple[str, Any]]:
    calls = reply.choices[0].message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_parse_gives_the_model(engine: EngineProcess, temperature: float) -> None:
    reply = engine.client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Finding, temperature=temperature, n=4, max_tokens=200
    )
    for choice in reply.choices:
        assert isinstance(choice.message.parsed, Finding)
        assert choice.finish_reason == "stop"
        assert choice.model_extra is not None
        assert choice.model_extra["adjusted_by"] == ["response_format"]


def test_a_json_object_is_one(engine: EngineProcess) -> None:
    # A bias to what ends things: this policy would go on to the end of its budget.
    bias = {str(engine_token(text)): 30 for text in ('"', "}")}
    reply = ask(engine, response_format={"type": "json_object"}, logit_bias=bias, n=3)
    for choice in reply.choices:
        assert isinstance(json.loads(choice.message.content), dict)


def engine_token(text: str) -> int:
    from tokenizers import Tokenizer

    (token,) = Tokenizer.from_file(str(POLICY / "tokenizer.json")).encode(text).ids
    return int(token)


def test_a_stream_adds_up_to_the_same_answer(engine: EngineProcess) -> None:
    schema = {"name": "finding", "schema": Finding.model_json_schema(), "strict": True}
    form: Any = {"type": "json_schema", "json_schema": schema}
    whole = ask(engine, response_format=form).choices[0].message.content
    parts = [part.choices[0] for part in ask(engine, response_format=form, stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == whole
    assert parts[-1].model_extra["adjusted_by"] == ["response_format"]
    Finding.model_validate_json(whole)


@pytest.mark.parametrize(
    ("outputs", "fits"),
    [
        ({"choice": ["pool_exhausted", "out_of_memory"]}, {"pool_exhausted", "out_of_memory"}),
        ({"regex": r"(a/b|c\/d)[01]"}, {f"{head}{tail}" for head in ("a/b", "c/d") for tail in "01"}),
        ({"json": {"enum": [1, 2]}}, {"1", "2"}),
        ({"json": '{"enum": [1, 2]}'}, {"1", "2"}),
    ],
)
def test_structured_outputs_are_followed(engine: EngineProcess, outputs: Any, fits: set[str]) -> None:
    reply = ask(engine, structured_outputs=outputs, n=8)
    assert {choice.message.content for choice in reply.choices} <= fits


def test_logprobs_are_those_of_the_distribution_that_the_form_left(engine: EngineProcess) -> None:
    reply = ask(
        engine, structured_outputs={"regex": "[ABC]~"}, logprobs=True, top_logprobs=5, return_token_ids=True
    )
    first, second, last = reply.choices[0].logprobs.content
    tops = [top for top in first.top_logprobs if top.logprob > -1000]
    assert sorted(top.token for top in tops) == ["A", "B", "C"]
    assert sum(math.exp(top.logprob) for top in tops) == pytest.approx(1.0, abs=1e-5)
    assert second.token == "~"
    assert second.logprob == last.logprob == 0.0, "there was no choice"


def test_equal_seeds_give_equal_answers_alone_and_among_others(engine: EngineProcess) -> None:
    def one(number: int) -> str:
        if number % 3 == 2:
            return str(ask(engine, max_tokens=40, seed=number).choices[0].message.content)
        return str(
            ask(engine, structured_outputs={"regex": "[a-z]{30}"}, seed=number).choices[0].message.content
        )

    alone = [one(number) for number in range(12)]
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(one, range(12))) == alone
    assert len(set(alone)) == 12


def test_a_required_call_is_made(engine: EngineProcess) -> None:
    reply = ask(engine, tools=TOOLS, tool_choice="required")
    assert calls_of(reply)
    assert {name for name, _ in calls_of(reply)} <= {"search", "restart"}
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("tool_calls", None)
    assert reply.choices[0].model_extra["adjusted_by"] == ["tool_choice"]


@pytest.mark.parametrize("name", ["search", "restart"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_is_called_once(engine: EngineProcess, name: str, stream: bool) -> None:
    for seed in range(4):
        choice: Any = named(name)[0]
        if not stream:
            ((called, arguments),) = calls_of(ask(engine, tools=TOOLS, tool_choice=choice, seed=seed))
        else:
            parts = list(ask(engine, tools=TOOLS, tool_choice=choice, seed=seed, stream=True))
            (call,) = [call for part in parts for call in part.choices[0].delta.tool_calls or []]
            called, arguments = call.function.name, json.loads(call.function.arguments)
            assert parts[-1].choices[0].finish_reason == "tool_calls"
        assert called == name
        assert set(arguments) == ({"query"} if name == "search" else {"service", "force"})


def test_only_allowed_tools_are_called(engine: EngineProcess) -> None:
    for seed in range(6):
        choice: Any = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": named("restart")},
        }
        made = calls_of(ask(engine, tools=TOOLS, tool_choice=choice, seed=seed))
        assert made
        assert {name for name, _ in made} == {"restart"}


def test_with_allowed_tools_auto_a_call_begun_is_of_an_allowed_tool(caller: EngineProcess) -> None:
    """The policy wants to call `search`, and begins a call."""
    free = ask(caller, tools=TOOLS, temperature=0)
    assert calls_of(free) == [("search", {"query": "disk"})]
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named("restart")}}
    bound = ask(caller, tools=TOOLS, tool_choice=choice, temperature=0)
    ((name, arguments),) = calls_of(bound)
    assert (name, set(arguments)) == ("restart", {"service", "force"})
    assert bound.choices[0].model_extra["adjusted_by"] == ["tool_choice"]


def test_without_parallel_calls_an_answer_ends_with_its_first_call(
    engine: EngineProcess, caller: EngineProcess
) -> None:
    for seed in range(12):
        reply = ask(engine, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(calls_of(reply)) == 1
    several = [len(calls_of(ask(engine, tools=TOOLS, tool_choice="required", seed=s))) for s in range(12)]
    assert max(several) > 1, "with them this policy makes several"
    free = ask(caller, tools=TOOLS, temperature=0)
    single = ask(caller, tools=TOOLS, temperature=0, parallel_tool_calls=False)
    assert calls_of(single) == calls_of(free)
    assert single.usage.completion_tokens == free.usage.completion_tokens - 1, "no token after the call"
    extra = single.choices[0].model_extra
    assert (extra["stop_reason"], extra.get("adjusted_by")) == (None, None), "its tokens are the policy's own"


def test_with_a_form_and_tools_an_answer_is_either(engine: EngineProcess) -> None:
    schema = {"name": "finding", "schema": Finding.model_json_schema()}
    form: Any = {"type": "json_schema", "json_schema": schema}
    mark = str(engine_token("<tool_call>"))
    called = ask(engine, tools=TOOLS, response_format=form, logit_bias={mark: 100}, parallel_tool_calls=False)
    assert len(calls_of(called)) == 1
    answered = ask(engine, tools=TOOLS, response_format=form, logit_bias={mark: -100})
    Finding.model_validate_json(answered.choices[0].message.content)


def json_schema(schema: Any) -> Any:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("response_format", {"response_format": {"type": "xml"}}, "use text, json_object or json_schema"),
    ("response_format", {"response_format": {"type": "json_schema"}}, "schema is missing"),
    ("response_format", json_schema({"type": "foo"}), "Invalid type"),
    ("response_format", json_schema({"type": "object", "properties": 3}), "properties must be an object"),
    ("response_format", json_schema({"not": {"type": "string"}}), "Unimplemented"),
    ("response_format", json_schema({"$ref": "#/nowhere"}), "does not exist"),
    ("response_format", json_schema({"$ref": "#"}), "cannot be"),
    ("response_format", json_schema({"enum": ["x" * 200_000]}), "the limit is 131072"),
    ("response_format", json_schema(nested(150)), "recursion"),
    ("response_format", json_schema(nested(300)), "cannot be used"),
    ("structured_outputs", {"structured_outputs": {"regex": "(a"}}, "regex"),
    ("structured_outputs", {"structured_outputs": {"regex": "(" * 50_000}}, "regex"),
    ("structured_outputs", {"structured_outputs": {"regex": "a{1000}{1000}{1000}"}}, "cannot be"),
    ("structured_outputs", {"structured_outputs": {"grammar": "start: x"}}, "the embedded engine takes json"),
    ("structured_outputs", {"structured_outputs": {"json": {}, "regex": "a"}}, "exactly one"),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "always"}, "use none, auto, required"),
    ("tool_choice", {"tools": TOOLS, "tool_choice": named("reboot")[0]}, "'reboot', which is not in tools"),
    ("tool_choice", {"tool_choice": "required"}, "no tools"),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "custom"}}, "use function or allowed_tools"),
    ("tool_choice", {"tools": [function("f", a={"type": "foo"})], "tool_choice": "required"}, "Invalid type"),
    ("min_tokens", {"min_tokens": 3, "response_format": {"type": "json_object"}}, "cannot be combined"),
    ("ignore_eos", {"ignore_eos": True, "response_format": {"type": "json_object"}}, "cannot be combined"),
]


@pytest.mark.parametrize(("param", "body", "why"), REFUSED)
def test_what_cannot_be_followed_is_refused_by_name_and_the_engine_goes_on(
    engine: EngineProcess, param: str, body: dict[str, Any], why: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        engine.client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=20, temperature=1.0, extra_body=body
        )
    assert refused.value.param == param
    assert why in refused.value.message
    assert len(refused.value.message) < 700
    assert ask(engine, max_tokens=4).usage.completion_tokens > 0


def test_a_form_that_the_vocabulary_cannot_write_is_refused_also_in_a_stream(lacking: EngineProcess) -> None:
    """Found after the first tokens; a neighbour in the batch is not touched."""
    outputs = {"regex": "cause\u4e16"}
    neighbour = ask(lacking, max_tokens=60, seed=9).choices[0].message.content
    with ThreadPoolExecutor(1) as threads:
        beside = threads.submit(ask, lacking, max_tokens=60, seed=9)
        with pytest.raises(openai.BadRequestError) as refused:
            ask(lacking, structured_outputs=outputs)
        assert refused.value.param == "structured_outputs"
        assert beside.result().choices[0].message.content == neighbour
    with pytest.raises(openai.APIError) as streamed:
        list(ask(lacking, structured_outputs=outputs, stream=True))
    assert streamed.value.param == "structured_outputs"


def test_a_grammar_that_takes_too_long_is_refused_and_the_library_is_loaded_when_needed(
    tmp_path: Path,
) -> None:
    with running_engine(POLICY, tmp_path / "log", "--grammar-seconds", "0.001") as engine:
        maps = Path(f"/proc/{engine.pid}/maps")
        assert ask(engine, max_tokens=4).usage.completion_tokens > 0
        assert "llguidance" not in maps.read_text()
        with pytest.raises(openai.BadRequestError) as refused:
            ask(engine, response_format={"type": "json_object"})
        assert refused.value.param == "response_format"
        assert "was not ready after 0.001 s" in refused.value.message
        assert ask(engine, max_tokens=4).usage.completion_tokens > 0
