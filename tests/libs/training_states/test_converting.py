"""An operator converts states that hold pickles; what is not proven or cannot be read is left, and named."""

import asyncio
import json
import pickle
import resource
import signal
from pathlib import Path

import pytest
import torch
from tests.libs.signed_objects.writers import Keys, signer_of
from tests.support.pickled_states import put_pickled, write_pickled

from blob_store import BlobRef, BlobStore, MemoryBlobStore, S3BlobStore
from identities import objects
from service_kit.groups import S3Settings
from signed_objects import SignedStore, SigningKey, TrustedKeys, UnprovenBlob
from signed_objects.keys import OPERATOR, key_file, trusted_file
from signed_objects.migration import unproven
from training_states import ConvertedState
from training_states.converting import convert_all, old_states
from training_states.files import read_tensors
from upcycle.cli.exits import Exit
from upcycle.cli.main import run

FOLDER = objects.training_step(objects.training_run("m", "run-1"), 1)
MARKER = objects.step_marker(FOLDER, 0)
RECORD = objects.converted_state(MARKER)
TENSORS = {
    "model/a": torch.rand(3),
    "optimizer/a/step": torch.tensor(4.0),
    "model/b": torch.rand(2).bfloat16(),
}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "signing")


def of_operator(keys: Keys, raw: BlobStore) -> SignedStore:
    signer = SigningKey.read(key_file(keys.folder, OPERATOR))
    return SignedStore(raw, signer=signer, trusted=TrustedKeys.read(trusted_file(keys.folder)))


def marker_of(files: tuple[BlobRef, ...]) -> bytes:
    tensors = [{"key": one.key, "sha256": one.sha256, "size_bytes": one.size_bytes} for one in files]
    return json.dumps({"spec": {"model": "m", "run_id": "run-1"}, "step": 1, "tensors": tensors}).encode()


async def earlier(store: BlobStore, folder: Path) -> None:
    """One state of an earlier trainer, and a claim."""
    write_pickled(folder, TENSORS)
    await store.put(MARKER, marker_of(await put_pickled(store, FOLDER, folder)))
    await store.put(objects.step_marker(FOLDER, 1), json.dumps({"claim": {"token": 2, "by": "t"}}).encode())


async def test_the_tensors_come_back_bit_for_bit_and_the_operator_has_signed(
    keys: Keys, tmp_path: Path
) -> None:
    raw = MemoryBlobStore()
    await earlier(keys.store(raw, "grpo_trainer"), tmp_path / "old")
    before = dict(raw.objects)
    store = of_operator(keys, raw)
    num_states, found = await old_states(store)
    assert (num_states, [one.key for one in found]) == (1, [MARKER])
    assert await convert_all(store, found) == []
    assert await old_states(store) == (1, [])
    assert before.items() <= raw.objects.items()  # nothing was changed
    assert await signer_of(raw, RECORD) == keys.ids[OPERATOR]
    assert (await unproven(raw, TrustedKeys.read(trusted_file(keys.folder))))[1] == []
    files = ConvertedState.parse(raw.objects[RECORD], raw.objects[MARKER]).files
    (tmp_path / "new").mkdir()
    for file in files:
        await raw.get_file(file, tmp_path / "new" / file.key.rpartition("/")[2])
    now = read_tensors(tmp_path / "new")
    assert now.keys() == TENSORS.keys()
    for name, one in TENSORS.items():
        assert torch.equal(now[name], one)
        assert now[name].dtype == one.dtype


async def test_an_unsigned_record_is_not_used(keys: Keys, tmp_path: Path) -> None:
    raw = MemoryBlobStore()
    await earlier(keys.store(raw, "grpo_trainer"), tmp_path / "old")
    _, found = await old_states(raw)
    await convert_all(raw, found)  # who can write to the store, and has no key
    with pytest.raises(UnprovenBlob, match="no signature of these bytes"):
        await keys.store(raw, "grpo_trainer").read(RECORD)


async def test_a_state_that_is_not_proven_or_whose_files_are_broken_is_left_and_named(
    keys: Keys, tmp_path: Path
) -> None:
    raw = MemoryBlobStore()
    await earlier(keys.store(raw, "grpo_trainer"), tmp_path / "old")
    other = MARKER.replace("run-1", "run-2")
    raw.objects[other] = raw.objects[MARKER]
    for key in raw.objects:
        if key.endswith("/.metadata"):
            raw.objects[key] = b"cos\nsystem\n(S'true'\ntR."
    store = of_operator(keys, raw)
    num_states, found = await old_states(store)
    left = {one.key: one.broken for one in await convert_all(store, found)}
    assert (num_states, sorted(left)) == (2, sorted([MARKER, other]))
    assert "expected" in left[MARKER]  # its digest is another
    assert "is not used" in left[other]
    assert not any(map(objects.parse_converted_state, raw.objects))


async def test_a_state_that_breaks_the_reader_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Its index is one that torch reads, and asks for a tensor of less than nothing."""
    store, other = MemoryBlobStore(), FOLDER.replace("run-1", "run-0")
    await earlier(store, tmp_path / "good")
    write_pickled(tmp_path / "bad", TENSORS)
    index = tmp_path / "bad" / ".metadata"
    found = pickle.loads(index.read_bytes())  # noqa: S301 - written above
    found.state_dict_metadata["model/a"].size = torch.Size([-1])
    index.write_bytes(pickle.dumps(found))
    await store.put(
        objects.step_marker(other, 0), marker_of(await put_pickled(store, other, tmp_path / "bad"))
    )
    _, states = await old_states(store)
    (left,) = await convert_all(store, states)
    assert left.key == objects.step_marker(other, 0)
    assert "negative" in left.broken
    assert RECORD in store.objects


@pytest.mark.parametrize("lost", ["a file", "the record"])
async def test_what_was_lost_of_a_conversion_is_converted_again(
    keys: Keys, tmp_path: Path, lost: str
) -> None:
    """A trainer removes what no marker names, also of a conversion that is under way."""
    raw = MemoryBlobStore()
    await earlier(keys.store(raw, "grpo_trainer"), tmp_path / "old")
    store = of_operator(keys, raw)
    _, found = await old_states(store)
    await convert_all(store, found)
    whole = dict(raw.objects)
    if lost == "a file":
        (key,) = [key for key in raw.objects if key.endswith("/tensors.safetensors")]
        del raw.objects[key]
    else:
        raw.objects[RECORD] = b"{}"
    _, again = await old_states(store)
    assert [one.key for one in again] == [MARKER]
    assert await convert_all(store, again) == []
    assert await old_states(store) == (1, [])
    assert raw.objects.keys() == whole.keys()


async def test_a_disk_that_is_full_leaves_a_state_by_name(tmp_path: Path) -> None:
    store = MemoryBlobStore()
    await earlier(store, tmp_path / "old")
    _, states = await old_states(store)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        (left,) = await convert_all(store, states)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "File too large" in left.broken
    assert RECORD not in store.objects
    assert await convert_all(store, states) == []


@pytest.mark.parametrize("changed", ["marker", "files"])
def test_a_record_of_another_marker_or_of_pickles_is_refused(changed: str) -> None:
    marker, files = b"{}", (BlobRef("t/index.json", "0" * 64, 1),)
    assert ConvertedState.parse(ConvertedState.of(marker, files).to_bytes(), marker).files == files
    record = ConvertedState.of(
        b"other" if changed == "marker" else marker,
        (*files, BlobRef("t/.metadata", "0" * 64, 1)) if changed == "files" else files,
    )
    with pytest.raises(ValueError, match=r"(marker with sha256|without a pickle)"):
        ConvertedState.parse(record.to_bytes(), marker)


def test_the_command_lists_and_converts_what_a_real_store_has(
    keys: Keys, s3_settings: S3Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    async def store_one() -> None:
        raw = S3BlobStore(s3_settings)
        await raw.start()
        await earlier(keys.store(raw, "grpo_trainer"), tmp_path / "old")
        await raw.stop()

    asyncio.run(store_one())
    for name, value in s3_settings:
        shown = value.get_secret_value() if hasattr(value, "get_secret_value") else value
        if shown is not None:
            monkeypatch.setenv(f"UPCYCLE_S3_{name.upper()}", str(shown))
    monkeypatch.setenv("UPCYCLE_SIGNING_TRUSTED", str(trusted_file(keys.folder)))
    assert run(["states", "convert"]) == Exit.USAGE  # without the operator's key
    monkeypatch.setenv("UPCYCLE_SIGNING_KEY", str(key_file(keys.folder, OPERATOR)))
    capsys.readouterr()
    for command, left in ((["--json"], 1), (["--apply", "--json"], 0), (["--json"], 0)):
        assert run(["states", "convert", *command]) == Exit.OK
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert (said[-1]["states"], said[-1]["left"]) == (1, left)
