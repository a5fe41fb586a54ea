"""Command lines and directories of the engines that a keeper can start."""

import json
import sys
from pathlib import Path

from policy_engine.adapters.engine_process import Command
from policy_engine.adapters.vllm_files import keep_newest, untied
from policy_engine.domain import FailureKind, Policy, VersionRefused
from policy_engine.settings import PolicyEngineSettings
from policy_files import InvalidPolicyDir, TensorInfo, tensors_of_directory

_UNTIED_KEPT = 6


class EmbeddedKind:
    """The embedded engine. It checks weights completely before it swaps them."""

    def __init__(self, settings: PolicyEngineSettings) -> None:
        self._settings = settings

    def command(self, directory: Path, host: str, port: int) -> Command:
        """See EngineKind."""
        settings = self._settings
        argv = [sys.executable, "-m", "policy_engine.embedded.app", "--model", str(directory)]
        argv += ["--served-model-name", settings.model, "--host", host, "--port", str(port)]
        argv += ["--threads", str(settings.threads), "--max-num-seqs", str(settings.max_num_seqs)]
        if settings.max_model_len:
            argv += ["--max-model-len", str(settings.max_model_len)]
        env = {"OMP_NUM_THREADS": str(settings.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        return Command(tuple(argv), env)

    def prepare(self, policy: Policy) -> Path:
        """See EngineKind."""
        return policy.directory


class VllmKind:
    """vLLM's server, in the environment it was installed into."""

    def __init__(self, settings: PolicyEngineSettings) -> None:
        self._settings = settings
        self._is_cpu_build = _is_cpu_build(settings.vllm_python)
        self._served: dict[str, TensorInfo] | None = None

    def command(self, directory: Path, host: str, port: int) -> Command:
        """See EngineKind."""
        settings = self._settings
        argv = [str(settings.vllm_python.absolute()), "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--model", str(directory), "--served-model-name", settings.model]
        argv += ["--host", host, "--port", str(port), "--dtype", settings.vllm_dtype]
        context = settings.max_model_len or _context_of(directory)
        argv += ["--max-model-len", str(context)]
        # processed_logprobs: what was sampled from, which is what the trainer's ratio needs.
        argv += ["--max-num-seqs", str(settings.max_num_seqs), "--logprobs-mode", "processed_logprobs"]
        argv += ["--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        if self._is_cpu_build:
            # 0.32 on a CPU dies of a request with a seed whose prompt is computed in two chunks.
            argv += ["--enforce-eager", "--no-enable-chunked-prefill"]
            argv += ["--max-num-batched-tokens", str(max(context, 8192))]
            env |= {
                "OMP_NUM_THREADS": str(settings.threads),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_CPU_KVCACHE_SPACE": str(settings.vllm_kv_cache_gib),
            }
        return Command((*argv, *settings.vllm_arguments), env)

    def prepare(self, policy: Policy) -> Path:
        """Checked against what is served: a reload that fails half-way leaves vLLM without weights."""
        try:
            tensors = tensors_of_directory(policy.directory)
            if self._served is not None and tensors != self._served:
                odd = sorted(
                    name for name in tensors.keys() | self._served.keys()
                    if tensors.get(name) != self._served.get(name)
                )  # fmt: skip
                raise InvalidPolicyDir(f"tensors differ from the served model's: {', '.join(odd[:5])}")
            self._served = tensors
            if not self._is_cpu_build:
                return policy.directory
            directory = untied(policy.directory)
            keep_newest(policy.directory, _UNTIED_KEPT)
            return directory
        except (InvalidPolicyDir, OSError) as error:
            detail = f"v{policy.target.version}: {error}"
            raise VersionRefused(FailureKind.ENGINE_ERROR, detail, may_pass_later=False) from error


def _is_cpu_build(python: Path) -> bool:
    """Whether the environment holds vLLM's CPU build."""
    return any(python.absolute().parent.parent.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"))


def _context_of(directory: Path) -> int:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return int(config["max_position_embeddings"])
