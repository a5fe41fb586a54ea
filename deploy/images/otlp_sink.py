"""Stands in for the OpenTelemetry collector: accepts OTLP over HTTP on port 4318 and forgets it."""

import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Sink(BaseHTTPRequestHandler):
    """Reads what is posted and says that all of it was accepted."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """An empty export response: nothing was refused."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a container would ignore it
    ThreadingHTTPServer(("0.0.0.0", 4318), Sink).serve_forever()  # noqa: S104 - inside a container
