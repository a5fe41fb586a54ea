"""vLLM's server without vLLM: it takes the same command line, puts the middleware around its application as
vLLM 0.32 does, and carries out whatever comes through."""

import argparse
import importlib
import json
from typing import Any

import uvicorn

STATE = {"is_paused": False, "weights": "given at the start", "weight_version": "default"}
LISTED = ("/pause", "/resume", "/collective_rpc", "/update_weight_version", "/v1/completions")


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Every path is a route."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    path = scope["path"]
    if path in ("/pause", "/resume"):
        STATE["is_paused"] = path == "/pause"
    elif path == "/collective_rpc":
        STATE["weights"] = json.loads(body)["kwargs"]["weights_path"]
    elif path == "/update_weight_version":
        STATE["weight_version"] = json.loads(body)["new_version"]
    paths: dict[str, Any] = {one: {"post": {}} for one in LISTED}
    answer = json.dumps({**STATE, "paths": paths}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def main() -> None:
    """Until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--middleware", action="append", default=[])
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--ssl-keyfile")
    parser.add_argument("--ssl-ca-certs")
    parser.add_argument("--ssl-cert-reqs", type=int, default=0)
    arguments, _ = parser.parse_known_args()
    app: Any = application
    for name in arguments.middleware:
        module, _, member = name.rpartition(".")
        app = getattr(importlib.import_module(module), member)(app)
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        lifespan="off",
        ssl_certfile=arguments.ssl_certfile,
        ssl_keyfile=arguments.ssl_keyfile,
        ssl_ca_certs=arguments.ssl_ca_certs,
        ssl_cert_reqs=arguments.ssl_cert_reqs,
    )


if __name__ == "__main__":
    main()
