"""The gateway's file of providers, of local servers that answer for them."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.support.model_servers import KEY, MODEL


def providers_file(folder: Path, servers: Mapping[str, tuple[str, str]]) -> Path:
    """servers: URL without a path, and dialect, by the provider's name. Each has one model, `large`."""
    (folder / "provider.key").write_text(KEY)
    (folder / "provider.key").chmod(0o600)
    providers = {
        name: {
            "url": f"{url}/v1",
            "dialect": dialect,
            "key_file": "provider.key",
            "models": {"large": {"upstream_name": MODEL}},
        }
        for name, (url, dialect) in servers.items()
    }
    path = folder / "providers.json"
    path.write_text(json.dumps({"providers": providers}))
    return path
