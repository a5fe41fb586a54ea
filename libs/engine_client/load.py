"""How busy an engine is, as its /metrics say under vLLM's names."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_CACHE: Final = "vllm:kv_cache_usage_perc"
_PREEMPTIONS: Final = "vllm:num_preemptions_total"
_TOKENS: Final = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One look. With data parallel engines behind one port: of all of them together."""

    num_running: int = 0
    num_waiting: int = 0
    """Requests without a place in the batch."""
    cache_used: float = 0.0
    """Share of the memory for keys and values, of the fullest engine; 0 where the engine does not say."""
    num_preemptions: int = 0
    """Requests that gave up their keys and values for others, since its start."""
    num_tokens: int = 0
    """Of prompts and completions, since its start."""

    @property
    def is_idle(self) -> bool:
        """No request is there."""
        return not self.num_running and not self.num_waiting


def parse_load(text: str) -> EngineLoad:
    """Of a /metrics in Prometheus' text form; what is missing there is 0."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        if name.startswith("vllm:"):
            try:
                values[name].append(float(line.rpartition(" ")[2]))
            except ValueError:
                continue
    return EngineLoad(
        num_running=int(sum(values[_RUNNING])),
        num_waiting=int(sum(values[_WAITING])),
        cache_used=max(values[_CACHE], default=0.0),
        num_preemptions=int(sum(values[_PREEMPTIONS])),
        num_tokens=int(sum(sum(values[name]) for name in _TOKENS)),
    )
