"""Command lines and directories of the engines that an engine supervisor can start."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from policy_engine.adapters.engine_process import EngineCommand
from policy_engine.adapters.vllm_files import keep_newest, untied
from policy_engine.domain import FailureKind, Policy, VersionRefused
from policy_files import InvalidPolicyDir, TensorInfo, tensors_of_directory

_UNTIED_KEPT = 6


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How engines are started; PolicyEngineSettings says what each means."""

    model: str
    device: str = "cpu"
    threads: int = 1
    max_num_seqs: int = 128
    max_model_len: int = 0
    vllm_python: Path = Path(".venv-vllm/bin/python")
    vllm_dtype: str = "float32"
    vllm_kv_cache_gib: int = 1
    vllm_arguments: tuple[str, ...] = ()


class EmbeddedKind:
    """The embedded engine. It checks weights completely before it swaps them."""

    admin_key_variable = "EMBEDDED_ENGINE_ADMIN_KEY"

    def __init__(self, options: EngineOptions) -> None:
        self._options = options

    def command(self, directory: Path, host: str, port: int) -> EngineCommand:
        """How to start it on a prepared directory."""
        options = self._options
        argv = [sys.executable, "-m", "embedded_engine", "--model", str(directory)]
        argv += ["--served-model-name", options.model, "--host", host, "--port", str(port)]
        argv += ["--threads", str(options.threads), "--max-num-seqs", str(options.max_num_seqs)]
        if options.max_model_len:
            argv += ["--max-model-len", str(options.max_model_len)]
        if options.device != "cpu":
            argv += ["--device", options.device]
        env = {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        return EngineCommand(tuple(argv), env)

    def prepare(self, policy: Policy) -> Path:
        """The fetched directory itself."""
        return policy.directory


class VllmKind:
    """vLLM's server, in the environment it was installed into."""

    admin_key_variable = ""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._is_cpu_build = _is_cpu_build(options.vllm_python)
        self._served: dict[str, TensorInfo] | None = None

    def command(self, directory: Path, host: str, port: int) -> EngineCommand:
        """How to start it on a prepared directory."""
        options = self._options
        argv = [str(options.vllm_python.absolute()), "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--model", str(directory), "--served-model-name", options.model]
        argv += ["--host", host, "--port", str(port), "--dtype", options.vllm_dtype]
        context = options.max_model_len or _context_of(directory)
        argv += ["--max-model-len", str(context)]
        # processed_logprobs: what was sampled from, which is what the trainer's ratio needs.
        argv += ["--max-num-seqs", str(options.max_num_seqs), "--logprobs-mode", "processed_logprobs"]
        argv += ["--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        if self._is_cpu_build:
            # 0.32 on a CPU dies of a request with a seed whose prompt is computed in two chunks.
            argv += ["--enforce-eager", "--no-enable-chunked-prefill"]
            argv += ["--max-num-batched-tokens", str(max(context, 8192))]
            env |= {
                "OMP_NUM_THREADS": str(options.threads),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_CPU_KVCACHE_SPACE": str(options.vllm_kv_cache_gib),
            }
        return EngineCommand((*argv, *options.vllm_arguments), env)

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
