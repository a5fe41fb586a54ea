"""What leads to weights and states is signed where it is written, and proven before it is read."""

import json
import re
import time
from pathlib import Path

import pytest
from tests.libs.signed_objects.writers import Keys, signature_key, signer_of

from blob_store import MemoryBlobStore, S3BlobStore, ref_of_bytes
from identities import objects
from service_kit.groups import S3Settings, SigningSettings, WriterSigningSettings
from service_kit.settings import SettingsError, load_settings
from signed_objects import UnprovenBlob, signed_store
from signed_objects.keys import OPERATOR, key_file, renew, trusted_file

MANIFEST = objects.policy_manifest("m/odd name", 3)
LINE = objects.training_run("m", "run-1")
MARKER = objects.step_marker(objects.training_step(LINE, 7), 0)
BODY = objects.trajectory_body("run-1", "e1")
SIGNED = [
    MANIFEST,
    objects.policy_fact("m", 3, objects.PUBLISHED),
    objects.policy_fact("m", 3, objects.SAVED),
    MARKER,
    objects.step_marker(objects.training_step(LINE, 7), 12),
    objects.step_marker(objects.training_step(objects.interactive_session("m"), 1), 0),
]
UNSIGNED = [
    BODY,
    objects.packed_source("a" * 64),
    objects.trainer_lease("m", 1),
    f"{objects.policy_version('m', 3)}/0123456789abcdef/manifest.json",
    f"{LINE}/closed.json",
    f"{LINE}/step-00000007/0123456789abcdef/state.json",
]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "signing")


@pytest.fixture
def raw() -> MemoryBlobStore:
    return MemoryBlobStore()


@pytest.mark.parametrize("key", SIGNED)
async def test_what_leads_to_weights_and_states_bears_the_writers_signature(
    key: str, keys: Keys, raw: MemoryBlobStore
) -> None:
    writer, reader = keys.store(raw, "grpo_trainer"), keys.store(raw)
    ref = await writer.put_if_absent(key, b"{}")
    assert ref == ref_of_bytes(key, b"{}")
    assert await signer_of(raw, key) == keys.ids["grpo_trainer"]
    assert await reader.read(key) == await reader.get(ref) == b"{}"
    assert set(raw.objects) == {key, signature_key(key, b"{}")}
    assert objects.parse_signature(signature_key(key, b"{}")) == key


@pytest.mark.parametrize("key", UNSIGNED)
async def test_other_objects_pass_without_a_signature(key: str, keys: Keys, raw: MemoryBlobStore) -> None:
    await keys.store(raw, "grpo_trainer").put(key, b"body")
    assert await keys.store(raw).read(key) == b"body"
    assert set(raw.objects) == {key}
    assert objects.parse_signature(signature_key(key, b"body")) is None


@pytest.mark.parametrize("key", SIGNED)
async def test_an_object_without_a_signature_is_refused_by_name_with_the_way_out(
    key: str, keys: Keys, raw: MemoryBlobStore
) -> None:
    await raw.put(key, b"{}")
    with pytest.raises(UnprovenBlob, match=r"no signature of these bytes.*upcycle signing sign") as refused:
        await keys.store(raw).read(key)
    assert str(refused.value).startswith(f"{key} is not used: ")
    with pytest.raises(UnprovenBlob):
        await keys.store(raw).get(ref_of_bytes(key, b"{}"))


async def test_altered_bytes_are_refused(keys: Keys, raw: MemoryBlobStore) -> None:
    await keys.store(raw, "grpo_trainer").put(MANIFEST, b'{"digest":"a"}')
    await raw.put(MANIFEST, b'{"digest":"b"}')
    with pytest.raises(UnprovenBlob, match="written without a key, or altered since"):
        await keys.store(raw).read(MANIFEST)


@pytest.mark.parametrize("unsigned", ["refuse", "accept"])
async def test_a_signature_that_was_moved_to_other_bytes_or_another_place_is_false(
    unsigned: str, keys: Keys, raw: MemoryBlobStore
) -> None:
    await keys.store(raw, "grpo_trainer").put(MANIFEST, b"one")
    genuine = raw.objects[signature_key(MANIFEST, b"one")]
    reader = keys.store(raw, unsigned=unsigned)
    for key, data in (
        (MANIFEST, b"two"),
        (objects.policy_manifest("m/odd name", 4), b"one"),
        (MARKER, b"one"),
    ):
        await raw.put(key, data)
        await raw.put(signature_key(key, data), genuine)
        with pytest.raises(UnprovenBlob, match="altered or moved") as refused:
            await reader.read(key)
        assert f"{keys.ids['grpo_trainer']} (grpo_trainer)" in str(refused.value)


async def test_a_key_that_is_not_trusted_proves_nothing(
    keys: Keys, raw: MemoryBlobStore, tmp_path: Path
) -> None:
    other = Keys(tmp_path / "other")
    await other.store(raw, "grpo_trainer").put(MANIFEST, b"{}")
    with pytest.raises(UnprovenBlob, match=re.escape(f"{other.ids['grpo_trainer']}, which is not trusted")):
        await keys.store(raw).read(MANIFEST)


@pytest.mark.parametrize(
    "stored", [b"", b"no json", b"[]", b"{}", b'{"key":"k","value":"!"}', b'{"key":1,"value":2}']
)
async def test_a_signature_that_is_none_is_refused(stored: bytes, keys: Keys, raw: MemoryBlobStore) -> None:
    await raw.put(MANIFEST, b"{}")
    await raw.put(signature_key(MANIFEST, b"{}"), stored)
    for unsigned in ("refuse", "accept"):
        with pytest.raises(UnprovenBlob, match="its signature cannot be read"):
            await keys.store(raw, unsigned=unsigned).read(MANIFEST)


async def test_a_truncated_signature_is_false(keys: Keys, raw: MemoryBlobStore) -> None:
    await keys.store(raw, "grpo_trainer").put(MANIFEST, b"{}")
    place = signature_key(MANIFEST, b"{}")
    plain = json.loads(raw.objects[place])
    await raw.put(place, json.dumps({**plain, "value": plain["value"][:8]}).encode())
    with pytest.raises(UnprovenBlob, match="altered or moved"):
        await keys.store(raw).read(MANIFEST)


async def test_an_old_writer_beside_a_new_reader_is_a_setting(
    keys: Keys, raw: MemoryBlobStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A rolling upgrade: the writer of the last release signs nothing."""
    await raw.put_if_absent(MANIFEST, b"{}")
    assert await keys.store(raw, unsigned="accept").read(MANIFEST) == b"{}"
    assert [record.msg for record in caplog.records] == ["unsigned_object_accepted"]
    with pytest.raises(UnprovenBlob):
        await keys.store(raw, unsigned="refuse").read(MANIFEST)


async def test_a_new_writer_beside_an_old_reader_changes_no_object(keys: Keys, raw: MemoryBlobStore) -> None:
    await keys.store(raw, "grpo_trainer").put_if_absent(MANIFEST, b"{}")
    assert await raw.read(MANIFEST) == b"{}"
    assert [key for key in await raw.list("") if objects.parse_policy_manifest(key)] == [MANIFEST]


async def test_without_keys_nothing_changes(raw: MemoryBlobStore) -> None:
    store = signed_store(raw, SigningSettings(), "test")
    await store.put(MANIFEST, b"{}")
    assert await store.read(MANIFEST) == b"{}"
    assert set(raw.objects) == {MANIFEST}


async def test_the_writer_that_lost_a_race_does_not_take_the_winners_signature(
    keys: Keys, raw: MemoryBlobStore
) -> None:
    first, second = keys.store(raw, "grpo_trainer"), keys.store(raw, OPERATOR)
    assert await first.put_if_absent(MARKER, b"first") is not None
    assert await second.put_if_absent(MARKER, b"second") is None
    assert await keys.store(raw).read(MARKER) == b"first"
    assert await signer_of(raw, MARKER) == keys.ids["grpo_trainer"]


async def test_several_keys_count_at_once_until_one_is_taken_out(keys: Keys, raw: MemoryBlobStore) -> None:
    await keys.store(raw, "grpo_trainer").put(MANIFEST, b"{}")
    old = keys.ids["grpo_trainer"]
    renew(keys.folder, "grpo_trainer")
    await keys.store(raw, "grpo_trainer").put(MARKER, b"{}")
    reader = keys.store(raw)
    assert await signer_of(raw, MARKER) != await signer_of(raw, MANIFEST) == old
    assert await reader.read(MANIFEST) == await reader.read(MARKER) == b"{}"
    lines = trusted_file(keys.folder).read_text().splitlines(keepends=True)
    trusted_file(keys.folder).write_text("".join(lines[1:]))
    assert await keys.store(raw).read(MARKER) == b"{}"
    with pytest.raises(UnprovenBlob, match="not trusted here"):
        await keys.store(raw).read(MANIFEST)


async def test_a_signed_object_is_never_a_file(keys: Keys, raw: MemoryBlobStore, tmp_path: Path) -> None:
    store = keys.store(raw, "grpo_trainer")
    (tmp_path / "file").write_bytes(b"{}")
    with pytest.raises(ValueError, match="as bytes, not as a file"):
        await store.put_file(MANIFEST, tmp_path / "file")
    await raw.put(MANIFEST, b"{}")
    with pytest.raises(ValueError, match="as bytes, not as a file"):
        await store.get_file(ref_of_bytes(MANIFEST, b"{}"), tmp_path / "out")


def test_a_process_whose_readers_would_refuse_it_does_not_start(keys: Keys, tmp_path: Path) -> None:
    other = Keys(tmp_path / "other")
    settings = SigningSettings(key=key_file(other.folder, "operator"), trusted=trusted_file(keys.folder))
    with pytest.raises(SettingsError, match="would refuse what it wrote"):
        signed_store(MemoryBlobStore(), settings, "grpo_trainer")
    with pytest.raises(SettingsError, match="UPCYCLE_SIGNING_KEY: this process would refuse"):
        load_settings(
            WriterSigningSettings, environ={"UPCYCLE_SIGNING_TRUSTED": str(trusted_file(keys.folder))}
        )
    with pytest.raises(SettingsError, match="says nothing"):
        load_settings(SigningSettings, environ={"UPCYCLE_SIGNING_UNSIGNED": "accept"})


async def test_on_a_real_store(keys: Keys, s3_settings: S3Settings) -> None:
    real = S3BlobStore(s3_settings)
    await real.start()
    try:
        assert await keys.store(real, "grpo_trainer").put_if_absent(MANIFEST, b"{}") is not None
        assert await keys.store(real).read(MANIFEST) == b"{}"
        await real.put(MANIFEST, b"[]")
        with pytest.raises(UnprovenBlob):
            await keys.store(real).read(MANIFEST)
    finally:
        await real.stop()


async def test_signing_and_proving_take_less_than_a_millisecond(keys: Keys, raw: MemoryBlobStore) -> None:
    """Of a processor, beside the requests to the store."""
    data, num = b"x" * 20_000, 100
    writer, reader = keys.store(raw, "grpo_trainer"), keys.store(raw)
    markers = [objects.step_marker(objects.training_step(LINE, step), 0) for step in range(num)]
    began = time.process_time()
    for marker in markers:
        await writer.put_if_absent(marker, data)
        await reader.read(marker)
    assert (time.process_time() - began) / num < 1e-3
