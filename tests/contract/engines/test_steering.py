"""Pausing, reloading and proving, with requests in flight."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from tests.contract.engines.conftest import MODEL, EngineUnderTest
from tests.services.policy_engine.reference import reference_logprobs
from tests.support.waiting import until

from engine_client import Completion, EngineUnavailable, GenerationAborted, SamplingParams
from policy_engine.domain import VersionRefused

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = [1, 90, 91, 92, 40, 41, 42, 7]
ENDLESS = SamplingParams(max_tokens=400, temperature=1.0, ignore_eos=True)


async def _long(engine: EngineUnderTest, prompt: list[int], enough: asyncio.Event) -> Completion:
    """Long generations, one after the other, until there are enough; the last one. An engine that goes on
    while this process is paused would end a single one."""
    while True:
        made = await engine.client.generate(MODEL, prompt, ENDLESS)
        if enough.is_set():
            return made


async def _running(engine: EngineUnderTest, count: int) -> None:
    async def are_running() -> bool:
        return await engine.metric("vllm:num_requests_running") >= count

    await until(are_running, f"{count} requests at once")


async def test_a_paused_engine_answers_nothing_and_then_everything(engine: EngineUnderTest) -> None:
    enough = asyncio.Event()
    in_flight = asyncio.create_task(_long(engine, PROMPT, enough))
    await _running(engine, 1)
    await engine.client.pause("keep")
    assert await engine.is_paused()
    enough.set()
    late = asyncio.create_task(engine.client.generate(MODEL, PROMPT, SamplingParams(max_tokens=3)))
    await asyncio.sleep(0.4)  # no event: a paused vLLM counts no request that arrives
    assert not late.done()
    assert not in_flight.done()
    await engine.client.resume()
    assert not await engine.is_paused()
    assert len((await asyncio.wait_for(late, 60)).token_ids) <= 3
    made = await asyncio.wait_for(in_flight, 60)
    expected = reference_logprobs(engine.directory(0), [*PROMPT, *made.token_ids])
    assert made.logprobs == pytest.approx(expected[len(PROMPT) - 1 :], abs=2e-3)


async def test_an_aborting_pause_ends_requests_as_aborted_never_as_length(engine: EngineUnderTest) -> None:
    in_flight = asyncio.create_task(_long(engine, PROMPT, asyncio.Event()))

    async def is_aborted() -> bool:
        await engine.client.pause("abort")  # it may meet the moment between two generations
        await engine.client.resume()
        return in_flight.done()

    await _running(engine, 1)
    await until(is_aborted, "a generation to be aborted")
    with pytest.raises(GenerationAborted):
        await in_flight


async def test_a_client_that_leaves_frees_its_place(engine: EngineUnderTest) -> None:
    in_flight = asyncio.create_task(_long(engine, PROMPT, asyncio.Event()))
    await _running(engine, 1)
    in_flight.cancel()

    async def is_free() -> bool:
        return await engine.metric("vllm:num_requests_running") == 0

    await until(is_free, "the place to be free")


async def test_a_reload_serves_the_new_weights_under_their_name(engine: EngineUnderTest) -> None:
    began = time.monotonic()
    serving, paused_s = await engine.protocol().reload(engine.client, engine.serving(0), engine.policy(3))
    assert serving.version == 3
    assert serving.canary_max_abs_diff < 1e-3
    assert 0 < paused_s <= time.monotonic() - began
    assert await engine.client.weight_version() == "3"
    made = await engine.client.generate(MODEL, PROMPT, SamplingParams(max_tokens=20))
    assert [span.version for span in made.version_spans] == [3]
    expected = reference_logprobs(engine.directory(3), [*PROMPT, *made.token_ids])
    assert made.logprobs == pytest.approx(expected[len(PROMPT) - 1 :], abs=1e-3)


@dataclass
class Load:
    """32 clients that ask for completion after completion until they are asked to stop."""

    engine: EngineUnderTest
    made: list[tuple[list[int], Completion]] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)
    stopping: bool = False

    async def has_seen(self, version: int) -> None:
        """Return when 8 completions hold a token of that version."""

        def seen() -> bool:
            found = [one for _, one in self.made if version in [span.version for span in one.version_spans]]
            return len(found) >= 8

        await until(seen, f"completions of v{version}")

    async def client(self, number: int) -> None:
        turn = 0
        while not self.stopping:
            turn += 1
            prompt = [1, 50 + number, 60 + turn % 100, *range(30, 40 + number % 7)]
            params = SamplingParams(max_tokens=48, temperature=1.0)
            try:
                generation = await self.engine.client.generate(MODEL, prompt, params)
            except EngineUnavailable as error:
                self.failed.append(error)
                return
            self.made.append((prompt, generation))


async def test_reloads_under_load_fail_nothing_and_stamp_every_token(engine: EngineUnderTest) -> None:
    load = Load(engine)
    serving = engine.serving(0)
    async with asyncio.TaskGroup() as clients:
        for number in range(32):
            clients.create_task(load.client(number))
        await _running(engine, 16)
        for version in (1, 2):
            await load.has_seen(version - 1)
            serving, _ = await engine.protocol().reload(engine.client, serving, engine.policy(version))
        await load.has_seen(2)
        load.stopping = True
    assert not load.failed
    seen = {span.version for _, made in load.made for span in made.version_spans}
    assert seen == {0, 1, 2}
    mixed = [(prompt, made) for prompt, made in load.made if len(made.version_spans) > 1]
    assert len(mixed) >= 16, "requests in flight must go on across a reload"
    for prompt, made in [*mixed[:24], *load.made[-8:]]:
        _check_every_token(engine, prompt, made)


def _check_every_token(engine: EngineUnderTest, prompt: list[int], made: Completion) -> None:
    """Each token's logprob is that of the version it is stamped with, given everything before it."""
    ids = [*prompt, *made.token_ids]
    for span in made.version_spans:
        expected = reference_logprobs(engine.directory(span.version), ids)[len(prompt) - 1 :]
        found = made.logprobs[span.start : span.end]
        assert found == pytest.approx(expected[span.start : span.end], abs=2e-3), span


async def test_without_recomputing_requests_keep_their_old_keys_and_values(engine: EngineUnderTest) -> None:
    load = Load(engine)
    protocol = engine.protocol(recompute_running=False)
    async with asyncio.TaskGroup() as clients:
        for number in range(16):
            clients.create_task(load.client(number))
        await _running(engine, 8)
        await protocol.reload(engine.client, engine.serving(0), engine.policy(1))
        await load.has_seen(1)
        load.stopping = True
    prompt, made = next(one for one in load.made if len(one[1].version_spans) == 2)
    first, second = made.version_spans
    ids = [*prompt, *made.token_ids]
    before = reference_logprobs(engine.directory(0), ids)[len(prompt) - 1 :]
    assert made.logprobs[: first.end] == pytest.approx(before[: first.end], abs=2e-3)
    assert (first.version, second.version) == (0, 1)
    fresh = await engine.client.generate(MODEL, ids, SamplingParams(max_tokens=4))
    after = reference_logprobs(engine.directory(1), [*ids, *fresh.token_ids])[len(ids) - 1 :]
    assert fresh.logprobs == pytest.approx(after, abs=1e-3), (
        "a later turn must not reuse mixed keys and values"
    )


async def test_a_canary_that_disagrees_brings_the_old_weights_back(engine: EngineUnderTest) -> None:
    lying = engine.policy(4, canary_of=engine.directory(5))
    with pytest.raises(VersionRefused, match="canary_mismatch"):
        await engine.protocol().reload(engine.client, engine.serving(0), lying)
    assert await engine.client.weight_version() == "0"
    assert not await engine.is_paused()
    ids = [1, *range(30, 70)]
    scored = await engine.client.prompt_logprobs(MODEL, ids)
    assert scored == pytest.approx(reference_logprobs(engine.directory(0), ids), abs=1e-3)


async def test_weights_that_were_not_loaded_are_noticed(engine: EngineUnderTest) -> None:
    """A reload that does nothing: the policy claims other files, the directory holds the served ones."""
    same = engine.policy(0)
    pretender = type(same)(
        target=type(same.target)(6, "digest-6", same.target.manifest),
        directory=same.directory,
        canary=same.canary,
        dtype=same.dtype,
        weights_digest="other files",
    )
    with pytest.raises(VersionRefused, match="kept its old weights"):
        await engine.protocol().reload(engine.client, engine.serving(0), pretender)
    assert await engine.client.weight_version() == "0"


async def test_a_directory_without_weights_is_refused_and_the_engine_serves_on(
    engine: EngineUnderTest,
) -> None:
    policy = engine.policy(0)
    folder = engine.folder / "policies" / "empty"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text((policy.directory / "config.json").read_text())
    broken = type(policy)(policy.target, folder, policy.canary, policy.dtype, "none")
    with pytest.raises(VersionRefused):
        await engine.protocol().reload(engine.client, engine.serving(0), broken)
    made = await engine.client.generate(MODEL, PROMPT, SamplingParams(max_tokens=4))
    assert len(made.token_ids) > 0
