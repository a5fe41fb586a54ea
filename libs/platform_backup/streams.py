"""Streams of the bus as files, with their durables: NATS's own snapshots, opaque to us.

A restored stream has the sequences and the durables' places that it had, so that no reader gets a message
twice. It was made anew, though, and readers take that for a loss: `keep_places` tells them that it is none.
"""

import asyncio
import copy
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import StreamInfo

from event_bus.topology import ATTEMPTS
from identities import subjects
from platform_backup.errors import BackupFailed
from platform_backup.manifest import StreamPart
from service_kit.clock import utc_now

_CHUNK_BYTES: Final = 128 * 1024
_ANSWER_S: Final = 30.0
_LAST_ANSWER_S: Final = 600.0
"""The server checks and indexes what it was given before it answers the end."""
_NOT_FOUND: Final = 10059
_OK: Final = "204"
_COPYING_S: Final = 60.0
_POLL_S: Final = 0.1


async def info_of(client: Client, stream: str) -> StreamPart | None:
    """The server's words about a stream; None where there is none."""
    answer = await _ask(client, f"$JS.API.STREAM.INFO.{stream}", {}, missing_ok=True)
    if answer is None:
        return None
    created = StreamInfo.from_response(copy.deepcopy(answer)).created  # as readers note it
    return StreamPart(created=created or utc_now(), config=answer["config"], state=answer["state"])


async def durables_of(client: Client, stream: str) -> list[dict[str, Any]]:
    """The server's words about all readers of a stream."""
    found: list[dict[str, Any]] = []
    while True:
        page = await _ask(client, f"$JS.API.CONSUMER.LIST.{stream}", {"offset": len(found)})
        found += page["consumers"] or []
        if not page["consumers"] or len(found) >= page["total"]:
            return found


async def save(client: Client, stream: str, path: Path) -> None:
    """Write a snapshot of a stream and its durables. Raises BackupFailed."""
    inbox = client.new_inbox()
    chunks = await client.subscribe(inbox)
    try:
        request = {"deliver_subject": inbox, "chunk_size": _CHUNK_BYTES, "jsck": True}
        await _ask(client, f"$JS.API.STREAM.SNAPSHOT.{stream}", request)
        with path.open("wb") as file:
            while (chunk := await chunks.next_msg(timeout=_ANSWER_S)).data:
                file.write(chunk.data)
                if chunk.reply:
                    await client.publish(chunk.reply)
            _check_end(stream, chunk)
            file.flush()
            os.fsync(file.fileno())
    except NatsError as error:
        raise BackupFailed(f"the snapshot of stream {stream} broke off: {error!r}", "try again") from error
    finally:
        await chunks.unsubscribe()


async def load(client: Client, stream: str, part: StreamPart, path: Path) -> None:
    """Make a stream that does not exist from a snapshot, with one replica. Raises BackupFailed."""
    config = {**part.config, "num_replicas": 1}
    request = {"config": await _from_the_last(client, config), "state": part.state}
    try:
        answer = await _ask(client, f"$JS.API.STREAM.RESTORE.{stream}", request)
        target = str(answer["deliver_subject"])
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                _accept(stream, await client.request(target, chunk, timeout=_ANSWER_S))
        done = _accept(stream, await client.request(target, b"", timeout=_LAST_ANSWER_S))
    except NatsError as error:
        raise BackupFailed(f"stream {stream} could not be restored: {error!r}", "try again") from error
    last = done.get("state", {}).get("last_seq")
    if last != part.state["last_seq"]:
        raise BackupFailed(f"stream {stream} ends at {last}, its snapshot at {part.state['last_seq']}")
    if config.get("sources"):
        await _until_copying(client, stream)
        await _ask(client, f"$JS.API.STREAM.UPDATE.{stream}", config)


async def _from_the_last(client: Client, config: dict[str, Any]) -> dict[str, Any]:
    """Copy the last message of each stream that is copied once more, and none before it.

    From 2.15 on a server knows by the time of making that a stream is another one, and would copy all of it
    again. Readers take the one copy for a message that comes twice.
    """
    if not config.get("sources"):
        return config
    sources = []
    for source in config["sources"]:
        info = await info_of(client, source["name"])
        last = 0 if info is None else info.state["last_seq"]
        sources.append({**source, "opt_start_seq": last} if last else source)
    return {**config, "sources": sources}


async def _until_copying(client: Client, stream: str) -> None:
    """Wait until the server copies into a stream, and has copied what there is. Raises BackupFailed."""
    give_up_at = time.monotonic() + _COPYING_S
    while True:
        sources = (await _ask(client, f"$JS.API.STREAM.INFO.{stream}", {})).get("sources") or ()
        if all(source["active"] >= 0 and source["lag"] == 0 for source in sources):
            return
        if time.monotonic() > give_up_at:
            raise BackupFailed(
                f"stream {stream} copies nothing after {_COPYING_S:g} s: {sources}", "try again"
            )
        await asyncio.sleep(_POLL_S)


async def keep_places(client: Client, old: Mapping[str, StreamPart]) -> None:
    """Correct what readers noted about the streams they began with: they go on with the restored ones."""
    jetstream = client.jetstream(timeout=_ANSWER_S)
    noted = await jetstream.stream_info(ATTEMPTS, subjects_filter=subjects.all_places())
    made = {name: await info_of(client, name) for name in old}
    for subject in noted.state.subjects or {}:
        stream = subjects.stream_of_place(subject)
        note = json.loads((await jetstream.get_last_msg(ATTEMPTS, subject)).data or b"{}")
        now, then = made.get(stream), old.get(stream)
        if now is not None and then is not None and note.get("created") == then.created.isoformat():
            body = json.dumps({**note, "created": now.created.isoformat()}).encode()
            await jetstream.publish(subject, body, stream=ATTEMPTS, timeout=_ANSWER_S)


async def remove(client: Client, stream: str) -> None:
    """Delete a stream."""
    await _ask(client, f"$JS.API.STREAM.DELETE.{stream}", {})


def _check_end(stream: str, end: Msg) -> None:
    status = (end.headers or {}).get("Status", _OK)
    if status != _OK:
        said = (end.headers or {}).get("Description", "")
        raise BackupFailed(f"the server ended the snapshot of stream {stream}: {status} {said}", "try again")


def _accept(stream: str, answer: Msg) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(answer.data) if answer.data else {}
    if "error" in fields:
        raise BackupFailed(f"the server refuses stream {stream}: {fields['error'].get('description')}")
    return fields


async def _ask(client: Client, subject: str, body: dict[str, Any], *, missing_ok: bool = False) -> Any:
    answer = await client.request(subject, json.dumps(body).encode(), timeout=_ANSWER_S)
    fields = json.loads(answer.data)
    error = fields.get("error")
    if error is None:
        return fields
    if missing_ok and error.get("err_code") == _NOT_FOUND:
        return None
    raise BackupFailed(f"{subject}: {error.get('description')}")
