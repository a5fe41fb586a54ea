"""Sampling from, scoring with and steering one engine.

Guarantees: tokens in, tokens out; every sampled token is stamped with a proven policy version or the call
raises; an abort never looks like a completion; every call has a deadline.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from engine_client import replies
from engine_client.errors import EngineRejected, EngineUnavailable
from engine_client.labels import parse_label, pinned_version
from engine_client.load import EngineLoad, parse_load
from engine_client.transport import Transport
from engine_client.types import Completion, SamplingParams, StagedScores

_ADMIN_S: Final = 120.0
_PROOF_S: Final = 15.0
_PROOF_POLL_S: Final = 0.02
_MAX_SEED: Final = 2**63 - 1

PauseMode = Literal["keep", "wait", "abort"]


class EngineClient:
    """Client of one engine process. Create it anywhere, use it in one event loop, `close` it."""

    def __init__(
        self,
        base_url: str,
        *,
        new_seed: Callable[[], int] | None = None,
        admin_key: str = "",
        only_https: bool = False,
    ) -> None:
        """`base_url`: origin without /v1. `new_seed`: seeds for requests without one, 0 .. 2**63 - 1.
        `admin_key`: of an engine that lets its supervisor alone steer it. `only_https`: an engine at http://
        is unavailable."""
        self.base_url = base_url.rstrip("/")
        self._http = Transport(base_url, admin_key, only_https=only_https)
        self._new_seed = new_seed or (lambda: secrets.randbelow(_MAX_SEED))
        self._has_generate = True
        self._known_kind: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def generate(
        self, model: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float = 120.0
    ) -> Completion:
        """Sample one completion of `prompt_ids`. Cancelling the call aborts the request in the engine.

        Raises ContextOverflow, EngineRejected, GenerationAborted, EngineUnavailable.
        """
        if self._has_generate:
            try:
                return await self._generate_exactly(model, prompt_ids, sampling, timeout_s)
            except EngineRejected as error:
                if error.status not in (403, 404) or not replies.lacks_generate(error.message):
                    raise
                self._has_generate = False
        return await self._generate_by_completions(model, prompt_ids, sampling, timeout_s)

    async def prompt_logprobs(
        self, model: str, token_ids: Sequence[int], *, timeout_s: float = 60.0
    ) -> list[float]:
        """Log-probability (temperature 1) of each of `token_ids[1:]` given its prefix."""
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        reply = await self._http.post("/v1/completions", body, timeout_s=timeout_s)
        return replies.prompt_logprobs(reply, token_ids)

    async def score_while_paused(
        self, rows: Sequence[Sequence[int]], *, model: str | None = None, timeout_s: float = 60.0
    ) -> list[list[float]] | None:
        """As `prompt_logprobs` for many rows by the weights of `model` (the main one), also while paused.

        None where the engine has no such method (vLLM): it answers no request until it is resumed.
        """
        if await self._kind() != "embedded":
            return None
        named = {} if model is None else {"model": model}
        found = await self._rpc("prompt_logprobs", {"rows": [list(row) for row in rows], **named}, timeout_s)
        return replies.scored_rows(found, rows)

    async def health(self, *, timeout_s: float = 5.0) -> bool:
        """Whether the engine says that it is alive; False also when it cannot be reached."""
        return not await self.why_unwell(timeout_s=timeout_s)

    async def why_unwell(self, *, timeout_s: float = 5.0) -> str:
        """Why it does not count as alive, such as a certificate that is not trusted; "" where it does."""
        try:
            await self._http.get("/health", timeout_s=timeout_s)
        except (EngineUnavailable, EngineRejected) as error:
            return str(error)
        return ""

    async def load(self, *, timeout_s: float = 5.0) -> EngineLoad:
        """How busy the engine is."""
        return parse_load(await self._http.text("/metrics", timeout_s=timeout_s))

    async def is_paused(self, *, timeout_s: float = 5.0) -> bool:
        """Whether `pause` is in force."""
        return replies.is_paused(await self._http.get("/is_paused", timeout_s=timeout_s))

    async def ask_for_a_token(self, *, timeout_s: float) -> None:
        """Have the first of its models sample one token: only an engine that computes answers."""
        model = replies.first_model(await self._http.get("/v1/models", timeout_s=timeout_s))
        body = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0.0}
        await self._http.order("/v1/completions", body, timeout_s=timeout_s)

    async def pause(self, mode: PauseMode = "keep", *, timeout_s: float = _ADMIN_S) -> None:
        """Stop sampling. keep: requests in flight freeze and go on after `resume`; new ones wait."""
        await self._http.order(f"/pause?mode={mode}", None, timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float = _ADMIN_S) -> None:
        """Go on sampling."""
        await self._http.order("/resume", None, timeout_s=timeout_s)

    async def reload_weights(self, directory: Path, *, timeout_s: float = _ADMIN_S) -> None:
        """Load the weights of a HF directory (on the engine's disk) over the served ones, in place.

        A failure leaves vLLM without usable weights: load good ones before you resume it.
        """
        await self._rpc("reload_weights", {"weights_path": str(directory)}, timeout_s)

    async def stage_weights(
        self, directory: Path, rows: Sequence[Sequence[int]], *, timeout_s: float = _ADMIN_S
    ) -> StagedScores | None:
        """Have the weights of a HF directory (on the engine's disk) kept ready for `swap_weights`, and `rows`
        scored by them and by those that serve; sampling goes on meanwhile.

        None where the engine has no such method (vLLM has memory for one set of weights).
        """
        if await self._kind() != "embedded":
            return None
        kwargs = {"weights_path": str(directory), "rows": [list(row) for row in rows]}
        return replies.staged_scores(await self._rpc("stage_weights", kwargs, timeout_s), rows)

    async def swap_weights(
        self, directory: Path, label: str, *, recompute_running: bool, timeout_s: float = _ADMIN_S
    ) -> float:
        """Serve what was staged from a directory, under its label, between two tokens; forgets prefixes as
        `reset_prefix_cache` does. Returns the seconds for which sampling stood still."""
        kwargs = {"weights_path": str(directory), "label": label, "recompute_running": recompute_running}
        return replies.swap_seconds(await self._rpc("swap_weights", kwargs, timeout_s))

    async def forget_staged_weights(self, *, timeout_s: float = 30.0) -> None:
        """Free what was staged, where the engine stages."""
        if await self._kind() == "embedded":
            await self._rpc("forget_staged_weights", {}, timeout_s)

    async def update_weight_version(self, label: str, *, timeout_s: float = 30.0) -> None:
        """Stamp tokens that are sampled from now on with `label` (see `labels`)."""
        await self._http.order("/update_weight_version", {"new_version": label}, timeout_s=timeout_s)

    async def weight_version(self, *, timeout_s: float = 10.0) -> str:
        """The label that tokens are stamped with now."""
        return replies.weight_label(await self._http.get("/weight_info", timeout_s=timeout_s))

    async def reset_prefix_cache(
        self, *, recompute_running: bool = False, timeout_s: float = _ADMIN_S
    ) -> None:
        """Forget cached prompt prefixes; `recompute_running`: those of frozen requests too.

        An engine that can forget none while frozen requests hold some (vLLM says so in its answer) is told to
        have these compute theirs again: no later request may find keys and values of older weights.
        """
        path, running = "/reset_prefix_cache", "?reset_running_requests=true"
        if not recompute_running:
            reply = await self._http.post(path, None, timeout_s=timeout_s)
            if not replies.was_refused(reply):
                return
        if replies.was_refused(await self._http.post(path + running, None, timeout_s=timeout_s)):
            raise EngineUnavailable(f"engine {self.base_url} keeps prefixes that older weights computed")

    async def load_adapter(self, name: str, directory: Path, *, timeout_s: float = _ADMIN_S) -> None:
        """Serve another policy under `name` beside the main one."""
        body = {"lora_name": name, "lora_path": str(directory)}
        await self._http.order("/v1/load_lora_adapter", body, timeout_s=timeout_s)

    async def unload_adapter(self, name: str, *, timeout_s: float = _ADMIN_S) -> None:
        """Stop serving `name`; requests in flight on it are finished first."""
        await self._http.order("/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=timeout_s)

    async def _rpc(self, method: str, kwargs: Mapping[str, Any], timeout_s: float) -> Any:
        body = {"method": method, "kwargs": kwargs}
        return await self._http.post("/collective_rpc", body, timeout_s=timeout_s)

    async def _kind(self) -> str:
        """Asked once: another kind does not take an engine's place under its address."""
        if self._known_kind is None:
            reply = replies.mapping(await self._http.get("/version", timeout_s=10.0), "/version")
            self._known_kind = str(reply.get("engine", "vllm"))
        return self._known_kind

    async def _generate_exactly(
        self, model: str, prompt_ids: Sequence[int], sampling: SamplingParams, timeout_s: float
    ) -> Completion:
        body = {
            "model": model,
            "token_ids": list(prompt_ids),
            "sampling_params": {**self._sampling(sampling), "skip_special_tokens": False, "logprobs": 0},
        }
        reply = await self._http.post("/inference/v1/generate", body, timeout_s=timeout_s)
        labels, pinned = replies.weight_labels(reply), pinned_version(model)
        if pinned is None:
            versions = {label: await self._proven_version(label) for label in labels}
        else:  # vLLM stamps what an adapter sampled with the label of the weights below it
            versions = dict.fromkeys(labels, pinned)
        return replies.generated(reply, versions)

    async def _generate_by_completions(
        self, model: str, prompt_ids: Sequence[int], sampling: SamplingParams, timeout_s: float
    ) -> Completion:
        """For engines without /inference/v1/generate: versions are known only before and after."""
        before = await self._version_now(model)
        body = {
            "model": model,
            "prompt": list(prompt_ids),
            **self._sampling(sampling),
            "logprobs": 0,
            "return_token_ids": True,
        }
        reply = await self._http.post("/v1/completions", body, timeout_s=timeout_s)
        after = await self._version_now(model)
        return replies.completed(reply, min(before, after), exact=before == after)

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        return {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": self._new_seed() if sampling.seed is None else sampling.seed,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": sampling.ignore_eos,
            "n": 1,
        }

    async def _version_now(self, model: str) -> int:
        pinned = pinned_version(model)
        return await self._proven_version(await self.weight_version()) if pinned is None else pinned

    async def _proven_version(self, label: str) -> int:
        """The version of a label; waits for the verdict where its canary is still being checked."""
        stamped = parse_label(label)
        if stamped is None:
            raise EngineUnavailable(
                f"engine {self.base_url} serves {label!r}: no version is proven there yet"
            )
        waited_s = 0.0
        while not stamped.is_proven:
            now = await self.weight_version()
            current = parse_label(now)
            if now != label and (current is None or not stamped.was_proven(current)):
                raise EngineUnavailable(f"tokens came from {label!r}, which were refused; serving {now!r}")
            if now != label:
                return stamped.version
            if waited_s >= _PROOF_S:
                raise EngineUnavailable(f"weights {label!r} were not proven within {_PROOF_S:g} s")
            await asyncio.sleep(_PROOF_POLL_S)
            waited_s += _PROOF_POLL_S
        return stamped.version
