"""A rank other than the first: executes the commands of rank 0 until their socket is closed.

`python -m grpo_trainer.learner.rank_worker FD HOST PORT RANK`, started by `rank_group` alone. FD: a socket
to rank 0; HOST, PORT: the store where the ranks meet. A condition that all ranks meet (TrainerError) is an
answer; anything else ends the process, and with it the group.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from grpo_trainer.domain.errors import TrainerError
from grpo_trainer.learner.commands import RankCommand
from grpo_trainer.learner.core import LearnerOptions, SessionCores
from grpo_trainer.learner.rank_group import START_S, join
from grpo_trainer.learner.ranks import Ranks


def main() -> None:
    """Entry point."""
    descriptor, host, port, index = sys.argv[1:]
    connection = Connection(int(descriptor))
    options: LearnerOptions = _received(connection)
    torch.set_num_threads(options.num_threads)
    ranks = Ranks(int(index), options.ranks)
    store = TCPStore(host, int(port), ranks.size, is_master=False, timeout=timedelta(seconds=START_S))
    join(store, ranks, options)
    with contextlib.suppress(EOFError, ConnectionError):  # rank 0 closed the socket
        _execute_all(connection, SessionCores(options, ranks))
    dist.destroy_process_group()


def _execute_all(connection: Connection, cores: SessionCores) -> None:
    while True:
        command: RankCommand[object] = _received(connection)
        try:
            command.execute(cores)
        except TrainerError:
            connection.send_bytes(b"")  # rank 0 met it too, and raises it to the session
        except BaseException as error:
            connection.send_bytes(f"{type(error).__name__}: {error}".encode())
            raise
        else:
            connection.send_bytes(b"")


def _received(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - from our own parent


if __name__ == "__main__":
    main()
