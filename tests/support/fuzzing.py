"""Random requests for every rpc of a server: bytes that are no message, and messages that mean nothing.

FUZZ_CASES and FUZZ_SEED say how many and which; a failure names the method, the seed and the bytes.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from upcycle.rpc import connect

CASES: Final = int(os.environ.get("FUZZ_CASES", "6"))
"""Of each method, or of each test that has none."""
SEED: Final = int(os.environ.get("FUZZ_SEED", "0"))
BUGS: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
_TEXTS: Final = (
    "",
    "incident",
    "a/b",
    "../..",
    "\x00",
    "\x1b[2J",
    "'; drop table",
    "é" * 300,
    "x" * 5000,
    "🙂",
)
_WHOLE: Final = (0, 1, 2, 7, -1, 2**31 - 1, -(2**31))
_LARGE: Final = (*_WHOLE, 2**63 - 1, -(2**63), 253402300800)
_REAL: Final = (0.0, 1.0, -1.0, 1e308, float("inf"), float("-inf"), float("nan"))
_DEPTH: Final = 4


def randomness(of: str) -> random.Random:
    """The same for the same seed and name."""
    return random.Random(f"{SEED}/{of}")


async def check_every_rpc(address: str) -> Counter[grpc.StatusCode]:
    """Ask each method of each service; no answer may be a bug of the server. Returns how often which came."""
    seen: Counter[grpc.StatusCode] = Counter()
    async with connect(address) as channel:
        for service in await served(channel):
            for method in descriptor_pool.Default().FindServiceByName(service).methods:
                dice = randomness(method.full_name)
                for _ in range(CASES):
                    body = random_body(dice, method.input_type)
                    code, details = await _asked(channel, method, body)
                    assert code not in BUGS, (
                        f"{method.full_name}, seed {SEED}: {code} {details}; sent {body!r}"
                    )
                    seen[code] += 1
    return seen


async def served(channel: grpc.aio.Channel) -> list[str]:
    """Names of our services, by reflection."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answer = await call.read()
    call.cancel()
    return [one.name for one in answer.list_services_response.service if one.name.startswith("upcycle.")]


async def _asked(
    channel: grpc.aio.Channel, method: MethodDescriptor, body: bytes
) -> tuple[grpc.StatusCode, str]:
    path = f"/{method.containing_service.full_name}/{method.name}"
    requests: Any = iter([body]) if method.client_streaming else body
    kind = f"{'stream' if method.client_streaming else 'unary'}_"
    kind += "stream" if method.server_streaming else "unary"
    try:
        call: Any = getattr(channel, kind)(path)(requests, timeout=0.5 if method.server_streaming else 20.0)
        if method.server_streaming:
            async for _ in call:
                break
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    return grpc.StatusCode.OK, ""


def random_body(dice: random.Random, kind: Descriptor) -> bytes:
    """Noise, a message of that kind, or one whose bytes are cut or changed."""
    if dice.random() < 0.2:
        return dice.randbytes(dice.choice((1, 8, 200, 5000)))
    body = bytearray(random_message(dice, kind).SerializeToString())
    if body and dice.random() < 0.3:
        for _ in range(dice.randint(1, 4)):
            body[dice.randrange(len(body))] = dice.randrange(256)
        del body[len(body) - dice.randint(0, len(body) // 2) :]
    return bytes(body)


def random_message(dice: random.Random, kind: Any, depth: int = 0) -> Message:
    """Each field is there or not, with a value that its type allows."""
    made = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        if dice.random() < 0.6:
            _fill(dice, made, field, depth)
    return made


def _fill(dice: random.Random, made: Message, field: FieldDescriptor, depth: int) -> None:
    nested = field.message_type
    if nested is not None and (depth >= _DEPTH or nested.GetOptions().map_entry):
        return
    for value in _values(dice, field, depth):
        if field.is_repeated:
            getattr(made, field.name).append(value)
        elif nested is not None:
            getattr(made, field.name).CopyFrom(value)
        else:
            setattr(made, field.name, value)


def _values(dice: random.Random, field: FieldDescriptor, depth: int) -> Iterator[Any]:
    for _ in range(dice.randint(0, 3) if field.is_repeated else 1):
        if field.message_type is not None:
            yield random_message(dice, field.message_type, depth + 1)
        elif field.enum_type is not None:
            yield dice.choice([*(value.number for value in field.enum_type.values), 99, -1])
        else:
            yield _scalar(dice, field)


def _scalar(dice: random.Random, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = dice.choice(_TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return dice.choice(_REAL)
    is_long = kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    number = dice.choice(_LARGE if is_long else _WHOLE)
    is_unsigned = kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    return abs(number) if is_unsigned else number
