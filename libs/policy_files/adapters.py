"""The low-rank adapter of a version, beside its whole weights: for engines that hold many versions over one
base. In PEFT's format, in a folder of its own, which nothing reads that loads whole weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from policy_files.errors import InvalidPolicyDir

ADAPTER_FOLDER: Final = "adapter"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ADAPTER_CONFIG: Final = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What an adapter is added to: the version whose digest is `base_digest`."""

    folder: Path
    base_digest: str
    rank: int


def adapter_of(directory: Path) -> AdapterInfo | None:
    """Of a policy directory; None where the version was trained whole, or before versions had adapters.

    Raises InvalidPolicyDir where there is one that does not say what it is added to.
    """
    folder = directory / ADAPTER_FOLDER
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return AdapterInfo(folder, str(config["base_model_name_or_path"]), int(config["r"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidPolicyDir(f"{path} names no base and rank of its adapter: {error!r}") from error
