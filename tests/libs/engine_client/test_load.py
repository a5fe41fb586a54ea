"""How busy an engine says it is."""

from aiohttp import web
from tests.libs.engine_client.engine_double import scripted

from engine_client import EngineClient, EngineLoad, parse_load

METRICS = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+06
vllm:generation_tokens_total{engine="1",model_name="m"} 17.0
vllm:odd nothing
python_info 1.0
"""


def test_the_load_is_that_of_all_engines_behind_the_port() -> None:
    assert parse_load(METRICS) == EngineLoad(7, 2, 0.75, 5, 1_000_017)


def test_what_an_engine_does_not_say_is_nothing() -> None:
    load = parse_load("")
    assert load == EngineLoad()
    assert load.is_idle
    assert not parse_load("vllm:num_requests_waiting 1.0\n").is_idle


async def test_a_client_asks_for_load_pauses_and_one_token() -> None:
    answers = {
        "/metrics": lambda _: web.Response(text=METRICS),
        "/is_paused": lambda _: {"is_paused": True},
        "/v1/models": lambda _: {"data": [{"id": "m"}]},
        "/v1/completions": lambda _: {},
    }
    async with scripted(answers) as (url, seen), EngineClient(url) as client:
        assert (await client.load()).num_running == 7
        assert await client.is_paused()
        await client.ask_for_a_token(timeout_s=5.0)
    assert seen[-1] == ("/v1/completions", {"model": "m", "prompt": [1], "max_tokens": 1, "temperature": 0.0})
