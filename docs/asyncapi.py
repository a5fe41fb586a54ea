"""The AsyncAPI 3 document of the bus: every fact and command with its schema, publishers and durables.

Made from the topology (addresses, owners, durables), the protobuf descriptors (schemas) and the comments of
the .proto files. FastStream's generator writes one channel per subscriber of one broker. Here a channel is a
kind of message of the whole platform, so only the generator's schema classes are used: see docs/adr/0001.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import yaml
from faststream.specification.asyncapi.v3_0_0.schema import (
    ApplicationInfo,
    ApplicationSchema,
    Channel,
    Components,
    Message,
    Operation,
    Reference,
)
from faststream.specification.asyncapi.v3_0_0.schema.operations import Action
from google.protobuf import message as protobuf
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from episodes import Channel as PolicyChannel
from event_bus import codec
from event_bus.topology import OWNERS, TASKS, UPCYCLE, Topology
from grpo_trainer import handlers as trainer
from identities import subjects
from model_gateway.handlers import directory_router
from policy_engine.handlers import supervisor_router

ROOT: Final = Path(__file__).parents[1]
_STRINGS: Final[Mapping[int, str]] = {  # protobuf's canonical JSON writes 64-bit integers as strings
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_SINT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_BYTES: "byte",
    FieldDescriptor.TYPE_STRING: "",
}
_NUMBERS: Final = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_WELL_KNOWN: Final[Mapping[str, dict[str, Any]]] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?\d+(\.\d+)?s$"},
    "google.protobuf.Struct": {"type": "object"},
}
Comments = Mapping[str, str]


def document(topology: Topology = UPCYCLE) -> str:
    """The whole document as YAML."""
    comments = proto_comments()
    kinds = list(_kinds(topology))
    schemas: dict[str, dict[str, Any]] = {}
    for _, event, _ in kinds:
        _add_schema(event.DESCRIPTOR, comments, schemas)
    schema = ApplicationSchema(
        info=ApplicationInfo(
            title="Upcycle events",
            version="1",
            description="Facts (stream EVENTS) and commands (stream TASKS) on NATS JetStream. Facts that "
            "decide are published on x-decided-on (stream DECISIONS), and the first one wins. "
            "Payloads are protobuf messages in canonical JSON; message ids are deterministic.",
        ),
        defaultContentType=codec.JSON,
        channels={name: _channel(topology, event, address, comments) for name, event, address in kinds},
        operations=dict(_operations(topology, kinds)),
        components=Components(schemas=dict(sorted(schemas.items()))),
    )
    return yaml.safe_dump(schema.to_jsonable(), sort_keys=False, width=110, allow_unicode=True)


def events_page(topology: Topology = UPCYCLE) -> str:
    """The same as a table for people."""
    comments, readers, followers = proto_comments(), _readers(topology), readers_without_durable()
    rows = [
        "| kind | published by | durables that read it | read without a durable by | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, event, _ in _kinds(topology):
        owners = ", ".join(OWNERS[event])
        durables = ", ".join(f"`{one}{_of_model(topology, one)}`" for one in readers.get(name, []))
        others = ", ".join(service for service, events in followers.items() if event in events)
        meaning = comments.get(event.DESCRIPTOR.full_name, "").replace("|", "\\|")
        decides = " (decision)" if event in topology.decisions else ""
        rows.append(f"| `{name}`{decides} | {owners} | {durables} | {others} | {meaning} |")
    return "\n".join(rows) + "\n"


def _of_model(topology: Topology, durable: str) -> str:
    """What follows the name of a durable that each model has one of."""
    return "_{model}" if any(durable == spec.durable for spec in topology.queues) else ""


def readers_without_durable() -> dict[str, set[type[protobuf.Message]]]:
    """Service -> the facts that it follows, or replays from its own cursor, as its handlers declare them."""
    followed = {
        "policy_engine": [
            supervisor_router(Mock(channel=channel, model="m"), Mock(), Mock(), Mock(), Mock())
            for channel in PolicyChannel
        ],
        "model_gateway": [directory_router(Mock())],
    }
    return {"grpo_trainer": {*trainer.EVENTS}} | {
        service: {event for router in routers for one in router.ephemerals for event in one.handlers.events}
        for service, routers in followed.items()
    }


def _kinds(topology: Topology) -> Iterator[tuple[str, type[protobuf.Message], str]]:
    """(name, type, address) of every fact and command."""
    for event, verb in topology.events.items():
        yield verb, event, subjects.template_of(topology.fact_subject(event, "model"))
    for spec in (*topology.consumers, *topology.queues):
        for event, pool in ((event, pool) for event in spec.events for pool in spec.pools):
            address = subjects.template_of(topology.command_subject(event, pool, "model"))
            yield f"{topology.kind_of(event)}.{pool}", event, address


def _readers(topology: Topology) -> dict[str, list[str]]:
    """Name of a fact or command -> durables."""
    found: dict[str, list[str]] = {}
    for spec in (*topology.consumers, *topology.queues):
        for event in spec.events:
            command = (
                [f"{topology.kind_of(event)}.{pool}" for pool in spec.pools] if spec.stream == TASKS else []
            )
            for name in command or [topology.verb_of(event)]:
                found.setdefault(name, []).append(spec.durable)
    return found


def _channel(topology: Topology, event: type[protobuf.Message], address: str, comments: Comments) -> Channel:
    full_name = event.DESCRIPTOR.full_name
    message = Message(title=event.DESCRIPTOR.name, payload=_ref("schemas", full_name))
    parameters = {name: {"description": text} for name, text in _PARAMETERS.items()}
    return Channel.model_validate(
        {
            "address": address,
            "description": comments.get(full_name),
            "messages": {event.DESCRIPTOR.name: message},
            "parameters": parameters,
            "x-owners": list(OWNERS[event]),
            **_decided_on(topology, event),
        }
    )


def _decided_on(topology: Topology, event: type[protobuf.Message]) -> dict[str, list[str]]:
    """Where a fact that decides is published; the address is where it is read."""
    spec = topology.decisions.get(event)
    if spec is None:
        return {}
    addresses = [spec.subject(event, "model", "verb/about", author, "tenant") for author in spec.authors]
    return {"x-decided-on": [subjects.template_of(address) for address in addresses]}


_PARAMETERS: Final = {
    "tenant": "whose data it is; `default` while there is one tenant",
    "model": "slug of the model, percent-encoded where a subject cannot hold it",
}


def _operations(
    topology: Topology, kinds: list[tuple[str, type[protobuf.Message], str]]
) -> Iterator[tuple[str, Operation]]:
    readers = _readers(topology)
    for name, event, _ in kinds:
        channel = Reference.model_validate({"$ref": f"#/channels/{name}"})
        message = Reference.model_validate({"$ref": f"#/channels/{name}/messages/{event.DESCRIPTOR.name}"})
        for owner in OWNERS[event]:
            yield (
                f"{owner}.publishes.{name}",
                Operation(action=Action.SEND, channel=channel, messages=[message]),
            )
        for durable in readers.get(name, []):
            yield (
                f"{durable}.reads.{name}",
                Operation(action=Action.RECEIVE, channel=channel, messages=[message]),
            )


def _ref(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _add_schema(message: Any, comments: Comments, schemas: dict[str, dict[str, Any]]) -> None:
    """The JSON schema of a message and of every message in it, by full name."""
    if message.full_name in schemas or message.full_name in _WELL_KNOWN:
        return
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    schemas[message.full_name] = _described(schema, comments.get(message.full_name))
    for field in message.fields:
        properties = _property(field, comments, schemas)
        schema["properties"][field.json_name] = _described(properties, comments.get(field.full_name))


def _described(schema: dict[str, Any], comment: str | None) -> dict[str, Any]:
    if comment and "$ref" in schema:
        return {"description": comment, "allOf": [schema]}
    if comment:
        schema["description"] = comment
    return schema


def _property(
    field: FieldDescriptor, comments: Comments, schemas: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": _single(value, comments, schemas)}
    single = _single(field, comments, schemas)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor, comments: Comments, schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if field.message_type is not None:
        _add_schema(field.message_type, comments, schemas)
        name = field.message_type.full_name
        return dict(_WELL_KNOWN[name]) if name in _WELL_KNOWN else _ref("schemas", name)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if field.type in _STRINGS:
        shape = _STRINGS[field.type]
        return {"type": "string", "format": shape} if shape else {"type": "string"}
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"type": "boolean"}
    return {"type": "number" if field.type in _NUMBERS else "integer"}


def proto_comments() -> Comments:
    """Full name of a message or field -> its comment in the .proto file."""
    from grpc_tools import protoc  # type: ignore[import-untyped]  # a tool of developers

    found: dict[str, str] = {}
    with tempfile.NamedTemporaryFile() as out:
        files = [str(path) for path in sorted((ROOT / "proto").rglob("*.proto"))]
        flags = ["--include_source_info", f"--descriptor_set_out={out.name}", f"-I{ROOT / 'proto'}"]
        include = Path(protoc.__file__).parent / "_proto"
        if protoc.main(["protoc", *flags, f"-I{include}", *files]) != 0:
            raise RuntimeError("protoc cannot read proto/: run `make proto-check`")
        described = FileDescriptorSet.FromString(Path(out.name).read_bytes())
    for file in described.file:
        for location in file.source_code_info.location:
            path = list(location.path)
            text = " ".join((location.leading_comments + location.trailing_comments).split())
            if not text or path[:1] != [4] or len(path) not in (2, 4):
                continue
            message = file.message_type[path[1]]
            if len(path) == 2:
                found[f"{file.package}.{message.name}"] = text
            elif path[2] == 2:
                found[f"{file.package}.{message.name}.{message.field[path[3]].name}"] = text
    return found
