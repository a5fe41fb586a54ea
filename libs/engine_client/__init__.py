"""One client for every policy engine: vLLM's HTTP wire, as vLLM 0.32 and the embedded engine speak it."""

from engine_client.client import EngineClient
from engine_client.errors import (
    ContextOverflow,
    EngineError,
    EngineRejected,
    EngineUnavailable,
    GenerationAborted,
    MalformedReply,
)
from engine_client.labels import (
    NO_VERSION,
    WeightLabel,
    parse_label,
    pinned_name,
    pinned_version,
    proven_label,
    unproven_label,
    version_of_label,
)
from engine_client.load import EngineLoad, parse_load
from engine_client.states import SERVING_STATES, STATE_NUMBERS, EngineState, state_from_wire
from engine_client.types import Completion, FinishReason, SamplingParams, StagedScores, TokenSpan, continued

__all__ = [
    "NO_VERSION",
    "SERVING_STATES",
    "STATE_NUMBERS",
    "Completion",
    "ContextOverflow",
    "EngineClient",
    "EngineError",
    "EngineLoad",
    "EngineRejected",
    "EngineState",
    "EngineUnavailable",
    "FinishReason",
    "GenerationAborted",
    "MalformedReply",
    "SamplingParams",
    "StagedScores",
    "TokenSpan",
    "WeightLabel",
    "continued",
    "parse_label",
    "parse_load",
    "pinned_name",
    "pinned_version",
    "proven_label",
    "state_from_wire",
    "unproven_label",
    "version_of_label",
]
