"""Calls of the platform's ports without a key, or with one that is none.

tests/attacks makes them on this machine; containers of docker-compose.yml run this file as a program, so it
imports nothing that their image lacks. `python -c PROGRAM JSON` prints {call: answer}; JSON has `grpc`,
`engines` and `gateways`, each a list of HOST:PORT.
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Final

import grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

OPEN: Final = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
"""They answer anybody, and show the schema alone."""
WRONG: Final[tuple[str | None, ...]] = (None, "", "wrong", "Bearer", "0" * 64, f"upk_k3f9x0q2m7ab_{'0' * 43}")
"""The last looks like a key that another platform, or tenant, issued."""
WRONG_HEADERS: Final[tuple[str | None, ...]] = (None, "Bearer", "Bearer ", "Bearer wrong", "Basic Og==")
STEERING: Final[dict[str, object]] = {
    "/pause": None,
    "/resume": None,
    "/reset_prefix_cache": None,
    "/update_weight_version": {"new_version": "666"},
    "/collective_rpc": {"method": "reload_weights", "kwargs": {"weights_path": "/tmp"}},
    "/v1/load_lora_adapter": {"lora_name": "mine", "lora_path": "/tmp"},
    "/v1/unload_lora_adapter": {"lora_name": "incident"},
}
"""What only the supervisor of an engine may ask of it."""
SERVED: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""What the gateway answers to its own keys."""
CALL_S: Final = 20.0


def services(channel: grpc.Channel) -> Iterator[tuple[str, list[str]]]:
    """Each service of a server that is not open to all, and its methods, as reflection shows them."""
    from google.protobuf.descriptor_pool import DescriptorPool

    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    for service in database.get_services():
        if service not in OPEN:
            yield service, list(pool.FindServiceByName(service).methods_by_name)


def status(channel: grpc.Channel, service: str, method: str, key: str | None) -> str:
    """Of one call with an empty request."""
    call = channel.stream_stream(
        f"/{service}/{method}", request_serializer=lambda body: body, response_deserializer=lambda body: body
    )
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    answers = call(iter([b""]), timeout=CALL_S, metadata=metadata)
    try:
        next(answers, None)
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        answers.cancel()
    return "OK"


def called(address: str) -> Iterator[tuple[str, str]]:
    """Every rpc of a server with every wrong key."""
    with grpc.insecure_channel(address) as channel:
        for service, methods in services(channel):
            for method in methods:
                for key in WRONG:
                    yield f"{address} {service}/{method} key {key!r}", status(channel, service, method, key)


def posted(address: str, path: str, body: object, header: str | None) -> str:
    """The status of a POST."""
    headers = {"Content-Type": "application/json"} | ({} if header is None else {"Authorization": header})
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=CALL_S) as answer:  # noqa: S310
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)


def main() -> None:
    """Make all calls."""
    targets: dict[str, list[str]] = json.loads(sys.argv[1])
    said = dict(call for address in targets["grpc"] for call in called(address))
    chat = {"model": "incident", "messages": [{"role": "user", "content": "hello"}], "prompt": "hello"}
    asked: dict[str, dict[str, object]] = {"engines": STEERING, "gateways": dict.fromkeys(SERVED, chat)}
    for kind, bodies in asked.items():
        for address in targets[kind]:
            for path, body in bodies.items():
                for header in WRONG_HEADERS:
                    said[f"{address} POST {path} key {header!r}"] = posted(address, path, body, header)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
