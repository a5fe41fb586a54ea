"""`python -m service_kit.ready_command PORT`: what /readyz of a process beside it says, for health checks.

Prints one line, which `docker inspect` keeps, and exits with 0 when the process is ready, else with 1.
"""

import json
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Final

_TIMEOUT_S: Final = 3.0


def ready(port: int, timeout_s: float = _TIMEOUT_S) -> tuple[bool, str]:
    """Whether the process with this port is ready, and why not."""
    url = f"http://127.0.0.1:{port}/readyz"
    try:
        try:
            with urllib.request.urlopen(url, timeout=timeout_s) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                body = json.load(refused)
    except (OSError, HTTPException, ValueError) as error:
        return False, f"no answer from {url} within {timeout_s:g} s: {error}"
    reasons = [f"{component}: {why}" for component, why in body["reasons"].items()]
    if body["ready"]:
        return True, f"{body['service']} is ready"
    return False, f"{body['service']} is not ready ({body['phase']}): {'; '.join(reasons) or 'no reason'}"


def main() -> None:
    """The command."""
    is_ready, text = ready(int(sys.argv[1]))
    print(text)
    sys.exit(0 if is_ready else 1)


if __name__ == "__main__":
    main()
