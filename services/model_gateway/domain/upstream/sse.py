"""Server-sent events as providers write them: any line end, comments, data over several lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_EVENT_BYTES: Final = 16 << 20


class EventTooLarge(ValueError):
    """An event beyond the limit."""

    def __init__(self) -> None:
        super().__init__(f"sent an event of more than {MAX_EVENT_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event."""

    name: str
    data: bytes


class SseReader:
    """Bytes in, whole events out."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that `chunk` completes. Raises EventTooLarge."""
        for line in self._lines(chunk):
            if not line:
                if self._data:
                    yield ServerEvent(self._name, b"\n".join(self._data))
                self._name, self._data, self._size = "", [], 0
                continue
            self._line(line)
        if self._size + self._rest_bytes > MAX_EVENT_BYTES:
            raise EventTooLarge

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Whole ones. A long line is put together once, however many chunks it came in."""
        is_middle = b"\n" not in chunk and b"\r" not in chunk
        if is_middle and not (self._rest and self._rest[-1].endswith(b"\r")):
            if chunk:
                self._rest.append(chunk)
                self._rest_bytes += len(chunk)
            return []
        text = b"".join([*self._rest, chunk])
        # A carriage return at the end may be the first half of a line end.
        held = b"\r" if text.endswith(b"\r") else b""
        lines = text.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop() + held
        self._rest, self._rest_bytes = [rest] if rest else [], len(rest)
        return lines

    def _line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value)
            if self._size > MAX_EVENT_BYTES:
                raise EventTooLarge
        elif field == b"event":
            self._name = value.decode(errors="replace")
