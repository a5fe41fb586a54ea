"""`upcycle docs mcp`: a real MCP client finds and reads pages; an installed wheel holds them."""

import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from tests.packaging.venvs import ROOT, build_wheel

from upcycle.cli.doc_pages import (
    SHIPPED,
    DocPages,
    PagesNotFound,
    UnknownPage,
    load_pages,
    pages_folder,
    sections,
)

SERVER = StdioServerParameters(
    command=sys.executable,
    args=["-c", "from upcycle.cli.main import main; main()", "docs", "mcp"],
    env=dict(os.environ),
)
PAGES = DocPages(
    {
        "do/fly": "# Fly\n\nTake wings.\n\n## Land\n\nSlow down, then `set_flaps`.\n",
        "do/swim": "# Swim\n\nTake water.\n\n```sh\n# Dive is no heading\n```\n",
    }
)


def text_of(result: Any) -> str:
    return "".join(part.text for part in result.content)


async def test_a_client_searches_and_reads() -> None:
    async with Client(SERVER, read_timeout_seconds=60) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "read"}
        assert tools["search"].input_schema["required"] == ["query"]
        found = text_of(await client.call_tool("search", {"query": "add a token loss"}))
        assert found.startswith("do/add-a-loss > ")
        page = text_of(await client.call_tool("read", {"page": "do/add-a-loss"}))
        assert page == (ROOT / "docs/do/add-a-loss.md").read_text()
        part = text_of(await client.call_tool("read", {"page": "understand/glossary", "section": "rewards"}))
        assert part.startswith("## Rewards\n")
        assert "## Learning" not in part


async def test_a_page_that_does_not_exist_is_an_error_with_the_nearest_name() -> None:
    async with Client(SERVER, read_timeout_seconds=60) as client:
        refused = await client.call_tool("read", {"page": "do/add-a-los"})
        assert refused.is_error
        assert "do/add-a-loss" in text_of(refused)
        nothing = await client.call_tool("search", {"query": "zyxwv"})
        assert not nothing.is_error
        assert "Nothing fits" in text_of(nothing)
        assert (await client.call_tool("search", {"query": ""})).is_error


async def test_an_error_does_not_repeat_a_name_that_is_too_long() -> None:
    async with Client(SERVER, read_timeout_seconds=60) as client:
        for asked in ({"page": "x" * 401}, {"page": "do/add-a-loss", "section": "x" * 100_000}):
            refused = await client.call_tool("read", asked)
            assert refused.is_error
            assert "at most 400 characters" in text_of(refused)
            assert len(text_of(refused)) < 1000


def test_the_best_section_comes_first_and_its_excerpt_begins_where_it_fits() -> None:
    (first, *_) = PAGES.search("flaps")
    assert (first.page, first.section) == ("do/fly", "Land")
    assert first.excerpt == "Slow down, then `set_flaps`."
    assert PAGES.search("take water")[0].page == "do/swim"
    assert PAGES.search("submarine") == []


def test_a_hash_in_a_code_block_is_no_heading() -> None:
    assert [one.heading for one in sections("p", PAGES.read("do/swim"))] == ["Swim"]


def test_a_page_is_read_with_and_without_its_ending_and_other_names_are_refused() -> None:
    assert PAGES.read("do/fly.md") == PAGES.read("/do/fly")
    assert PAGES.read("do/fly", "land") == "## Land\n\nSlow down, then `set_flaps`."
    with pytest.raises(UnknownPage, match="do/fly"):
        PAGES.read("do/flyy")
    with pytest.raises(UnknownPage, match="Land"):
        PAGES.read("do/fly", "Lnd")
    with pytest.raises(UnknownPage):
        PAGES.read("../README")


def test_an_installation_without_pages_says_so(tmp_path: Path) -> None:
    with pytest.raises(PagesNotFound, match="install the wheel"):
        pages_folder(tmp_path / "site-packages" / "upcycle")


def test_the_wheel_ships_every_page_and_no_program(tmp_path: Path) -> None:
    wheel = zipfile.ZipFile(build_wheel("upcycle", tmp_path))
    shipped = {name for name in wheel.namelist() if name.startswith(f"upcycle/{SHIPPED}/")}
    wanted = {
        f"upcycle/{SHIPPED}/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md")
    }
    assert wanted <= shipped
    assert not [name for name in shipped if name.endswith(".py")]
    installed = tmp_path / "site-packages"
    wheel.extractall(installed)
    assert load_pages(pages_folder(installed / "upcycle")) == load_pages(ROOT / "docs")
    shutil.rmtree(installed)
