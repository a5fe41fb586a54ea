"""Low-rank adapters: sessions that train a few numbers each, on one base that they share in memory.

The base never changes, so any number of sessions work on one module; before a session computes, its adapter
becomes the active one, and only the active adapter takes part or receives gradients. What is published is
the base with the adapter added in, a directory like any other. Source: LoRA, arXiv:2106.09685.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from grpo_math.packing import Microbatch
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.packed_model import PackedModel
from upcycle.run_config import ALL_LINEAR

_BASE_LAYER: Final = ".base_layer"
_DOWN: Final = "lora_A"
_UP: Final = "lora_B"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A session's numbers. parameters: by names without the session's; merge_scale: alpha / rank."""

    name: str
    parameters: Mapping[str, nn.Parameter]
    merge_scale: float


class SharedBase:
    """One base module and the adapters on it. Used from one thread, the one in which torch works."""

    def __init__(self, model: PackedModel) -> None:
        self.model = model
        self._linear = linear_layers(model.module)
        self._peft: Any = None
        self._active = ""
        self._names: set[str] = set()

    @property
    def is_used(self) -> bool:
        """Whether a session is left."""
        return bool(self._names)

    def add(self, name: str, spec: TrainingSpec) -> Adapter:
        """A fresh adapter: its output is zero. Draws from torch's generator. Raises InvalidTrainingSpec."""
        from peft import LoraConfig, get_peft_model  # takes seconds to import, and few runs have adapters

        config = LoraConfig(
            r=spec.lora_rank,
            lora_alpha=spec.lora_scale * spec.lora_rank,
            target_modules=_targets(self._linear, spec),
            lora_dropout=0.0,
            bias="none",
        )
        if self._peft is None:
            self._peft = get_peft_model(self.model.module, config, adapter_name=name)
        else:
            self._peft.add_adapter(name, config)
        self._names.add(name)
        self.activate(name, again=True)
        mark = f".{name}."
        own = {n.replace(mark, "."): p for n, p in self.model.module.named_parameters() if mark in n}
        return Adapter(name, own, spec.lora_scale)

    def activate(self, name: str, *, again: bool = False) -> None:
        """From now on this adapter computes and learns, and no other."""
        if again or name != self._active:
            self._peft.set_adapter(name)
            self._active = name

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Inside, no adapter takes part."""
        try:
            with self._peft.disable_adapter():
                yield
        finally:
            self.activate(self._active, again=True)

    def remove(self, name: str) -> None:
        """The session is over."""
        self._names.discard(name)
        if self._names:
            self.activate(min(self._names))
            self._peft.delete_adapter(name)


class AdaptedModel(PackedModel):
    """A shared base as one session sees it."""

    def __init__(self, base: SharedBase, adapter: Adapter) -> None:
        self.module = base.model.module
        self.adapter = adapter
        self._base = base

    def logprobs(self, batch: Microbatch, *, exact: bool = False) -> tuple[Tensor, Tensor]:
        """As PackedModel.logprobs, with this session's adapter."""
        self._base.activate(self.adapter.name)
        return self._base.model.logprobs(batch, exact=exact)

    def without_adapter(self) -> BareModel:
        """The base itself: the policy that the session began from, in no memory of its own."""
        return BareModel(self._base)


class BareModel(PackedModel):
    """A shared base as it is without any adapter; gradients are not for it."""

    def __init__(self, base: SharedBase) -> None:
        self.module = base.model.module
        self._base = base

    def logprobs(self, batch: Microbatch, *, exact: bool = False) -> tuple[Tensor, Tensor]:
        """As PackedModel.logprobs, without any adapter."""
        with self._base.bare():
            return self._base.model.logprobs(batch, exact=exact)


class Bases:
    """The bases in memory, one per directory, each as long as a session uses it."""

    def __init__(self) -> None:
        self._bases: dict[Path, SharedBase] = {}

    def adapted(
        self, directory: Path, name: str, spec: TrainingSpec, load: Callable[[], PackedModel]
    ) -> AdaptedModel:
        """The base of that directory with a new adapter. name: of the session, once. Raises
        InvalidTrainingSpec."""
        base = self._bases.get(directory) or SharedBase(load())
        adapter = base.add(name, spec)
        self._bases[directory] = base
        return AdaptedModel(base, adapter)

    def release(self, directory: Path, name: str) -> None:
        """That session is over."""
        base = self._bases.get(directory)
        if base is not None:
            base.remove(name)
            if not base.is_used:
                del self._bases[directory]


def linear_layers(module: nn.Module) -> list[str]:
    """Full names of the layers that an adapter can stand beside: linear ones, the output head excepted,
    because training reads its weight without calling it."""
    head = module.get_output_embeddings()  # type: ignore[operator]
    return [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and part is not head]


def _targets(layers: list[str], spec: TrainingSpec) -> list[str]:
    if spec.lora_targets == ALL_LINEAR:
        found = layers
    else:
        wanted = {name.strip() for name in spec.lora_targets.split(",")}
        found = [layer for layer in layers if layer.rpartition(".")[2] in wanted]
        unknown = wanted - {layer.rpartition(".")[2] for layer in found}
        if unknown:
            kinds = sorted({layer.rpartition(".")[2] for layer in layers})
            raise InvalidTrainingSpec(
                f"run {spec.run_id}: lora_targets {sorted(unknown)} are no linear layers of this model; "
                f"it has {', '.join(kinds)}, or say {ALL_LINEAR}"
            )
    if not found:
        raise InvalidTrainingSpec(
            f"run {spec.run_id}: the model has no linear layer to adapt; set lora_rank=0"
        )
    return found


def merged_state(module: nn.Module, adapter: Mapping[str, Tensor], merge_scale: float) -> dict[str, Tensor]:
    """The base's state with an adapter added in, on the host: W + scale * B @ A, summed in float32.

    adapter: a host copy, by Adapter.parameters' names. May run while sessions compute: it reads the base
    only, and that never changes. Tied names stay one tensor.
    """
    copies: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for stored, tensor in module.state_dict().items():
        if f".{_DOWN}." in stored or f".{_UP}." in stored:
            continue
        name = stored.replace(_BASE_LAYER, "")
        host = copies.setdefault(tensor.data_ptr(), tensor.detach().cpu())
        layer = name.removesuffix(".weight")
        down, up = adapter.get(f"{layer}.{_DOWN}.weight"), adapter.get(f"{layer}.{_UP}.weight")
        if name.endswith(".weight") and down is not None and up is not None:
            delta = merge_scale * (up.float() @ down.float())
            host = (host.float() + delta).to(host.dtype)
        state[name] = host
    return state
