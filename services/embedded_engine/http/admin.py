"""Steering: pause, reload, versions, pinned policies, models, tokenizing, health."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from embedded_engine.engine import EmbeddedEngine
from embedded_engine.errors import BadRequest, BadWeights, UnsupportedModel
from embedded_engine.http.bodies import AdapterBody, DetokenizeBody, RpcBody, TokenizeBody, WeightVersionBody
from embedded_engine.http.errors import error_reply, json_reply
from embedded_engine.http.replies import beside, read_body
from embedded_engine.http.serving import Serving
from embedded_engine.scoring import score
from embedded_engine.weights import ModelWeights, load_weights
from engine_client.labels import NO_VERSION, pinned_version, proven_label

_MODES = ("abort", "wait", "keep")


async def health(request: web.Request) -> web.Response:
    """200 while the decode thread lives."""
    dead = _serving(request).engine.dead
    return web.Response(status=200) if dead is None else web.Response(status=503, text=dead)


async def version(request: web.Request) -> web.Response:
    """Which engine this is; vLLM answers with its own version and no `engine`."""
    return json_reply({"version": "embedded-1", "engine": "embedded"})


async def models(request: web.Request) -> web.Response:
    """GET /v1/models: the main policy and the pinned ones."""
    serving = _serving(request)
    cards = []
    for name in serving.engine.names:
        served = serving.resolve(name)
        cards.append(
            {
                "id": name,
                "object": "model",
                "created": served.created,
                "owned_by": "upcycle",
                "root": served.root,
                "parent": None if name == serving.engine.main else serving.engine.main,
                "max_model_len": serving.engine.limits.max_len,
                "permission": [],
            }
        )
    return json_reply({"object": "list", "data": cards})


async def pause(request: web.Request) -> web.Response:
    """POST /pause?mode=abort|wait|keep."""
    mode = request.query.get("mode", "abort")
    if mode not in _MODES:
        message = (
            "1 validation error:\n  {'type': 'literal_error', 'loc': 'query.mode', "
            f"'msg': \"Input should be 'abort', 'wait' or 'keep'\", 'input': {mode!r}}}"
        )
        return error_reply(400, "Bad Request", message, "query.mode")
    await _serving(request).engine.pause(mode)
    return json_reply({"status": "paused"})


async def resume(request: web.Request) -> web.Response:
    """POST /resume."""
    await _serving(request).engine.resume()
    return json_reply({"status": "resumed"})


async def is_paused(request: web.Request) -> web.Response:
    """GET /is_paused."""
    return json_reply({"is_paused": _serving(request).engine.is_paused})


async def weight_info(request: web.Request) -> web.Response:
    """GET /weight_info: the label of the main policy."""
    engine = _serving(request).engine
    return json_reply({"weight_version": engine.runner_of(engine.main).label})


async def update_weight_version(request: web.Request) -> web.Response:
    """POST /update_weight_version."""
    body = WeightVersionBody.model_validate(await read_body(request))
    await _serving(request).engine.set_label(body.new_version)
    return json_reply({"success": True, "new_version": body.new_version})


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """POST /reset_prefix_cache[?reset_running_requests=true]."""
    recompute = request.query.get("reset_running_requests", "false").lower() == "true"
    await _serving(request).engine.reset_prefix_cache(recompute_running=recompute)
    return json_reply({"success": True})


async def collective_rpc(request: web.Request) -> web.Response:
    """POST /collective_rpc: `reload_weights` as in vLLM; our own, also while paused: `prompt_logprobs`, and
    new weights in two calls, `stage_weights` and `swap_weights`, between which the old ones sample on."""
    body = RpcBody.model_validate(await read_body(request))
    if body.method is None:
        return error_reply(400, "Bad Request", "Missing 'method' in request body")
    method = _METHODS.get(body.method)
    if method is None:
        return _rpc_failed(f"the embedded engine has no attribute {body.method!r}")
    try:
        return json_reply({"results": [await method(_serving(request), body.arguments)]})
    except (BadWeights, UnsupportedModel, OSError) as error:
        return _rpc_failed(str(error))


async def load_adapter(request: web.Request) -> web.Response:
    """POST /v1/load_lora_adapter: here a whole policy directory, served under `lora_name`."""
    serving = _serving(request)
    body = AdapterBody.model_validate(await read_body(request))
    if not body.lora_path:
        raise BadRequest("Both 'lora_name' and 'lora_path' must be provided.", param="lora_path")
    directory = Path(body.lora_path)
    weights = await asyncio.to_thread(load_weights, directory, serving.engine.device)
    pinned = pinned_version(body.lora_name)
    label = NO_VERSION if pinned is None else proven_label(pinned)
    await serving.engine.add_model(body.lora_name, weights, label)
    try:
        await asyncio.to_thread(serving.register, body.lora_name, directory)
    except BaseException:  # also where the caller is gone: nothing may stay behind
        serving.engine.abandon(body.lora_name)
        serving.forget(body.lora_name)
        raise
    return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: web.Request) -> web.Response:
    """POST /v1/unload_lora_adapter; answers when the last request on it is finished."""
    serving = _serving(request)
    body = AdapterBody.model_validate(await read_body(request))
    await serving.engine.remove_model(body.lora_name)
    serving.forget(body.lora_name)
    return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize."""
    serving = _serving(request)
    body = TokenizeBody.model_validate(await read_body(request))
    text = serving.resolve(body.model).text
    if body.messages is not None:
        rendered = (body.messages, body.tools or (), body.add_generation_prompt)
        ids = await beside(request, text.chat.render, *rendered)
    elif body.prompt is not None:
        ids = await beside(request, text.encode, body.prompt)
    else:
        raise BadRequest("1 validation error:\n  Field required: prompt or messages", param="body.prompt")
    names = [text.token_name(token) for token in ids] if body.return_token_strs else None
    limit = serving.engine.limits.max_len
    return json_reply({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": names})


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize."""
    body = DetokenizeBody.model_validate(await read_body(request))
    text = _serving(request).resolve(body.model).text
    return json_reply({"prompt": text.decode(body.tokens, skip_special=False)})


def _serving(request: web.Request) -> Serving:
    serving: Serving = request.app["serving"]
    return serving


def _rpc_failed(why: str) -> web.Response:
    message = f"Call to collective_rpc method failed: Worker failed with error '{why}'"
    return error_reply(500, "InternalServerError", message)


async def _reload_weights(serving: Serving, kwargs: dict[str, Any]) -> None:
    engine = serving.engine
    directory = Path(str(kwargs.get("weights_path") or serving.resolve(engine.main).root))
    await engine.reload(await _weights_of(engine, directory))


async def _stage_weights(serving: Serving, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Scores of rows by the weights of a directory, which are kept for a swap, and by those that serve."""
    engine, rows = serving.engine, _rows_in(serving, kwargs)
    directory = Path(str(kwargs.get("weights_path")))
    served = engine.runner_of(engine.main).model
    engine.forget_staged()  # first: the third set of weights would be of no use
    with _refused_by_name():
        staged = await engine.stage(directory, await _weights_of(engine, directory))
    scored = await asyncio.to_thread(score, staged, rows)
    return {"logprobs": scored, "before": await asyncio.to_thread(score, served, rows)}


async def _swap_weights(serving: Serving, kwargs: dict[str, Any]) -> dict[str, float]:
    directory, label = Path(str(kwargs.get("weights_path"))), str(kwargs.get("label"))
    recompute = kwargs.get("recompute_running") is True
    with _refused_by_name():
        return {"wall_s": await serving.engine.swap(directory, label, recompute_running=recompute)}


@contextmanager
def _refused_by_name() -> Iterator[None]:
    """Where vLLM has no word for it: bad weights are the caller's error, they stay bad at the next try."""
    try:
        yield
    except (BadWeights, UnsupportedModel) as error:
        raise BadRequest(str(error), param="weights_path") from error


async def _forget_staged_weights(serving: Serving, kwargs: dict[str, Any]) -> None:
    serving.engine.forget_staged()


async def _weights_of(engine: EmbeddedEngine, directory: Path) -> ModelWeights:
    """Raises UnsupportedModel, BadWeights, also for a model of another shape than the one that serves."""
    weights = await asyncio.to_thread(load_weights, directory, engine.device)
    served = engine.runner_of(engine.main).model.config
    if weights.config != served:
        raise BadWeights(f"{directory} is a model of another shape: {weights.config} is not {served}")
    return weights


async def _prompt_logprobs(serving: Serving, kwargs: dict[str, Any]) -> dict[str, Any]:
    rows = _rows_in(serving, kwargs)
    runner = serving.engine.runner_of(str(kwargs.get("model") or serving.engine.main))
    started_s = time.perf_counter()
    logprobs = await serving.engine.call(lambda: runner.score(rows))
    return {"logprobs": logprobs, "weight_version": runner.label, "wall_s": time.perf_counter() - started_s}


def _rows_in(serving: Serving, kwargs: dict[str, Any]) -> list[list[int]]:
    """Raises BadRequest for rows that cannot be scored."""
    rows = [[int(token) for token in row] for row in kwargs.get("rows", ())]
    for row in rows:
        serving.check_prompt(row)
        if len(row) < 2:
            raise BadRequest("a row needs at least two token ids", param="rows")
    return rows


_METHODS: dict[str, Callable[[Serving, dict[str, Any]], Awaitable[Any]]] = {
    "reload_weights": _reload_weights,
    "stage_weights": _stage_weights,
    "swap_weights": _swap_weights,
    "forget_staged_weights": _forget_staged_weights,
    "prompt_logprobs": _prompt_logprobs,
}
