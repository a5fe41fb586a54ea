"""Who holds the key of one writer signs what another one writes: each key counts for its kinds of objects."""

from pathlib import Path

import pytest
from tests.libs.signed_objects.writers import Keys, signature_key
from tests.support import refused as attacks

from blob_store import MemoryBlobStore
from identities import objects
from signed_objects import BeyondScope, SigningKey, SigningKeyRefused, TrustedKeys, UnprovenBlob
from signed_objects.keys import OPERATOR, SCOPES, WRITERS, key_file, limit, load_or_make, renew, trusted_file
from signed_objects.signature import sign

STEP = objects.training_step(objects.training_run("m", "run-1"), 7)
MARKER = objects.step_marker(STEP, 0)
BY_KIND = {
    "bases": [objects.policy_manifest("m", 0)],
    "versions": [
        objects.policy_manifest("m", 3),
        objects.policy_fact("m", 3, objects.PUBLISHED),
        objects.policy_fact("m", 3, objects.SAVED),
        objects.policy_fact("m", 0, objects.SAVED),
    ],
    "states": [MARKER, objects.step_marker(objects.training_step(objects.interactive_session("m"), 1), 2)],
    "conversions": [objects.converted_state(MARKER)],
}
ALL = [(kind, key) for kind, keys in BY_KIND.items() for key in keys]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "signing")


@pytest.fixture
def raw() -> MemoryBlobStore:
    return MemoryBlobStore()


async def forged(raw: MemoryBlobStore, keys: Keys, writer: str, key: str) -> None:
    """What a thief of a key does, who uses no store of ours."""
    signer = SigningKey.read(key_file(keys.folder, writer))
    await raw.put(signature_key(key, b"{}"), sign(signer, key, b"{}").to_bytes())
    await raw.put(key, b"{}")


@pytest.mark.parametrize(("kind", "key"), ALL)
@pytest.mark.parametrize("writer", WRITERS)
async def test_a_stolen_key_signs_its_own_kinds_and_no_other(
    kind: str, key: str, writer: str, keys: Keys, raw: MemoryBlobStore
) -> None:
    await forged(raw, keys, writer, key)
    for unsigned in ("refuse", "accept"):  # what is outside of a scope is false, not unsigned
        reader = keys.store(raw, unsigned=unsigned)
        if kind in SCOPES[writer]:
            assert await reader.read(key) == b"{}"
            continue
        with pytest.raises(UnprovenBlob) as refused:
            await reader.read(key)
        for part in (
            key,
            keys.ids[writer],
            writer,
            f"which may sign {', '.join(sorted(SCOPES[writer]))}",
            kind,
        ):
            assert part in str(refused.value)
        attacks.note("signatures with a stolen key of another writer")


def test_the_operators_key_alone_signs_everything() -> None:
    assert SCOPES[OPERATOR] == objects.SIGNED_KINDS == frozenset(BY_KIND)
    for writer in set(WRITERS) - {OPERATOR}:
        assert SCOPES[writer] < objects.SIGNED_KINDS
    assert not SCOPES["grpo_trainer"] & SCOPES["checkpoint_registry"]


@pytest.mark.parametrize(("kind", "key"), ALL)
async def test_a_writer_stores_nothing_that_its_readers_would_refuse(
    kind: str, key: str, keys: Keys, raw: MemoryBlobStore
) -> None:
    trainer = keys.store(raw, "grpo_trainer")
    for write in (trainer.put, trainer.put_if_absent):
        if kind in SCOPES["grpo_trainer"]:
            await write(key, b"{}")
            continue
        with pytest.raises(BeyondScope, match=f"may sign states, versions, and {key} is of the kind {kind}"):
            await write(key, b"{}")
        assert raw.objects == {}


async def test_a_line_without_kinds_counts_for_all_as_before(keys: Keys, raw: MemoryBlobStore) -> None:
    """Files of 0.3.x, and lines that an operator wrote."""
    file = trusted_file(keys.folder)
    lines = [" ".join(line.split()[:3]) + "\n" for line in file.read_text().splitlines()]
    file.write_text("".join(lines))
    for _, key in ALL:
        await forged(raw, keys, "grpo_trainer", key)
        assert await keys.store(raw).read(key) == b"{}"
    load_or_make(keys.folder)
    assert file.read_text() == "".join(lines)  # a start narrows nothing by itself
    limit(keys.folder)
    with pytest.raises(UnprovenBlob, match="which may sign states, versions"):
        await keys.store(raw).read(BY_KIND["bases"][0])
    assert TrustedKeys.read(file).names == {identity: name for name, identity in keys.ids.items()}


def test_a_renewed_key_has_the_scope_of_its_writer(keys: Keys) -> None:
    renew(keys.folder, "grpo_trainer")
    trusted = TrustedKeys.read(trusted_file(keys.folder))
    mine = [trusted.kinds[identity] for identity, name in trusted.names.items() if name == "grpo_trainer"]
    assert mine == [SCOPES["grpo_trainer"]] * 2


@pytest.mark.parametrize("kinds", ["everything", "states,verisons", "", "states,,versions"])
def test_a_kind_that_does_not_exist_is_refused_by_name(keys: Keys, kinds: str) -> None:
    """Else a typing error would leave a key that signs nothing, or everything."""
    file = trusted_file(keys.folder)
    file.write_text(file.read_text().replace("kinds=states,versions", f"kinds={kinds}"))
    with pytest.raises(SigningKeyRefused, match=r"kinds=.*there are: bases, conversions, states, versions"):
        TrustedKeys.read(file)
