"""Log lines: parseable, with their trace, without secrets."""

import io
import json
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id

from service_kit.logs import Console, JsonLines
from service_kit.redact import Redactor


def logger(formatter: logging.Formatter) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    made = logging.Logger("toy")
    made.addHandler(handler)
    return made, stream


def test_a_record_is_one_json_object_with_its_fields_and_its_trace() -> None:
    log, stream = logger(JsonLines("grader", Redactor()))
    tracer = TracerProvider().get_tracer("test")

    with tracer.start_as_current_span("grade") as span:
        log.info("group_dropped", extra={"group_id": "g1", "staleness": 3, "path": pytest})
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)

    assert record["event"] == "group_dropped"
    assert (record["service"], record["level"], record["logger"]) == ("grader", "INFO", "toy")
    assert (record["group_id"], record["staleness"]) == ("g1", 3)
    assert record["trace_id"] == format_trace_id(span.get_span_context().trace_id)


def test_an_exception_stays_on_its_line() -> None:
    log, stream = logger(JsonLines("grader", Redactor()))
    try:
        raise ValueError("non-finite reward\nin line two")
    except ValueError:
        log.exception("grading_failed")

    (line,) = stream.getvalue().splitlines()
    assert "non-finite reward" in json.loads(line)["exception"]


def test_the_console_shows_event_and_fields() -> None:
    log, stream = logger(Console(Redactor()))

    log.warning("late", extra={"episode_id": "e1"})

    assert stream.getvalue().rstrip().endswith("WARNING late episode_id=e1")


@pytest.mark.parametrize(
    "text",
    [
        "connect to nats://user:hunter2hunter2@bus:4222 failed",
        "header Authorization: Bearer hunter2hunter2",
        "the value is hunter2hunter2",
        '{"password": "hunter2hunter2"}',
        "UPCYCLE_S3_SECRET_KEY=hunter2hunter2",
        "api_key='hunter2hunter2'",
    ],
)
def test_secrets_are_cut_out(text: str) -> None:
    known = ["hunter2hunter2"] if "value" in text else []

    assert "hunter2" not in Redactor(known)(text)


def test_ordinary_text_is_left_alone() -> None:
    text = "step 12: 3 of 8 groups, http://127.0.0.1:7101/readyz, key policy/incident/v00000012"

    assert Redactor(["short"])(text) == text
