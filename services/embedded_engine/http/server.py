"""The aiohttp application of the embedded engine."""

from pathlib import Path

from aiohttp import web

from embedded_engine.constraints import COMPILE_S
from embedded_engine.engine import EmbeddedEngine
from embedded_engine.http import admin
from embedded_engine.http.admin_key import AdminKey
from embedded_engine.http.chat import chat
from embedded_engine.http.completions import completions
from embedded_engine.http.errors import envelope
from embedded_engine.http.generate import generate
from embedded_engine.http.metrics import EngineMetrics
from embedded_engine.http.serving import Serving

_MAX_BODY_BYTES = 32 << 20


def build_server(
    engine: EmbeddedEngine, directory: Path, admin_key: str = "", *, compile_s: float = COMPILE_S
) -> web.Application:
    """Routes over a running engine whose main policy lies in `directory`. admin_key: what steering needs;
    without one each process that reaches the port may steer. compile_s: longest wait of a request for its
    grammar."""
    steering = AdminKey(admin_key).guarding
    app = web.Application(middlewares=[envelope], client_max_size=_MAX_BODY_BYTES)
    metrics = EngineMetrics(engine)
    serving = Serving(engine, directory, metrics.count_finished, compile_s=compile_s)
    app["serving"] = serving
    app.on_cleanup.append(serving.close)
    app.add_routes(
        [
            web.post("/v1/completions", completions),
            web.post("/v1/chat/completions", chat),
            web.post("/v1/chat/completions/tokens", chat),
            web.post("/inference/v1/generate", generate),
            web.post("/tokenize", admin.tokenize),
            web.post("/detokenize", admin.detokenize),
            web.get("/v1/models", admin.models),
            web.post("/v1/load_lora_adapter", steering(admin.load_adapter)),
            web.post("/v1/unload_lora_adapter", steering(admin.unload_adapter)),
            web.post("/pause", steering(admin.pause)),
            web.post("/resume", steering(admin.resume)),
            web.get("/is_paused", admin.is_paused),
            web.post("/collective_rpc", steering(admin.collective_rpc)),
            web.get("/weight_info", admin.weight_info),
            web.post("/update_weight_version", steering(admin.update_weight_version)),
            web.post("/reset_prefix_cache", steering(admin.reset_prefix_cache)),
            web.get("/health", admin.health),
            web.get("/version", admin.version),
            web.get("/metrics", metrics.handle),
        ]
    )
    return app
