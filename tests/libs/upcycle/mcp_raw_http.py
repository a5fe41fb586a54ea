"""An MCP server at a URL without an SDK, whose one tool answers as much as it is asked for, in many ways."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NUM_BYTES = 50_000_000
PIECE = b"x" * (1 << 20)


class Large(ThreadingHTTPServer):
    """way: json, json without a length, json in gzip, stream. num_sent: bytes of the last answer's text that
    were taken from it."""

    daemon_threads = True

    def __init__(self, way: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.way, self.num_sent = way, 0


class _Answers(BaseHTTPRequestHandler):
    server: Large

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in asked:
            self.send_response(202)
            self.end_headers()
        elif asked["method"] == "tools/call" and asked["params"]["name"] == "large":
            with suppress(OSError):
                self._large(asked["id"])
        else:
            row = {"jsonrpc": "2.0", "id": asked["id"], **_said(asked["method"])}
            self._begin("application/json")
            self.wfile.write(json.dumps(row).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _large(self, call: Any) -> None:
        row = {"jsonrpc": "2.0", "id": call, "result": {"content": [{"type": "text", "text": "@"}]}}
        before, after = json.dumps(row).encode().split(b"@")
        way, self.server.num_sent = self.server.way, 0
        if way == "json in gzip":
            self._begin("application/json", ("content-encoding", "gzip"))
            self.wfile.write(gzip.compress(before + b"x" * NUM_BYTES + after, 1))
            return
        length = ("content-length", str(len(before) + NUM_BYTES + len(after)))
        self._begin(
            "text/event-stream" if way == "stream" else "application/json", *[length][: way == "json"]
        )
        self.wfile.write(b"data: " * (way == "stream") + before)
        while self.server.num_sent < NUM_BYTES:
            self.wfile.write(PIECE[: NUM_BYTES - self.server.num_sent])
            self.server.num_sent += len(PIECE)
        self.wfile.write(after + b"\n\n")

    def _begin(self, content_type: str, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for key, value in (("content-type", content_type), *headers):
            self.send_header(key, value)
        self.end_headers()


def _said(method: str) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "raw", "version": "1"}
        return {
            "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        }
    if method == "tools/list":
        schema = {"type": "object"}
        return {
            "result": {"tools": [{"name": name, "inputSchema": schema} for name in ("large", "forecast")]}
        }
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": "rain"}]}}
    return {"error": {"code": -32601, "message": "no such method"}}


@contextmanager
def serving(way: str) -> Iterator[tuple[str, Large]]:
    """Its URL and the server, while the block runs."""
    with Large(way) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", server
        finally:
            server.shutdown()
            thread.join()
