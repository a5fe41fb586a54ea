"""Files of keys: made private, read only where no other user can open them, and what standard tools make."""

import stat
import subprocess
from pathlib import Path

import pytest

from signed_objects import SigningKey, SigningKeyRefused, TrustedKeys
from signed_objects.keys import SCOPES, WRITERS, key_file, limit, load_or_make, renew, trusted_file


def test_each_writer_gets_a_key_of_its_own_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    ids = load_or_make(tmp_path)
    assert set(ids) == set(WRITERS)
    assert len({*ids.values()}) == len(WRITERS)
    for writer in WRITERS:
        file = key_file(tmp_path, writer)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert SigningKey.read(file).id == ids[writer]
    trusted = TrustedKeys.read(trusted_file(tmp_path))
    assert {trusted.names[identity]: identity for identity in trusted.keys} == ids


def test_made_again_the_keys_stay_and_no_line_is_added(tmp_path: Path) -> None:
    ids, before = load_or_make(tmp_path), trusted_file(tmp_path).read_bytes()
    assert load_or_make(tmp_path) == ids
    assert trusted_file(tmp_path).read_bytes() == before


def test_a_renewed_key_is_trusted_beside_the_old_one(tmp_path: Path) -> None:
    before = load_or_make(tmp_path)
    renew(tmp_path, "grpo_trainer")
    after = load_or_make(tmp_path)
    assert after["grpo_trainer"] != before["grpo_trainer"]
    assert {*TrustedKeys.read(trusted_file(tmp_path)).keys} == {*before.values(), after["grpo_trainer"]}


def test_a_private_key_that_others_can_open_is_refused(tmp_path: Path) -> None:
    load_or_make(tmp_path)
    file = key_file(tmp_path, "operator")
    file.chmod(0o604)
    with pytest.raises(SigningKeyRefused, match=f"other users can open the signing key {file}; chmod 600"):
        SigningKey.read(file)


@pytest.mark.parametrize(
    "text", ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_file_without_a_key_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(SigningKeyRefused, match=f"{file} holds no private key"):
        SigningKey.read(file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no key"),
        ("# a comment\n\n", "names no key"),
        ("ssh-ed25519 AAAA x", "is no public key"),
        ("-----BEGIN PUBLIC KEY-----", "is no public key"),
        ("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ==", "is no public key"),
    ],
)
def test_a_file_without_public_keys_is_refused(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "trusted.pub").write_text(text)
    with pytest.raises(SigningKeyRefused, match=why):
        TrustedKeys.read(tmp_path / "trusted.pub")


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(SigningKeyRefused, match=f"{tmp_path}/none cannot be read"):
        SigningKey.read(tmp_path / "none")
    with pytest.raises(SigningKeyRefused, match=f"{tmp_path}/none cannot be read"):
        TrustedKeys.read(tmp_path / "none")


def test_openssl_makes_keys_that_count(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", file], check=True, timeout=30)
    file.chmod(0o600)
    assert SigningKey.read(file).id.startswith("SHA256:")
    subprocess.run(["openssl", "genpkey", "-algorithm", "x25519", "-out", file], check=True, timeout=30)
    with pytest.raises(SigningKeyRefused, match="is not of ed25519"):
        SigningKey.read(file)


def test_notes_in_the_file_of_trusted_keys_stay_when_keys_are_limited(tmp_path: Path) -> None:
    """A person who takes a line out of use puts a # before it."""
    ids = load_or_make(tmp_path)
    path = trusted_file(tmp_path)
    lines = [line.rpartition(" kinds=")[0] or line for line in path.read_text().splitlines()]
    notes = ["", "# was grpo_trainer", f"#{lines[0]}", f"# {lines[0]}"]
    path.write_text("\n".join([*notes, *lines]) + "\n")
    limit(tmp_path)
    assert path.read_text().splitlines()[: len(notes)] == notes
    trusted = TrustedKeys.read(path)
    assert trusted.scope(ids["grpo_trainer"]) == SCOPES["grpo_trainer"]
    assert trusted.scope(ids["checkpoint_registry"]) == SCOPES["checkpoint_registry"]


def test_a_key_that_a_person_limited_further_stays_so(tmp_path: Path) -> None:
    ids, path = load_or_make(tmp_path), trusted_file(tmp_path)
    path.write_text(path.read_text().replace("kinds=states,versions", "kinds=states"))
    limit(tmp_path)
    assert TrustedKeys.read(path).scope(ids["grpo_trainer"]) == {"states"}
