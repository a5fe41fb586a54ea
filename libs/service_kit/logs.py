"""Log records as JSON lines for machines, or short lines for a person at a terminal.

Fields go in `extra`, never into the message: `log.info("group_dropped", extra={"staleness": 3})`.
Every record carries the ids of the span it was written in. Secrets are cut out of the finished line.
"""

import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson
from opentelemetry import trace

from service_kit.redact import Redactor

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def record_fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed in `extra`, and the ids of the current trace."""
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        fields["trace_id"] = trace.format_trace_id(context.trace_id)
        fields["span_id"] = trace.format_span_id(context.span_id)
    return fields


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, service, logger, event, then the fields."""

    def __init__(self, service: str, redact: Redactor) -> None:
        super().__init__()
        self._service = service
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        body: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "event": record.getMessage(),
        }
        body |= record_fields(record)
        if record.exc_info and record.exc_info[0] is not None:
            body["exception"] = self.formatException(record.exc_info)
        return self._redact(orjson.dumps(body, default=str, option=orjson.OPT_NON_STR_KEYS).decode())


class Console(logging.Formatter):
    """`12:00:00.123 INFO  event key=value`, for a terminal."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and its traceback below."""
        moment = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(
            f"{key}={value}" for key, value in record_fields(record).items() if key != "span_id"
        )
        line = f"{moment} {record.levelname:<7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + self.formatException(record.exc_info)
        return self._redact(line)


def setup_logging(
    service: str, level: str, *, secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Send all records of this process to stderr (or `stream`), replacing earlier handlers."""
    target = sys.stderr if stream is None else stream
    redact = Redactor(secrets)
    handler = logging.StreamHandler(target)
    handler.setFormatter(Console(redact) if target.isatty() else JsonLines(service, redact))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("faststream", "urllib3", "grpc", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.getLogger().level, logging.WARNING))
    logging.captureWarnings(True)
