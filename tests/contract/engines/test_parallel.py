"""vLLM over several processes: shards of one model (tensor parallel), or copies of it (data parallel)."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.contract.engines.conftest import MODEL, EngineUnderTest, engine_on
from tests.services.policy_engine.reference import reference_logprobs
from tests.support.waiting import until

from engine_client import SamplingParams

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.vllm, pytest.mark.timeout(1800)]

PROMPTS = [[1, *range(30, 40 + number)] for number in range(8)]
SAMPLING = SamplingParams(max_tokens=12)


@pytest.mark.parametrize("size", ["--tensor-parallel-size", "--data-parallel-size"])
async def test_every_process_samples_and_reloads(size: str, tmp_path: Path) -> None:
    engine = await engine_on("vllm", tmp_path, vllm_arguments=(size, "2"))
    group = os.getpgid(engine.host.pid)
    try:
        await _samples(engine, 0)
        serving, _ = await engine.protocol().reload(engine.client, engine.serving(0), engine.policy(1))
        assert serving.version == 1
        await _samples(engine, 1)
        assert (await engine.client.load()).num_tokens >= 2 * len(PROMPTS) * SAMPLING.max_tokens
    finally:
        await engine.host.stop()
    await until(lambda: not _processes_of(group), "every process of the engine to end")


async def _samples(engine: EngineUnderTest, version: int) -> None:
    """All prompts at once: each token by the weights of the version, under its name."""
    made = await asyncio.gather(*(engine.client.generate(MODEL, prompt, SAMPLING) for prompt in PROMPTS))
    for prompt, one in zip(PROMPTS, made, strict=True):
        assert [span.version for span in one.version_spans] == [version]
        expected = reference_logprobs(engine.directory(version), [*prompt, *one.token_ids])
        assert one.logprobs == pytest.approx(expected[len(prompt) - 1 :], abs=2e-3)


def _processes_of(group: int) -> list[int]:
    """Those that live in a process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if not is_dead and os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
        except (OSError, ProcessLookupError):
            continue
    return found
