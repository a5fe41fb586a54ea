"""What the object store says about policies: weights digests, tokenizers and templates, each read once."""

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blob_store import BlobRef, BlobStore, CorruptBlob, MissingBlob
from blob_store.ref import from_wire as blob_from_wire
from chat_format import ChatFormat, InvalidModelDir
from episodes import EpisodeBroken, EpisodeFailure
from policy_files import PolicyFilesError, UnknownPolicy, load
from rollout_sampler.adapters.shared_results import SharedResults
from upcycle.api.training.v1.training_pb2 import PolicyManifest
from upcycle.errors import Unavailable

_FORMAT_FILES: Final = frozenset(
    {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}
)
_KEPT_MANIFESTS: Final = 64
_KEPT_FORMATS: Final = 8


@dataclass(frozen=True, slots=True)
class PolicyFormat:
    """Tokenizer and template of a policy, and the text of each of its tokens alone."""

    chat: ChatFormat
    texts: Mapping[int, str]


class PolicyFiles:
    """Weights digest and chat format of each version. All methods raise Unavailable and EpisodeBroken."""

    def __init__(self, store: BlobStore, cache_dir: Path) -> None:
        self._store = store
        self._cache_dir = cache_dir
        self._manifests: SharedResults[tuple[str, int], PolicyManifest] = SharedResults(_KEPT_MANIFESTS)
        self._formats: SharedResults[str, PolicyFormat] = SharedResults(_KEPT_FORMATS)

    async def chat_format(self, model: str, version: int) -> PolicyFormat:
        """Tokenizer and template of a version; versions with the same files share one."""
        manifest = await self._manifest(model, version)
        refs = {file.name: blob_from_wire(file.blob) for file in manifest.files if file.name in _FORMAT_FILES}
        digest = _digest(refs)
        return await self._formats(digest, lambda: self._load_format(digest, refs))

    async def weights_digest(self, model: str, version: int) -> str:
        """Digest of a version's weights, from its manifest."""
        return (await self._manifest(model, version)).digest

    async def _manifest(self, model: str, version: int) -> PolicyManifest:
        return await self._manifests((model, version), lambda: self._read(model, version))

    async def _read(self, model: str, version: int) -> PolicyManifest:
        try:
            return await load(self._store, model, version)
        except UnknownPolicy as error:
            raise Unavailable(f"policy {model}@v{version} to be published") from error
        except (PolicyFilesError, CorruptBlob) as error:
            raise EpisodeBroken(EpisodeFailure.POLICY_UNREADABLE, str(error)) from error

    async def _load_format(self, digest: str, refs: Mapping[str, BlobRef]) -> PolicyFormat:
        try:
            folder = await self._fetch(digest, refs)
            chat = await asyncio.to_thread(ChatFormat.load, folder)
        except (InvalidModelDir, CorruptBlob, MissingBlob) as error:
            raise EpisodeBroken(EpisodeFailure.POLICY_UNREADABLE, str(error)) from error
        return PolicyFormat(chat, _TokenTexts(chat))

    async def _fetch(self, digest: str, refs: Mapping[str, BlobRef]) -> Path:
        """The files in a folder of their own, which appears whole or not at all."""
        target = self._cache_dir / digest
        if target.is_dir():
            return target
        files = {name: await self._store.get(ref) for name, ref in refs.items()}
        await asyncio.to_thread(_write_folder, target, files)
        return target


class _TokenTexts(dict[int, str]):
    """Text of each token alone, decoded the first time it is asked for."""

    def __init__(self, chat: ChatFormat) -> None:
        super().__init__()
        self._chat = chat

    def __missing__(self, token: int) -> str:
        text = self[token] = self._chat.decode([token])
        return text


def _digest(refs: Mapping[str, BlobRef]) -> str:
    """Identity of a chat format: names and digests of its files."""
    lines = "".join(f"{name} {refs[name].sha256}\n" for name in sorted(refs))
    return hashlib.sha256(lines.encode()).hexdigest()


def _write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=".fetch-"))
    try:
        for name, data in files.items():
            (staging / name).write_bytes(data)
        try:
            staging.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another sampler of this machine was first
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
