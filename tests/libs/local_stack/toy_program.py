"""A program for supervisor tests: answers /readyz on PORT, and misbehaves as MODE says.

Standard library only, and nothing heavy: the tests start dozens of them.
"""

import os
import signal
import socket
import subprocess
import sys
import time

ANSWER = b"HTTP/1.0 200 OK\r\n\r\n{}"
NOT_YET = b'HTTP/1.0 503 Wait\r\n\r\n{"reasons": {"toy": "thinking"}}'


def main() -> None:
    """Modes: good, deaf (ignores SIGTERM), crash, misconfigured, never (ready), parent (of others)."""
    mode = os.environ.get("MODE", "good")
    print(f"toy starts as {mode}", flush=True)
    if mode in ("crash", "misconfigured"):
        print("toy cannot work: no oil", flush=True)
        sys.exit(3 if mode == "crash" else 2)
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: _leave())
    if mode == "parent":
        _start_children()
    _serve(NOT_YET if mode == "never" else ANSWER)


def _leave() -> None:
    with open(os.environ["STOP_LOG"], "a") as log:
        log.write(f"{os.environ['NAME']}\n")
    sys.exit(0)


def _start_children() -> None:
    """One child in our group, and one that escapes into a session of its own."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)


def _serve(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))) as server:
        while True:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(answer)
            connection.close()
            time.sleep(0)


if __name__ == "__main__":
    main()
