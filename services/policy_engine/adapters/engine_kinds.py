"""Command lines and directories of the engines that an engine supervisor can start."""

import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from policy_engine.adapters.engine_process import EngineCommand
from policy_engine.adapters.in_vllm import upcycle_vllm_wall as wall
from policy_engine.adapters.vllm_files import keep_newest, untied
from policy_engine.domain import FailureKind, Policy, VersionRefused
from policy_files import AdapterInfo, InvalidPolicyDir, TensorInfo, adapter_of, tensors_of_directory

_UNTIED_KEPT = 6
_WALL: Final = f"{wall.__name__.rpartition('.')[2]}.{wall.VllmWall.__name__}"
"""As vLLM imports it."""
_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""That vLLM makes room for."""
_WALL_FOLDER: Final = Path(wall.__file__).parent


@dataclass(frozen=True, slots=True)
class EngineCertificate:
    """Files in PEM form that an engine shows. clients_ca: callers must show a certificate that one of these
    signed."""

    certificate: Path
    key: Path
    clients_ca: Path | None = None

    def arguments(self) -> list[str]:
        """As vLLM calls them, and the embedded engine too."""
        argv = ["--ssl-certfile", str(self.certificate.absolute()), "--ssl-keyfile", str(self.key.absolute())]
        if self.clients_ca is not None:
            argv += ["--ssl-ca-certs", str(self.clients_ca.absolute())]
        return argv


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How engines are started; PolicyEngineSettings says what each means."""

    model: str
    device: str = "cpu"
    threads: int = 1
    max_num_seqs: int = 128
    max_model_len: int = 0
    max_held: int = 4
    vllm_python: Path = Path(".venv-vllm/bin/python")
    vllm_dtype: str = "float32"
    vllm_kv_cache_gib: int = 1
    vllm_lora_rank: int = 0
    vllm_arguments: tuple[str, ...] = ()
    vllm_body_bytes: int = wall.Limits.body_bytes
    certificate: EngineCertificate | None = None
    """None: the engine speaks http."""

    @property
    def scheme(self) -> str:
        """Of its address."""
        return "http" if self.certificate is None else "https"


class EmbeddedKind:
    """The embedded engine. It checks weights completely before it swaps them."""

    admin_key_variable = "EMBEDDED_ENGINE_ADMIN_KEY"
    keeps_weights = False

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
        if options.certificate is not None:
            argv += options.certificate.arguments()
        env = {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        return EngineCommand(tuple(argv), env, options.scheme)

    def prepare(self, policy: Policy) -> Path:
        """The fetched directory itself."""
        return policy.directory

    def prepare_held(self, policy: Policy, serving: Policy) -> Path:
        """The same: it holds whole weights."""
        return policy.directory


class VllmKind:
    """vLLM's server, in the environment it was installed into, behind the wall of `in_vllm`."""

    admin_key_variable = wall.KEY_VARIABLE

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._is_cpu_build = _is_cpu_build(options.vllm_python)
        self.keeps_weights = options.vllm_lora_rank > 0
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
        argv += _vllm_tls(options.certificate)
        env: dict[str, str] = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        env |= _walled(options.vllm_body_bytes)
        argv += self._for_adapters(env)
        if self._is_cpu_build:
            # 0.32 on a CPU dies of a request with a seed whose prompt is computed in two chunks.
            argv += ["--enforce-eager", "--no-enable-chunked-prefill"]
            argv += ["--max-num-batched-tokens", str(max(context, 8192))]
            env |= {
                "OMP_NUM_THREADS": str(options.threads),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_CPU_KVCACHE_SPACE": str(options.vllm_kv_cache_gib),
            }
        # The last one named is the outermost, before what the operator adds.
        return EngineCommand((*argv, *options.vllm_arguments, "--middleware", _WALL), env, options.scheme)

    def _for_adapters(self, env: dict[str, str]) -> list[str]:
        """Room for as many as it may hold at once, so that none is thrown out for another."""
        options = self._options
        if not options.vllm_lora_rank:
            return []
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        rank = next(rank for rank in _LORA_RANKS if rank >= options.vllm_lora_rank)
        count = str(max(options.max_held, 1))
        return ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", count, "--max-cpu-loras", count]

    def prepare_held(self, policy: Policy, serving: Policy) -> Path:
        """The folder of its adapter, where that is added to exactly the weights which vLLM serves."""
        try:
            adapter = adapter_of(policy.directory)
        except InvalidPolicyDir as error:
            raise _cannot_hold(policy, str(error)) from error
        if adapter is None:
            raise _cannot_hold(policy, f"it has no adapter, and vLLM holds adapters only: {_ELSEWHERE}")
        self._check_fits(policy, adapter, serving)
        return adapter.folder

    def _check_fits(self, policy: Policy, adapter: AdapterInfo, serving: Policy) -> None:
        if adapter.base_digest != serving.target.digest:
            raise _cannot_hold(
                policy,
                f"its adapter is added to the weights {adapter.base_digest[:12]}, and this vLLM serves "
                f"v{serving.target.version} ({serving.target.digest[:12]}): {_ELSEWHERE}",
            )
        if adapter.rank > self._options.vllm_lora_rank:
            raise _cannot_hold(
                policy,
                f"its adapter has rank {adapter.rank}; raise POLICY_ENGINE_VLLM_LORA_RANK="
                f"{self._options.vllm_lora_rank}",
            )

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


_ELSEWHERE: Final = (
    "hold it on an embedded engine or on a vLLM that serves its base, or evaluate it on channel candidate"
)


def _cannot_hold(policy: Policy, why: str) -> VersionRefused:
    return VersionRefused(FailureKind.ENGINE_ERROR, f"v{policy.target.version}: {why}", may_pass_later=False)


def _vllm_tls(certificate: EngineCertificate | None) -> list[str]:
    """vLLM asks callers for a certificate, and reads replaced files, only where it is told to."""
    if certificate is None:
        return []
    asked = [] if certificate.clients_ca is None else ["--ssl-cert-reqs", str(int(ssl.CERT_REQUIRED))]
    return [*certificate.arguments(), "--enable-ssl-refresh", *asked]


def _walled(body_bytes: int) -> Mapping[str, str]:
    """Variables by which vLLM finds the wall and its limits. A caller's word on whom it speaks for counts
    for nothing: the limit of one address is the connection's."""
    path = os.pathsep.join(filter(None, (str(_WALL_FOLDER), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, wall.BODY_BYTES_VARIABLE: str(body_bytes), "FORWARDED_ALLOW_IPS": ""}


def _is_cpu_build(python: Path) -> bool:
    """Whether the environment holds vLLM's CPU build."""
    return any(python.absolute().parent.parent.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"))


def _context_of(directory: Path) -> int:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return int(config["max_position_embeddings"])
