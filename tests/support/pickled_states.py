"""Training states as trainers wrote them up to 0.3.0: files of torch.distributed.checkpoint."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from blob_store import BlobRef, BlobStore
from training_states.storing import put_files


def write_pickled(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a host copy. directory: made, or empty."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = FileSystemWriter(directory, single_file_per_rank=True, sync_files=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(dict(tensors), storage_writer=writer, no_dist=True)


async def put_pickled(store: BlobStore, folder: str, directory: Path) -> tuple[BlobRef, ...]:
    """The files of a directory below a step's folder, as such a trainer stored them."""
    return await put_files(store, folder, directory)
