"""One real platform for all end-to-end tests: real processes, real bus, real store, a real policy."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.platform_recipes import addresses, register_incident, small_stack
from tests.support.judges import judging
from tests.support.model_servers import KEY, ModelServerDouble, Turn, anthropic_shaped, openai_shaped, serving
from tests.support.providers import providers_file

from local_stack.stack import Stack
from upcycle.platform import Platform


@pytest.fixture(scope="session")
def judge() -> Iterator[ModelServerDouble]:
    """A model that judges: of two criteria it finds the first met."""
    with serving(judging(True, False)) as server:
        yield server


@pytest.fixture(scope="session")
def providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The gateway's file of providers: of each vendor, and of one that is none, a local server with one
    model."""

    def says_pool(results: list[str]) -> Turn:
        return Turn("pool")

    with serving(openai_shaped(says_pool)) as chats, serving(anthropic_shaped(says_pool)) as messages:
        servers = {name: (chats.url, "openai") for name in ("openai", "google", "acme")}
        servers["anthropic"] = (messages.url, "anthropic")
        yield providers_file(tmp_path_factory.mktemp("providers"), servers)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(
    tmp_path_factory: pytest.TempPathFactory, judge: ModelServerDouble, providers: Path
) -> AsyncIterator[Stack]:
    """All processes, ready, with the incident policy and tasksets, a judge and models of others."""
    asks = {"URL": f"{judge.url}/v1", "MODEL": "wise-1", "KEY": KEY}
    env = {f"REWARD_GRADER_JUDGE_{name}": value for name, value in asks.items()}
    env["MODEL_GATEWAY_PROVIDERS_FILE"] = str(providers)
    async with small_stack(tmp_path_factory.mktemp("stack"), extra_env=env) as running:
        await register_incident(running)
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    """A client of the stack's public APIs."""
    async with Platform(addresses(stack)) as client:
        yield client
