"""Keys with which the services of one machine sign what they write to its object store.

A platform that stored something before it had keys accepts what is unsigned, until its operator has signed
that (`upcycle signing sign --apply`). A new one refuses it from its first start.
"""

from pathlib import Path
from typing import Final

from service_kit.groups import SigningSettings
from signed_objects.keys import OPERATOR, WRITERS, key_file, load_or_make, trusted_file

_READERS: Final = frozenset({"policy_engine", "rollout_sampler"})
"""Beside the writers."""
_ACCEPTS_UNSIGNED: Final = "accepts-unsigned"


def signing_folder(data_dir: Path) -> Path:
    """Where the keys of the stack in a data folder are."""
    return data_dir / "signing"


def make_keys(data_dir: Path) -> None:
    """At the first start; later ones change nothing. Raises SigningKeyRefused."""
    folder = signing_folder(data_dir)
    if not folder.exists() and (data_dir / "s3").exists():
        # In one step: a folder without the mark would refuse what was stored before.
        partial = folder.with_name(f"{folder.name}.partial")
        partial.mkdir(mode=0o700, exist_ok=True)
        (partial / _ACCEPTS_UNSIGNED).touch()
        partial.rename(folder)
    load_or_make(folder)


def accepts_unsigned(data_dir: Path) -> bool:
    """Whether the stack still uses what was stored before it had keys."""
    return _accepting(data_dir).exists()


def refuse_unsigned(data_dir: Path) -> None:
    """From the next start on."""
    _accepting(data_dir).unlink(missing_ok=True)


def operator_settings(data_dir: Path) -> SigningSettings:
    """What signs, and what is trusted, where the operator signs."""
    folder = signing_folder(data_dir)
    return SigningSettings(key=key_file(folder, OPERATOR), trusted=trusted_file(folder))


def signing_env(data_dir: Path, service: str) -> dict[str, str]:
    """Settings of a service; none for one that reads and writes no manifest or state."""
    folder = signing_folder(data_dir)
    if service not in _READERS and service not in WRITERS:
        return {}
    key = {"UPCYCLE_SIGNING_KEY": str(key_file(folder, service))} if service in WRITERS else {}
    unsigned = {"UPCYCLE_SIGNING_UNSIGNED": "accept"} if accepts_unsigned(data_dir) else {}
    return {"UPCYCLE_SIGNING_TRUSTED": str(trusted_file(folder)), **key, **unsigned}


def _accepting(data_dir: Path) -> Path:
    return signing_folder(data_dir) / _ACCEPTS_UNSIGNED
