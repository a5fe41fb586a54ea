"""The AsyncAPI document says what the protos and the topology say, and is the one in docs/reference."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs import asyncapi
from faststream.specification.asyncapi.v3_0_0.schema import ApplicationSchema
from google.protobuf import json_format
from google.protobuf.message import Message
from jsonschema import Draft7Validator  # type: ignore[import-untyped]  # ships no types

from event_bus.topology import OWNERS, UPCYCLE
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.api.training.v1.events_pb2 import StepCompleted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(asyncapi.document())
    return read


def test_the_stored_document_is_the_one_of_this_code() -> None:
    stored = (ROOT / "docs/reference/asyncapi.yaml").read_text()
    assert stored == asyncapi.document(), "run `make asyncapi`"


def test_the_document_is_valid_asyncapi_3(document: dict[str, Any]) -> None:
    assert document["asyncapi"] == "3.0.0"
    ApplicationSchema.model_validate(document)
    for channel in document["channels"].values():
        named = set(re.findall(r"\{(\w+)\}", channel["address"]))
        assert named == set(channel["parameters"])
    for target in references(document):
        resolve(document, target)


def test_every_fact_and_command_is_a_channel_with_its_owners(document: dict[str, Any]) -> None:
    channels = document["channels"]
    kinds = {verb: event for event, verb in UPCYCLE.events.items()}
    kinds |= {
        f"{UPCYCLE.kind_of(event)}.{pool}": event
        for spec in UPCYCLE.queues
        for event in spec.events
        for pool in spec.pools
    }
    assert set(channels) == set(kinds)
    for name, event in kinds.items():
        assert channels[name]["x-owners"] == list(OWNERS[event])
        assert list(channels[name]["messages"]) == [event.DESCRIPTOR.name]


def test_every_event_type_has_an_owner_whose_code_makes_it() -> None:
    assert set(OWNERS) == {*UPCYCLE.events, *UPCYCLE.commands}
    for event, owners in OWNERS.items():
        for owner in owners:
            code = "".join(path.read_text() for path in (ROOT / "services" / owner).rglob("*.py"))
            # A message that several services make has one builder, called like the message in snake case.
            builder = re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()
            made = rf"\b({event.__name__}|{builder})\("
            assert re.search(made, code), f"{owner} never makes {event.__name__}"


def test_every_durable_reads_what_the_topology_says(document: dict[str, Any]) -> None:
    reads = {name for name, one in document["operations"].items() if one["action"] == "receive"}
    wanted = set()
    for spec in (*UPCYCLE.consumers, *UPCYCLE.queues):
        for event in spec.events:
            names = [f"{UPCYCLE.kind_of(event)}.{pool}" for pool in spec.pools] or [UPCYCLE.verb_of(event)]
            wanted |= {f"{spec.durable}.reads.{name}" for name in names}
    assert reads == wanted


def test_the_page_names_every_service_that_reads_without_a_durable() -> None:
    reads = re.compile(r"router\.ephemeral\(|\.replay\(|bus\.stored\(")
    code = {path.parent.name: path for path in (ROOT / "services").glob("*/app.py")}
    followers = {
        name
        for name, app in code.items()
        if any(reads.search(path.read_text()) for path in app.parent.rglob("*.py"))
    }
    assert followers == set(asyncapi.readers_without_durable())
    rows = {line.split("|")[1].strip(): line.split("|")[4] for line in asyncapi.events_page().splitlines()}
    assert rows["`checkpoint.promoted`"] == " policy_engine, model_gateway "
    assert rows["`group.offered`"] == rows["`group.shortened`"] == " grpo_trainer "
    assert rows["`engine.ready`"] == " model_gateway "
    assert rows["`checkpoint.held`"] == "  "


@pytest.mark.parametrize(
    "event",
    [
        EpisodeRequested(episode=EpisodeIdentity(episode_id="e", member=3), attempt=1),
        StepCompleted(run_id="r", step=1 << 40),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_the_bus_carries_fits_its_schema(document: dict[str, Any], event: Message) -> None:
    name = event.DESCRIPTOR.full_name
    validator = Draft7Validator({**document, "$ref": f"#/components/schemas/{name}"})
    payload = json_format.MessageToDict(event)
    validator.validate(payload)
    assert not validator.is_valid({**payload, "mood": "good"})


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [one for value in node.values() for one in references(value)]
    return [one for value in node for one in references(value)] if isinstance(node, list) else []


def resolve(document: dict[str, Any], target: str) -> Any:
    node: Any = document
    for part in target.removeprefix("#/").split("/"):
        node = node[part]
    return node
