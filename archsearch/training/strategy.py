"""`--trainer.strategy=fsdp2`: every device keeps a shard of weights, gradients and optimizer state.

PyTorch's `fully_shard` through Lightning's ModelParallelStrategy. A checkpoint is the one that a single device would
write, so a run can go on under another strategy, and every command loads it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from lightning.pytorch.strategies.strategy import Strategy
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from archsearch.config import ConfigError
from archsearch.model.language_model import HybridLM

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

NAME = "fsdp2"


class FullySharded(ModelParallelStrategy):
    """All devices share one copy of the model; each gathers a block's weights when it comes to it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(save_distributed_checkpoint=False, **arguments)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()

    def setup(self, trainer: Trainer) -> None:
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise ConfigError(f"trainer.precision: 16-mixed does not work with strategy {NAME}; bf16-mixed does")
        # a mixer's state may be a view; nobody changes one in place
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")
        super().setup(trainer)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        return {name: self._whole(value) for name, value in self.model.state_dict().items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        saved = getattr(optimizer, "_optimizer", optimizer).state_dict()
        states = saved["state"].items()
        return {**saved, "state": {key: {name: self._whole(x) for name, x in of.items()} for key, of in states}}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        Strategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.model is not None
        own = self.model.state_dict()
        saved = checkpoint["state_dict"].items()
        self.model.load_state_dict({name: _shard_as(own.get(name), x) for name, x in saved}, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            places = [key for group in saved["param_groups"] for key in group["params"]]
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            own = dict(zip(places, parameters, strict=True))
            states = {
                key: {name: _shard_as(own[key], x) for name, x in of.items()} for key, of in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": states})

    def _whole(self, value: Any) -> Any:
        """Return a sharded tensor whole, in the memory of rank 0, which alone writes; all ranks must call it."""
        if not isinstance(value, DTensor):
            return value
        whole = value.full_tensor()
        return whole.cpu() if self.is_global_zero else whole.new_empty(0)


StrategyRegistry.register(NAME, FullySharded, description="FSDP2: weights and optimizer state in shards")


def shard(model: HybridLM, mesh: DeviceMesh) -> None:
    """Let each device of the `mesh` keep its shard of every parameter, block by block; a second call does nothing."""
    if isinstance(model, FSDPModule):
        return
    if mesh["tensor_parallel"].size() > 1:
        raise ConfigError(f"trainer.strategy: blocks have no tensor-parallel form; {NAME} shards over all devices")
    devices = mesh["data_parallel"]
    for block in model.blocks:
        fully_shard(block, mesh=devices)
    fully_shard(model, mesh=devices)


def _shard_as(like: Any, value: Any) -> Any:
    """Return this rank's part of a whole tensor, where `like` is in shards and has its shape."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    # every rank has read the file, so none has to send
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
