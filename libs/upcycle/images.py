"""Images that a prompt or a tool shows: made, checked, put into messages, kept as files by their digest."""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from upcycle.errors import ToolFailed

_MAGIC: Final[Mapping[str, tuple[tuple[int, bytes], ...]]] = {
    "image/png": ((0, b"\x89PNG\r\n\x1a\n"),),
    "image/jpeg": ((0, b"\xff\xd8\xff"),),
    "image/gif": ((0, b"GIF8"),),
    "image/webp": ((0, b"RIFF"), (8, b"WEBP")),
}
MAX_IMAGE_BYTES: Final = 4 << 20
MAX_IMAGES_BYTES: Final = 8 << 20
"""Of one result or message: a frame of the control channel has 16 MiB."""
_DATA_URL: Final = "data:"
FOLDER: Final = "images"
"""Beside a trajectories file."""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, such as a screenshot: PNG, JPEG, GIF or WebP. media_type: by default as the bytes say.
    Raises ToolFailed for what is none, and for one of more than 4 MiB."""

    data: bytes
    media_type: str = ""

    def __post_init__(self) -> None:
        found = _media_type(self.data)
        if not found or self.media_type not in ("", found):
            said = f"as {self.media_type}" if self.media_type else "as an image"
            raise ToolFailed(
                f"{len(self.data)} bytes were given {said}, and are {found or 'no image'}",
                f"give {', '.join(_MAGIC)}",
            )
        if len(self.data) > MAX_IMAGE_BYTES:
            raise ToolFailed(
                f"an image has {len(self.data)} bytes, limit {MAX_IMAGE_BYTES}", "make it smaller, or a JPEG"
            )
        object.__setattr__(self, "media_type", found)

    @property
    def sha256(self) -> str:
        """Hex digits."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def file_name(self) -> str:
        """By its content."""
        return f"{self.sha256}.{self.media_type.removeprefix('image/')}"

    def __str__(self) -> str:
        """What stands for it where only text can."""
        return f"[{self.media_type} of {len(self.data)} bytes, sha256 {self.sha256[:12]}]"

    def __repr__(self) -> str:
        return f"Image({self})"

    def to_part(self) -> dict[str, Any]:
        """The part of a message in the form of OpenAI's API."""
        encoded = base64.b64encode(self.data).decode()
        return {"type": "image_url", "image_url": {"url": f"{_DATA_URL}{self.media_type};base64,{encoded}"}}

    def to_row(self) -> dict[str, str]:
        """The row of the control channel."""
        return {"media_type": self.media_type, "data": base64.b64encode(self.data).decode()}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Image":
        """The inverse of `to_row`; raises ValueError and what the constructor raises."""
        return cls(base64.b64decode(row["data"], validate=True), str(row["media_type"]))


def _media_type(data: bytes) -> str:
    for media_type, marks in _MAGIC.items():
        if all(data[at : at + len(mark)] == mark for at, mark in marks):
            return media_type
    return ""


def checked_images(images: Iterable[Image]) -> tuple[Image, ...]:
    """Those of one result or message. Raises ToolFailed where they are too large together."""
    found = tuple(images)
    if (total := sum(len(one.data) for one in found)) > MAX_IMAGES_BYTES:
        raise ToolFailed(f"{len(found)} images have {total} bytes, limit {MAX_IMAGES_BYTES}", "show fewer")
    return found


def parts_of(text: str, images: Sequence[Image]) -> str | list[dict[str, Any]]:
    """The content of a message: the text alone, or its parts."""
    if not images:
        return text
    return [{"type": "text", "text": text}, *(one.to_part() for one in images)]


def images_in(content: Any) -> list[Image]:
    """The images in the content of a message. Raises ValueError for one that is not in its data URL."""
    found = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "image_url":
            found.append(_from_url(str((part.get("image_url") or {}).get("url", ""))))
    return found


def text_of_content(content: Any) -> str:
    """The text of a message's content; an image is named in its place."""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, Mapping) and part.get("type") == "image_url":
            texts.append(str(_from_url(str((part.get("image_url") or {}).get("url", "")))))
        else:
            text = part.get("text") if isinstance(part, Mapping) else part
            texts.append(text if isinstance(text, str) else "")
    return "\n".join(texts)


def text_of_prompt(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """Of all its messages."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(text_of_content(message.get("content")) for message in prompt)


def with_files(messages: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The messages with each image in a file below `folder`, once, and its path in the place of its bytes.
    Raises OSError."""
    return [{**one, "content": _filed(one.get("content"), folder)} for one in messages]


def row_with_files(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A line of a trajectories file that will lie in `folder`. Raises OSError."""
    return {**row, "messages": with_files(row.get("messages", ()), folder)}


def _filed(content: Any, folder: Path) -> Any:
    if not images_in(content):
        return content
    parts = []
    for part in content:
        if part.get("type") == "image_url":
            image = _from_url(part["image_url"]["url"])
            path = folder / FOLDER / image.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_bytes(image.data)
            part = {"type": "image_url", "image_url": {"url": f"{FOLDER}/{image.file_name}"}}
        parts.append(part)
    return parts


def _from_url(url: str) -> Image:
    """Raises ValueError."""
    head, comma, data = url.partition(",")
    if not head.startswith(_DATA_URL) or not head.endswith(";base64") or not comma:
        raise ValueError(f"an image is at {url[:80]!r}: give its bytes, as upcycle.Image(data)")
    try:
        return Image(base64.b64decode(data, validate=True), head[len(_DATA_URL) : -len(";base64")])
    except (binascii.Error, ToolFailed) as error:
        raise ValueError(f"an image cannot be read: {error}") from error
