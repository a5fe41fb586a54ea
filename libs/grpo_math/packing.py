"""Rows of unequal length as one sequence without padding, each unique token of a group computed once.

Members of a group share a prompt, and often their first turns. Rows are sorted within their group; each row
*owns* the tokens after the longest prefix that it shares with the row before it, and attends to that row's
tokens for the rest. So a microbatch is U unique tokens, one forward pass, and a plan that tells attention
which keys belong to which query. Position ids count from 0 in every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from grpo_math.errors import MalformedRow
from grpo_math.packed_attention import AttentionPlan, RowSpan, plan_attention

_PER_TOKEN: Final = (
    "trained",
    "sampler_logprobs",
    "turns",
    "proximal_logprobs",
    "reference_logprobs",
    "advantages",
)


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One context of one trajectory.

    token_ids [L] int64; trained [L] bool: sampled by the policy, never position 0; sampler_logprobs [L]
    float32, read where trained; turns [L] int64: turn within the row, read where trained; proximal_logprobs
    and reference_logprobs [L] or None. advantage: of the whole trajectory; advantages [L] float: per token,
    instead of it. temperature: of sampling. trajectory_share: part of the trajectory's trained turns that lie
    in this row, below 1 where the trajectory forked into several rows.
    """

    row_id: str
    group_id: str
    token_ids: Tensor
    trained: Tensor
    sampler_logprobs: Tensor
    advantage: float
    turns: Tensor | None = None
    temperature: float = 1.0
    proximal_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    advantages: Tensor | None = None
    trajectory_share: float = 1.0

    def __post_init__(self) -> None:
        length = self.token_ids.shape[0]
        for name in _PER_TOKEN:
            value = getattr(self, name)
            if value is not None and value.shape != (length,):
                raise MalformedRow(
                    f"row {self.row_id}: {name} is {tuple(value.shape)}, token_ids is ({length},)"
                )
        if length < 2 or bool(self.trained[0]):
            raise MalformedRow(
                f"row {self.row_id}: position 0 has no log-probability, so a row has at least two tokens, "
                "and the first is not trained"
            )
        if not self.temperature > 0:
            raise MalformedRow(f"row {self.row_id}: temperature must be > 0, got {self.temperature}")

    @property
    def num_trained(self) -> int:
        return int(self.trained.sum())


@dataclass(frozen=True, slots=True)
class Microbatch:
    """U unique tokens of R rows with N trained tokens.

    input_ids, position_ids: [1, U]. The rest is per trained token [N], row after row: `source` is the index
    in U of the token before it, whose hidden state predicts it.
    row_shares [R]: see TrainingRow.trajectory_share.
    row_ids: for each row, TrainingRow.row_id.
    paths: for each row [L], where its tokens lie in U; positions [N]: where each trained token lies in its
    row.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention: AttentionPlan
    num_rows: int
    num_row_tokens: int
    paths: tuple[Tensor, ...]
    row_ids: tuple[str, ...]
    positions: Tensor
    source: Tensor
    labels: Tensor
    row_of_token: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    temperature: Tensor
    turn_of_token: Tensor
    row_shares: Tensor
    proximal_logprobs: Tensor | None
    reference_logprobs: Tensor | None

    def to(self, device: torch.device | str) -> Microbatch:
        """The same microbatch on another device."""
        names = (f.name for f in fields(self))
        moved = {name: getattr(self, name).to(device) for name in names if hasattr(getattr(self, name), "to")}
        return replace(self, paths=tuple(path.to(device) for path in self.paths), **moved)

    @property
    def num_unique_tokens(self) -> int:
        return self.input_ids.shape[1]

    @property
    def num_trained(self) -> int:
        return self.labels.shape[0]


def shared_prefix(a: Tensor, b: Tensor) -> int:
    """Length of the longest common prefix of two [L] id arrays."""
    length = min(a.shape[0], b.shape[0])
    differing = (a[:length] != b[:length]).nonzero()
    return int(differing[0]) if differing.numel() else length


def _shared(rows: Sequence[TrainingRow], share_prefixes: bool) -> list[int]:
    """For each row: how many tokens it shares with the row before, which is of its group."""
    return [
        shared_prefix(rows[index - 1].token_ids, row.token_ids)
        if share_prefixes and index and rows[index - 1].group_id == row.group_id
        else 0
        for index, row in enumerate(rows)
    ]


def _paths(rows: Sequence[TrainingRow], shared: Sequence[int]) -> list[Tensor]:
    """For each row: the index in U of each of its tokens [L]."""
    paths: list[Tensor] = []
    used = 0
    for row, common in zip(rows, shared, strict=True):
        own = torch.arange(used, used + row.token_ids.shape[0] - common)
        paths.append(torch.cat([paths[-1][:common], own]) if common else own)
        used += own.shape[0]
    return paths


def _optional(rows: Sequence[TrainingRow], name: str) -> Tensor | None:
    """Concatenation of an optional array over trained tokens; all rows carry it or none does."""
    values = [getattr(row, name) for row in rows]
    if all(value is None for value in values):
        return None
    if any(value is None for value in values):
        raise MalformedRow(f"{name} is present in some rows of the microbatch and absent in others")
    return torch.cat([value[row.trained] for value, row in zip(values, rows, strict=True)])


def _turns(row: TrainingRow) -> Tensor:
    return row.token_ids.new_zeros(row.num_trained) if row.turns is None else row.turns[row.trained]


def _advantages(row: TrainingRow) -> Tensor:
    if row.advantages is None:
        return torch.full((row.num_trained,), row.advantage, dtype=torch.float64)
    return row.advantages[row.trained].double()


def pack(rows: Sequence[TrainingRow], *, share_prefixes: bool = True) -> Microbatch:
    """One microbatch of these rows, in this order; rows of a group should be neighbours and sorted by
    tokens."""
    shared = _shared(rows, share_prefixes)
    paths = _paths(rows, shared)
    own = [path[common:] for path, common in zip(paths, shared, strict=True)]
    trained = [row.trained.nonzero().squeeze(1) for row in rows]
    counts = torch.tensor([each.shape[0] for each in trained])
    temperatures = torch.tensor([row.temperature for row in rows], dtype=torch.float64)
    spans = [RowSpan(path, common) for path, common in zip(paths, shared, strict=True)]
    return Microbatch(
        input_ids=torch.cat([r.token_ids[c:] for r, c in zip(rows, shared, strict=True)])[None],
        position_ids=torch.cat([torch.arange(c, c + o.shape[0]) for c, o in zip(shared, own, strict=True)])[
            None
        ],
        attention=plan_attention(spans),
        num_rows=len(rows),
        num_row_tokens=sum(row.token_ids.shape[0] for row in rows),
        paths=tuple(paths),
        row_ids=tuple(row.row_id for row in rows),
        positions=torch.cat(trained),
        source=torch.cat([path[at - 1] for path, at in zip(paths, trained, strict=True)]),
        labels=torch.cat([row.token_ids[at] for row, at in zip(rows, trained, strict=True)]),
        row_of_token=torch.arange(len(rows)).repeat_interleave(counts),
        sampler_logprobs=torch.cat([r.sampler_logprobs[at] for r, at in zip(rows, trained, strict=True)]),
        advantages=torch.cat([_advantages(row) for row in rows]),
        temperature=temperatures.repeat_interleave(counts),
        turn_of_token=torch.cat([_turns(row) for row in rows]),
        row_shares=torch.tensor([row.trajectory_share for row in rows], dtype=torch.float64),
        proximal_logprobs=_optional(rows, "proximal_logprobs"),
        reference_logprobs=_optional(rows, "reference_logprobs"),
    )


def sorted_for_sharing(rows: Iterable[TrainingRow]) -> list[TrainingRow]:
    """Rows by group, then by tokens: neighbours share the longest prefixes. The order of arrival does not
    matter."""
    return sorted(rows, key=lambda row: (row.group_id, row.token_ids.tolist(), row.row_id))


def _unique_lengths(rows: Sequence[TrainingRow], share_prefixes: bool) -> list[int]:
    shared = _shared(rows, share_prefixes)
    return [row.token_ids.shape[0] - common for row, common in zip(rows, shared, strict=True)]


def microbatches(
    rows: Iterable[TrainingRow], *, max_tokens: int, share_prefixes: bool = True
) -> list[Microbatch]:
    """The cuts of `row_cuts`, packed."""
    cuts = row_cuts(rows, max_tokens=max_tokens, share_prefixes=share_prefixes)
    return [pack(cut, share_prefixes=share_prefixes) for cut in cuts]


def row_cuts(
    rows: Iterable[TrainingRow], *, max_tokens: int, share_prefixes: bool = True
) -> list[list[TrainingRow]]:
    """Cuts rows into microbatches of at most `max_tokens` unique tokens (one row may exceed it), rows kept
    whole.

    Groups stay together where they fit, and groups of similar length are neighbours, so that attention pads
    little.
    """
    ordered = sorted_for_sharing(rows)
    groups = [list(members) for _, members in groupby(ordered, key=lambda row: row.group_id)]
    groups.sort(key=lambda members: max(row.token_ids.shape[0] for row in members))
    cuts: list[list[TrainingRow]] = [[]]
    used = 0
    for members in groups:
        lengths = _unique_lengths(members, share_prefixes)
        if cuts[-1] and used + sum(lengths) > max_tokens:
            cuts.append([])
            used = 0
        for row, length in zip(members, lengths, strict=True):
            if cuts[-1] and used + length > max_tokens:
                cuts.append([])
                used, length = 0, row.token_ids.shape[0]
            cuts[-1].append(row)
            used += length
    return [cut for cut in cuts if cut]


def rank_shares(
    rows: Iterable[TrainingRow], num_ranks: int, *, share_prefixes: bool = True
) -> list[list[TrainingRow]]:
    """Rows for each of `num_ranks` processes, balanced by unique tokens; a rank may get none.

    Rows of a group stay together, as far as no rank gets more than its part for it. The order of arrival does
    not matter.
    """
    ordered = sorted_for_sharing(rows)
    lengths = _unique_lengths(ordered, share_prefixes)
    part = -(-sum(lengths) // num_ranks)
    pieces: list[list[TrainingRow]] = []
    sizes: list[int] = []
    for row, length in zip(ordered, lengths, strict=True):
        same_group = pieces and pieces[-1][0].group_id == row.group_id
        if same_group and sizes[-1] + length <= part:
            pieces[-1].append(row)
            sizes[-1] += length
        else:
            pieces.append([row])
            sizes.append(row.token_ids.shape[0])
    shares: list[list[TrainingRow]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for index in sorted(range(len(pieces)), key=lambda piece: -sizes[piece]):
        lightest = load.index(min(load))
        shares[lightest] += pieces[index]
        load[lightest] += sizes[index]
    return shares
