"""The aiohttp application of the embedded engine."""

from pathlib import Path

from aiohttp import web

from policy_engine.embedded.engine import Engine
from policy_engine.embedded.http import admin
from policy_engine.embedded.http.chat import chat
from policy_engine.embedded.http.completions import completions
from policy_engine.embedded.http.errors import envelope
from policy_engine.embedded.http.generate import generate
from policy_engine.embedded.http.metrics import EngineMetrics
from policy_engine.embedded.http.serving import Serving

_MAX_BODY_BYTES = 32 << 20


def build_server(engine: Engine, directory: Path) -> web.Application:
    """Routes over a running engine whose main policy lies in `directory`."""
    app = web.Application(middlewares=[envelope], client_max_size=_MAX_BODY_BYTES)
    metrics = EngineMetrics(engine)
    app["serving"] = Serving(engine, directory, metrics.finished)
    app.add_routes(
        [
            web.post("/v1/completions", completions),
            web.post("/v1/chat/completions", chat),
            web.post("/v1/chat/completions/tokens", chat),
            web.post("/inference/v1/generate", generate),
            web.post("/tokenize", admin.tokenize),
            web.post("/detokenize", admin.detokenize),
            web.get("/v1/models", admin.models),
            web.post("/v1/load_lora_adapter", admin.load_adapter),
            web.post("/v1/unload_lora_adapter", admin.unload_adapter),
            web.post("/pause", admin.pause),
            web.post("/resume", admin.resume),
            web.get("/is_paused", admin.is_paused),
            web.post("/collective_rpc", admin.collective_rpc),
            web.get("/weight_info", admin.weight_info),
            web.post("/update_weight_version", admin.update_weight_version),
            web.post("/reset_prefix_cache", admin.reset_prefix_cache),
            web.get("/health", admin.health),
            web.get("/version", admin.version),
            web.get("/metrics", metrics.handle),
        ]
    )
    return app
