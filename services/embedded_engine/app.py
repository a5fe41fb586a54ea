"""Entry point of the embedded engine: `upcycle-embedded-engine --model DIR --served-model-name NAME`."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

import torch

from embedded_engine.constraints import COMPILE_S
from embedded_engine.engine import EmbeddedEngine
from embedded_engine.errors import EngineFault
from embedded_engine.http.admin_key import ADMIN_KEY_VARIABLE
from embedded_engine.http.errors import edge_envelope
from embedded_engine.http.server import build_server
from embedded_engine.http.text import Text
from embedded_engine.model_runner import RunnerLimits
from embedded_engine.weights import CPU, ModelConfig, load_weights
from service_kit.descriptors import raise_descriptor_limit
from service_kit.groups import EdgeSettings
from service_kit.http_limits import PortLimits
from service_kit.http_port import HttpPort
from service_kit.port_certificate import PortCertificate
from upcycle.tls import TlsFilesUnusable

_SHUTDOWN_S = 5.0
log = logging.getLogger(__name__)


def main() -> None:
    """Serve until SIGTERM. Exit 2: the model directory cannot be served."""
    arguments = _parse(sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    torch.set_num_threads(arguments.threads)
    raise_descriptor_limit()
    try:
        asyncio.run(_serve(arguments))
    except (EngineFault, TlsFilesUnusable, ValueError) as error:
        print(f"upcycle-embedded-engine: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="upcycle-embedded-engine",
        description="A small torch engine that speaks vLLM's HTTP wire.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="HF directory of a Qwen3, Qwen2 or Llama model"
    )
    parser.add_argument("--served-model-name", default="model", help="name on the wire")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=0, help="0: any free one; it is printed as JSON on stdout"
    )
    parser.add_argument("--device", type=_device, default=CPU, help="cpu (default), cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the forward pass")
    parser.add_argument("--max-model-len", type=int, default=None, help="default: what the model allows")
    parser.add_argument("--max-num-seqs", type=int, default=128, help="sequences in one batch")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=512, help="prompt tokens between two decode steps"
    )
    parser.add_argument(
        "--kv-cache-gib", type=float, default=2.0, help="most memory for keys and values of one policy"
    )
    parser.add_argument(
        "--grammar-seconds",
        type=float,
        default=COMPILE_S,
        help="longest that a request waits for its grammar",
    )
    _add_tls(parser)
    found = parser.parse_args(argv)
    if (found.ssl_certfile is None) != (found.ssl_keyfile is None):
        parser.error("--ssl-certfile and --ssl-keyfile go together: name both or neither")
    if found.ssl_ca_certs and not found.ssl_certfile:
        parser.error("--ssl-ca-certs needs --ssl-certfile and --ssl-keyfile")
    return found


def _add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ssl-certfile", type=Path, help="certificate (PEM); the port speaks https only")
    parser.add_argument("--ssl-keyfile", type=Path, help="its private key")
    parser.add_argument(
        "--ssl-ca-certs", type=Path, help="callers must show a certificate that one of these signed"
    )


def _certificate(arguments: argparse.Namespace) -> PortCertificate | None:
    """None: the port speaks http. Raises TlsFilesUnusable."""
    if arguments.ssl_certfile is None:
        return None
    files = arguments.ssl_certfile, arguments.ssl_keyfile, arguments.ssl_ca_certs
    return PortCertificate(*files, name="engine_certificate")


def _device(name: str) -> torch.device:
    """A device of this machine."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{name!r} is no device; say cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"the engine computes on cpu and cuda, not on {name}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(f"torch {torch.__version__} sees no {name} on this machine")
    return device


async def _serve(arguments: argparse.Namespace) -> None:
    directory: Path = arguments.model
    certificate = _certificate(arguments)
    weights = await asyncio.to_thread(load_weights, directory, arguments.device)
    text = await asyncio.to_thread(Text, directory)
    engine = EmbeddedEngine(
        arguments.served_model_name, weights, limits_for(weights.config, arguments), text.decode
    )
    engine.start()
    app = build_server(
        engine, directory, os.environ.pop(ADMIN_KEY_VARIABLE, ""), compile_s=arguments.grammar_seconds
    )
    http = HttpPort(
        app,
        PortLimits.of(EdgeSettings()),
        envelope=edge_envelope,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await http.start(arguments.host, arguments.port, None if certificate is None else certificate.context)
    print(json.dumps({"event": "listening", "host": arguments.host, "port": http.port}), flush=True)
    following = None if certificate is None else asyncio.create_task(certificate.follow())
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    await stopping.wait()
    if following is not None:
        following.cancel()
    await engine.stop()
    await http.stop()


def limits_for(config: ModelConfig, arguments: argparse.Namespace) -> RunnerLimits:
    """Sizes that fit the model and the memory. Raises ValueError naming the argument to change."""
    max_len = min(arguments.max_model_len or config.max_positions, config.max_positions)
    position_bytes = config.num_layers * 2 * config.num_kv_heads * config.head_dim * 4
    affordable = int(arguments.kv_cache_gib * (1 << 30) // (position_bytes * max_len))
    if affordable < 1:
        raise ValueError(
            f"--kv-cache-gib {arguments.kv_cache_gib:g} holds no sequence of {max_len} tokens "
            f"({position_bytes} bytes each); raise it or lower --max-model-len"
        )
    running = min(arguments.max_num_seqs, affordable)
    return RunnerLimits(
        max_running=running,
        max_len=max_len,
        chunk_tokens=arguments.max_num_batched_tokens,
        num_slots=min(affordable, running + max(running // 2, 8)),
    )


if __name__ == "__main__":
    main()
