"""Agents of others that see: a screenshot goes from a tool to the server's own form, and to a file.

The stand-in has eyes and nothing else: it reads the width out of the picture's bytes, which no text tells.
"""

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_servers import (
    KEY,
    MODEL,
    Asked,
    Said,
    Turn,
    anthropic_shaped,
    gemini_shaped,
    openai_shaped,
    serving,
)

from upcycle import Environment, Image, Taskset, create_agent
from upcycle.cli.main import run as upcycle
from upcycle.environment.tools import result_of
from upcycle.errors import ToolFailed
from upcycle.harness.context import compressed
from upcycle.images import MAX_IMAGE_BYTES, images_in, parts_of, text_of_content

ENVIRONMENT = """
import struct, zlib
from upcycle import Environment, Image

env = Environment("screen")

def png(width):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, 1, 8, 0, 0, 0, 0)
    return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(width + 1)))

SCREEN = {}

@env.tool()
def screenshot() -> list:
    \"\"\"What is on the screen.\"\"\"
    return ["the screen:", Image(png(SCREEN["width"]))]

@env.scenario()
async def measure(width: int, at_once: bool = False):
    SCREEN["width"] = width
    ask = "How wide is the screen?"
    answer = yield [{"role": "user", "content": [ask, Image(png(width))] if at_once else ask}]
    yield float(answer == str(width))
"""
TASKS = """
from env import measure
from upcycle import Taskset

wide, shown = measure.task(slug="wide", width=321), measure.task(slug="shown", width=77, at_once=True)
TASKS = Taskset("screens", [wide, shown], "unassigned")
"""


def png(width: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(width + 1)))


def images_shown(body: Any) -> Iterator[bytes]:
    """Every picture in a request, wherever that API has it."""
    if isinstance(body, dict):
        if body.get("type") == "image_url":
            yield base64.b64decode(body["image_url"]["url"].partition(",")[2])
        elif body.get("type") == "base64":
            assert body["media_type"] == "image/png"
            yield base64.b64decode(body["data"])
        elif "inlineData" in body:
            yield base64.b64decode(body["inlineData"]["data"])
        else:
            for value in body.values():
                yield from images_shown(value)
    elif isinstance(body, list):
        for value in body:
            yield from images_shown(value)


def with_eyes(shape: Callable[[Any], Callable[[Asked], Said]]) -> Callable[[Asked], Said]:
    """Looks at the screen where it sees none, then says how wide the last picture is."""

    def answer(asked: Asked) -> Said:
        seen = [struct.unpack(">I", one[16:20])[0] for one in images_shown(asked.body)]
        return shape(lambda _: Turn(str(seen[-1])) if seen else Turn("", ("screenshot", {})))(asked)

    return answer


SHAPES = {
    "claude": (anthropic_shaped, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", ""),
    "openai": (openai_shaped, "OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
    "gemini": (gemini_shaped, "GEMINI_BASE_URL", "GEMINI_API_KEY", ""),
}


@pytest.fixture
def screens(shop: Path) -> Taskset:
    (shop / "env.py").write_text(ENVIRONMENT)
    (shop / "tasks.py").write_text(TASKS)
    return Taskset.from_file(shop / "tasks.py")


@pytest.mark.parametrize("name", SHAPES)
async def test_what_a_tool_and_a_prompt_show_is_seen_in_the_form_of_each_server(
    screens: Taskset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, url_variable, key_variable, suffix = SHAPES[name]
    monkeypatch.setenv(key_variable, KEY)
    with serving(with_eyes(shape)) as server:
        monkeypatch.setenv(url_variable, f"{server.url}{suffix}")
        runs = await screens.run(create_agent(f"{name}#{MODEL}"))
    assert [(run.task_slug, run.reward) for run in runs] == [("wide", 1.0), ("shown", 1.0)]
    assert runs[0].trajectory is not None
    (call,) = runs[0].trajectory.tool_calls
    screen_image = Image(png(321))
    assert call.result == f"the screen:\n{screen_image}"  # what a grader and a person read
    assert screen_image.sha256[:12] in call.result


def test_images_are_files_beside_the_lines_that_name_them(
    screens: Taskset, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (shop / "kept").mkdir()
    with serving(with_eyes(openai_shaped)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        status = upcycle(["eval", "tasks.py", f"openai#{MODEL}", "--trajectories", "kept/out.jsonl"])
    assert status == 0, capsys.readouterr().err
    written = (shop / "kept" / "out.jsonl").read_text()
    assert "base64" not in written
    lines = sorted(map(json.loads, written.splitlines()), key=lambda line: line["task"]["slug"])
    for line, width in zip(lines, (77, 321), strict=True):
        (part,) = [
            part
            for message in line["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        assert (shop / "kept" / part["image_url"]["url"]).read_bytes() == png(width)


@pytest.mark.parametrize(
    ("data", "media_type", "says"),
    [
        (b"", "", "0 bytes were given as an image, and are no image"),
        (b"<svg/>", "", "are no image"),
        (png(1), "image/jpeg", "given as image/jpeg, and are image/png"),
        (png(1) + bytes(MAX_IMAGE_BYTES), "", f"limit {MAX_IMAGE_BYTES}"),
    ],
)
def test_what_is_no_image_is_refused_where_it_is_made(data: bytes, media_type: str, says: str) -> None:
    with pytest.raises(ToolFailed, match=says):
        Image(data, media_type)


def test_a_tool_returns_texts_and_images_and_nothing_beside_them() -> None:
    one, large = Image(png(1)), Image(png(2) + bytes(MAX_IMAGE_BYTES - 1000))
    result = result_of(["a", one, "b"], "look")
    assert (result.text, result.images) == (f"a\n{one}\nb", (one,))
    assert result_of(["a", "b"], "look").text == '["a", "b"]'
    with pytest.raises(ToolFailed, match="look: images stand beside other values"):
        result_of([one, {"x": 1}], "look")
    with pytest.raises(ToolFailed, match="3 images have"):
        result_of([large, large, large], "look")


def test_an_older_screenshot_is_what_a_full_context_leaves_out() -> None:
    shown = {"role": "tool", "content": parts_of("screen", [Image(png(5))])}
    call = {"role": "assistant", "content": ""}
    shorter = compressed([call, shown, call, shown])
    assert shorter is not None
    assert [images_in(one["content"]) != [] for one in shorter] == [False, False, False, True]
    assert text_of_content(shown["content"]).startswith("screen\n[image/png of ")


async def test_an_image_is_served_over_mcp_and_taken_from_it() -> None:
    from mcp import Client

    from upcycle.environment.mcp import _result_of

    env = Environment("screen")

    @env.tool()
    def screenshot() -> Image:
        """What is on the screen."""
        return Image(png(9))

    async with Client(env.serve_mcp()) as client:
        result = await client.call_tool("screenshot", {})
    assert [part.type for part in result.content] == ["text", "image"]
    assert _result_of(result, "screenshot").images == (Image(png(9)),)
