"""Production says that a new head is worse: it goes back by itself, on the rewards of its sessions."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from tests.e2e.test_watched_head import moves
from tests.platform_recipes import MODEL, addresses, small_stack
from tests.support.waiting import until

from local_stack.stack import Stack
from upcycle.platform import Platform
from upcycle.train import Conversation, TrainingClient

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.study,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
QUESTION: Any = {"role": "user", "content": "which service?"}
SAYS = Conversation([QUESTION, {"role": "assistant", "content": "checkout"}])
SESSIONS_AT_ONCE = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform that has the predecessor of each new head answer half of the conversations."""
    env = {
        "CHECKPOINT_REGISTRY_WATCH_SESSIONS_SHARE": "0.5",
        "CHECKPOINT_REGISTRY_WATCH_SESSIONS_EVERY_S": "1",
    }
    async with small_stack(tmp_path_factory.mktemp("sessions"), extra_env=env) as running:
        yield running


async def judged_session(client: AsyncOpenAI, session_id: str) -> str:
    """The version that answered; its user likes version 0 alone."""
    mine = client.with_options(default_headers={"X-Session-ID": session_id})
    reply: Any = await mine.chat.completions.with_raw_response.create(
        model=MODEL, messages=[QUESTION], max_tokens=4
    )
    version = str(reply.headers["x-upcycle-version"])
    body = {"score": float(version == "0")}
    await client.post(f"/sessions/{session_id}/reward", cast_to=dict[str, Any], body=body)
    return version


async def test_a_head_that_users_like_less_than_its_predecessor_goes_back(stack: Stack) -> None:
    where = addresses(stack)
    trainer = TrainingClient(MODEL, runtime=where)
    seen: Counter[str] = Counter()
    async with (
        Platform(where) as platform,
        AsyncOpenAI(base_url=where.gateway_url, api_key=where.gateway_key(), timeout=60) as client,
    ):
        saved = await trainer.step([SAYS], learning_rate=1e-5, loss_fn="cross_entropy", promote=False)
        await trainer.set_head(saved.checkpoint_id, reason="looks fine")
        number = 0

        async def is_back() -> bool:
            nonlocal number
            ids = [f"user-{number + at}" for at in range(SESSIONS_AT_ONCE)]
            number += SESSIONS_AT_ONCE
            seen.update(await asyncio.gather(*(judged_session(client, one) for one in ids)))
            last = (await moves(platform))[-1]
            return last.actor == "gate" and last.to_checkpoint_id.endswith("-v00000000")

        await until(is_back, "head to go back by its sessions", timeout_s=240)
        reason = (await moves(platform))[-1].reason
        assert "pairs of graded sessions v1 did worse than v0 beside it" in reason, reason
        assert set(seen) == {"0", "1"}

        async def is_served() -> bool:
            nonlocal number
            number += 1
            return await judged_session(client, f"user-{number}") == "0"

        await until(is_served, "the predecessor to be served", timeout_s=30)
        assert [await judged_session(client, f"later-{at}") for at in range(8)] == ["0"] * 8
