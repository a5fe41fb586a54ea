"""Keys of the bus: made once, for their owner alone; a file that is none is refused by name."""

import os
from pathlib import Path

import pytest

from event_bus.accounts import write_accounts
from event_bus.keys import BusKeyRefused, load_or_make, public_key, renew, seed_file
from event_bus.rights import IDENTITIES


def test_keys_are_made_once_and_each_is_its_own(tmp_path: Path) -> None:
    made = load_or_make(tmp_path, IDENTITIES)

    assert load_or_make(tmp_path, IDENTITIES) == made
    assert len(set(made.values())) == len(IDENTITIES)
    assert all(key.startswith("U") for key in made.values())
    for name in IDENTITIES:
        path = seed_file(tmp_path, name)
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_one_key_is_renewed_and_the_others_stay(tmp_path: Path) -> None:
    made = load_or_make(tmp_path, IDENTITIES)
    renew(tmp_path, "reward_grader")
    found = load_or_make(tmp_path, IDENTITIES)

    assert {name for name in IDENTITIES if found[name] != made[name]} == {"reward_grader"}


def test_what_the_server_includes_holds_no_seed(tmp_path: Path) -> None:
    text = write_accounts(tmp_path).read_text()

    for name in IDENTITIES:
        assert public_key(seed_file(tmp_path, name)) in text
        assert seed_file(tmp_path, name).read_text().strip() not in text


def test_a_password_that_is_kept_is_not_for_everybody(tmp_path: Path) -> None:
    path = write_accounts(tmp_path, login=("upcycle", "secret"))
    assert '"password": "secret"' in path.read_text()
    assert path.stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("content", [b"", b"SUAX", b"no key", bytes(range(128, 186))])
def test_a_file_without_a_seed_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bus.nk"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BusKeyRefused, match=r"bus\.nk holds no seed"):
        public_key(path)


def test_the_seed_of_a_server_is_refused(tmp_path: Path) -> None:
    import nkeys

    path = tmp_path / "bus.nk"
    path.write_bytes(bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_SERVER)))
    path.chmod(0o600)
    with pytest.raises(BusKeyRefused, match="is of no user: its public key begins with N"):
        public_key(path)


def test_a_key_that_strangers_can_open_is_refused(tmp_path: Path) -> None:
    load_or_make(tmp_path, ["operator"])
    path = seed_file(tmp_path, "operator")
    path.chmod(0o640)  # as a secret that is mounted into a container
    assert public_key(path)
    path.chmod(0o644)
    with pytest.raises(BusKeyRefused, match="other users can open the key"):
        public_key(path)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(BusKeyRefused, match=r"none\.nk cannot be read: No such file"):
        public_key(tmp_path / "none.nk")
