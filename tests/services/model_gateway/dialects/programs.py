"""Programs as the users of other clients write them. Each prints one JSON object.

They get the gateway's origin and a key, and a model that answers everything with one call of `search`.
"""

from typing import Final

_BEGIN: Final = """
import json, os
origin, key, model = os.environ["GATEWAY"], os.environ["KEY"], os.environ["MODEL"]
said = {}
"""
_END: Final = """
print(json.dumps(said))
"""

OPENAI_2: Final = """
from openai import OpenAI

client = OpenAI(base_url=f"{origin}/v1", api_key=key, max_retries=0)
function = {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}
ask = [{"role": "user", "content": "why?"}]
tools = [{"type": "function", "function": function}]
chat = client.chat.completions.create(model=model, messages=ask, tools=tools, max_tokens=60)
said["chat"] = chat.choices[0].message.tool_calls[0].function.arguments
with client.chat.completions.stream(model=model, messages=ask, tools=tools, max_tokens=60) as stream:
    said["chat_stream"] = stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments
flat = [{"type": "function", **function}]
response = client.responses.create(model=model, input="why?", tools=flat, max_output_tokens=60)
said["responses"] = [one.arguments for one in response.output if one.type == "function_call"][0]
with client.responses.stream(model=model, input="why?", tools=flat, max_output_tokens=60) as stream:
    final = stream.get_final_response()
said["responses_stream"] = [one.arguments for one in final.output if one.type == "function_call"][0]
"""

AGENTS_SDK: Final = """
import asyncio

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from agents import set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # it would be sent to OpenAI
client = AsyncOpenAI(base_url=f"{origin}/v1", api_key=key, max_retries=0)


@function_tool
def search(query: str) -> str:
    "Search the logs."
    return json.dumps({"query": query})


def agent(kind):
    served = kind(model=model, openai_client=client)
    return Agent(name="on-call", instructions="Be brief.", tools=[search], model=served,
                 tool_use_behavior="stop_on_first_tool")


async def main():
    for name, kind in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
        said[name] = (await Runner.run(agent(kind), "why?")).final_output
        streamed = Runner.run_streamed(agent(kind), "why?")
        async for _ in streamed.stream_events():
            pass
        said[f"{name}_stream"] = streamed.final_output
    # Its result goes back, and the next turn is asked for, until the limit.
    served = OpenAIResponsesModel(model=model, openai_client=client)
    turns = Agent(name="on-call", tools=[search], model=served)
    try:
        await Runner.run(turns, "why?", max_turns=3)
    except Exception as error:
        said["turns"] = type(error).__name__


asyncio.run(main())
"""

LITELLM: Final = """
import litellm

ask = [{"role": "user", "content": "why?"}]
function = {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}
tools = [{"type": "function", "function": function}]
for name, provider, base in (("chat", "openai", f"{origin}/v1"), ("messages", "anthropic", origin)):
    asked = dict(model=f"{provider}/{model}", api_base=base, api_key=key, messages=ask, tools=tools)
    asked["max_tokens"] = 60
    said[name] = litellm.completion(**asked).choices[0].message.tool_calls[0].function.arguments
    chunks = list(litellm.completion(**asked, stream=True))
    built = litellm.stream_chunk_builder(chunks, messages=ask)
    said[f"{name}_stream"] = built.choices[0].message.tool_calls[0].function.arguments
response = litellm.responses(model=f"openai/{model}", api_base=f"{origin}/v1", api_key=key, input="why?",
                             tools=[{"type": "function", **function}], max_output_tokens=60)
calls = [one if isinstance(one, dict) else one.model_dump() for one in response.output]
said["responses"] = [one["arguments"] for one in calls if one["type"] == "function_call"][0]
try:
    litellm.completion(model=f"openai/{model}", api_base=f"{origin}/v1", api_key=key,
                       messages=[{"role": "user", "content": "why " * 900}])
except litellm.ContextWindowExceededError:
    said["too_long"] = "ContextWindowExceededError"
"""

LANGCHAIN: Final = """
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def search(query: str) -> str:
    "Search the logs."
    return query


openai = dict(model=model, base_url=f"{origin}/v1", api_key=key, max_retries=0, max_tokens=60)
models = {
    "chat": ChatOpenAI(**openai),
    "responses": ChatOpenAI(**openai, use_responses_api=True),
    "messages": ChatAnthropic(model=model, base_url=origin, api_key=key, max_retries=0, max_tokens=60),
}
for name, one in models.items():
    bound = one.bind_tools([search])
    first = bound.invoke("why?")
    (call,) = first.tool_calls
    said[name] = json.dumps(call["args"])
    whole = None
    for chunk in bound.stream("why?"):
        whole = chunk if whole is None else whole + chunk
    said[f"{name}_stream"] = json.dumps(whole.tool_calls[0]["args"])
    result = ToolMessage("disk full", tool_call_id=call["id"])
    said[f"{name}_result"] = len(bound.invoke([HumanMessage("why?"), first, result]).tool_calls)
"""

PROGRAMS: Final = {
    "openai": (("openai>=2,<3",), OPENAI_2),
    "openai-agents": (("openai-agents",), AGENTS_SDK),
    "litellm": (("litellm",), LITELLM),
    "langchain": (("langchain-openai", "langchain-anthropic"), LANGCHAIN),
}
"""By name: what to install, and the program."""


def whole(program: str) -> str:
    """With its begin and its end."""
    return _BEGIN + program + _END
