"""The processes that compute together: this one is rank 0, the others are its children.

Every command is executed on all ranks, in one order. Commands travel through a socket per child, so a child
that waits for work needs no deadline and ends with its parent; tensors travel through torch.distributed. A
rank that dies or is late breaks the group for good: parameters are spread over the ranks, so what is left is
not a model.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from grpo_trainer.domain.errors import LostRank, RanksGone, TrainerError
from grpo_trainer.learner.commands import CloseSession, RankCommand
from grpo_trainer.learner.core import LearnerCore, LearnerOptions, SessionCores
from grpo_trainer.learner.ranks import ALONE, Ranks
from service_kit.child_environment import child_environment
from service_kit.leash import leashed

Result = TypeVar("Result")

log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
START_S: Final = 120.0
"""How long a rank may take from its start until it meets the others: it imports torch first."""
_POLL_S: Final = 0.05
_EXIT_S: Final = 10.0
"""How long a child may take to end after its socket is closed."""


class RankGroup:
    """Rank 0's side; used from one thread, the one in which torch works."""

    def __init__(self, options: LearnerOptions) -> None:
        self._options = options
        self._children: list[_Child] = []
        self._cores: SessionCores | None = None
        self._broken = ""

    def execute(self, commands: Sequence[RankCommand[Result]]) -> Result:
        """Execute one command per rank, in the order of ranks; returns rank 0's result.

        Raises what a command raises on all ranks, and LostRank.
        """
        cores = self._started()
        for child, command in zip(self._children, commands[1:], strict=True):
            self._or_lost(partial(child.send, command))
        try:
            result = commands[0].execute(cores)
        except TrainerError:
            self._receive_all()  # all ranks raised it, so they are still synchronized
            raise
        except Exception as error:  # others may block in a collective: restart the group
            if not self._children:
                raise
            raise self._lost(error) from error
        self._receive_all()
        return result

    def close_session(self, session: str) -> None:
        """Free a session's memory; after a rank was lost there is nothing to close."""
        if self._cores is not None and not self._broken:
            self.execute([CloseSession(session)] * self._options.ranks)

    @property
    def children(self) -> list[int]:
        """Process ids of the other ranks."""
        return [child.pid for child in self._children]

    def core(self, session: str) -> LearnerCore:
        """Rank 0's part of a session."""
        return self._started().get(session)

    def _receive_all(self) -> None:
        for child in self._children:
            self._or_lost(child.receive)

    def _or_lost(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, EOFError) as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> LostRank:
        ended = [child.ended for child in self._children if child.ended]
        what = "; ".join(ended) or f"{type(error).__name__}: {error}"
        self._broken = (
            f"a step needs all {self._options.ranks} ranks, and one was lost within "
            f"{self._options.rank_deadline_s:g} s ({what}); the next start resumes from the newest state"
        )
        return LostRank(self._broken)

    def _started(self) -> SessionCores:
        if self._broken:
            raise RanksGone(self._broken)
        if self._cores is None:
            self._cores = SessionCores(self._options, self._gather() if self._options.ranks > 1 else ALONE)
        return self._cores

    def _gather(self) -> Ranks:
        """Start the other ranks and meet them."""
        size = self._options.ranks
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = open_store(size)
        self._children = [_Child(index, store.port, self._options) for index in range(1, size)]
        try:
            self._meet(store)
            join(store, Ranks(0, size), self._options)
        except RuntimeError as error:
            raise self._lost(error) from error
        log.info("ranks_started", extra={"ranks": size})
        return Ranks(0, size)

    def _meet(self, store: Store) -> None:
        """Return when every child is at the store. Raises RuntimeError where one ended, or is late."""
        others = [_here(index) for index in range(1, self._options.ranks)]
        deadline = time.monotonic() + START_S
        while not store.check(others):
            if any(child.ended for child in self._children) or time.monotonic() > deadline:
                raise RuntimeError(f"not all ranks were there {START_S:g} s after their start")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the other ranks; bounded."""
        for child in self._children:
            child.end()
        if self._children and dist.is_initialized():
            dist.destroy_process_group()
        self._children = []


def open_store(size: int) -> TCPStore:
    """Where ranks of this machine meet. By itself torch's store listens on every interface, and serves
    any caller."""
    with socket.create_server((_HOST, 0)) as listening:
        return TCPStore(
            _HOST,
            listening.getsockname()[1],
            size,
            is_master=True,
            timeout=timedelta(seconds=START_S),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )


def join(store: Store, ranks: Ranks, options: LearnerOptions) -> None:
    """Enter the process group of this store. Raises RuntimeError where the others do not come in time."""
    store.set(_here(ranks.index), "yes")
    store.wait([_here(index) for index in range(ranks.size)], timedelta(seconds=START_S))
    device = torch.device(options.device_of(ranks.index))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend, timeout = "nccl" if device.type == "cuda" else "gloo", timedelta(seconds=options.rank_deadline_s)
    dist.init_process_group(backend, None, timeout, ranks.size, ranks.index, store)


def _here(rank: int) -> str:
    return f"rank {rank} is here"


class _Child:
    """Another rank, seen from here."""

    def __init__(self, index: int, port: int, options: LearnerOptions) -> None:
        ours, theirs = socket.socketpair()
        self._index = index
        self._deadline_s = options.rank_deadline_s
        program = (sys.executable, "-m", "grpo_trainer.learner.rank_worker")
        with theirs:
            self._process = subprocess.Popen(
                leashed((*program, str(theirs.fileno()), _HOST, str(port), str(index))),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=child_environment(options.rank_variables),
            )
        seconds, part = divmod(options.rank_deadline_s, 1)
        timeval = struct.pack("ll", int(seconds), int(part * 1e6) or 1)  # zero would mean: no deadline
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._connection = Connection(ours.detach())
        self.send(options)

    def send(self, what: object) -> None:
        """Raises OSError where the other end is closed, or takes nothing in time."""
        try:
            self._connection.send_bytes(pickle.dumps(what))
        except BlockingIOError as error:
            raise TimeoutError(f"rank {self._index} took nothing for {self._deadline_s:g} s") from error

    def receive(self) -> None:
        """Wait for the answer to one command; raises EOFError or OSError where none comes."""
        if not self._connection.poll(self._deadline_s):
            raise TimeoutError(f"rank {self._index} sent nothing for {self._deadline_s:g} s")
        failure = self._connection.recv_bytes().decode()
        if failure:
            raise EOFError(f"rank {self._index}: {failure}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> str:
        """How it ended; empty while it runs."""
        status = self._process.poll()
        return "" if status is None else f"rank {self._index} ended with status {status}"

    def end(self) -> None:
        """Close its socket, which ends it; kill it where that does not help."""
        self._connection.close()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
