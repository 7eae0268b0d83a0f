"""One training step in plain PyTorch: what Lightning runs, and what throughput measures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from archsearch.config import ConfigError, Where, parse_quantity, quantity
from archsearch.kernels.linear_cross_entropy.op import IGNORED
from archsearch.model.language_model import HybridLM
from archsearch.model.mlp.auxiliary import collect_auxiliary_losses

Batch = dict[str, Tensor]
"""`tokens` and `targets` `[B, T]` (-100: not scored), and for packed documents `cu_seqlens` over the B x T tokens."""


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """AdamW; weight decay acts on matrices, never on norms, biases, gates and what a mixer exempts.

    Args:
        learning_rate: Peak of the schedule.
        beta1: Decay of the mean of the gradient.
        beta2: Decay of the mean of the squared gradient.
        eps: Added to the root of the latter.
        weight_decay: Times the learning rate is what a matrix loses per step.
        grad_clip: Norm that the gradient of all parameters together is clipped to; null leaves it alone.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float | None = 1.0

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ConfigError(f"optimizer.learning_rate: must be positive; got {self.learning_rate}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optimizer.{name}: must be at least 0 and below 1; got {getattr(self, name)}")
        for name in ("eps", "weight_decay"):
            if getattr(self, name) < 0:
                raise ConfigError(f"optimizer.{name}: must be at least 0; got {getattr(self, name)}")
        if self.grad_clip is not None and self.grad_clip <= 0:
            raise ConfigError(f"optimizer.grad_clip: must be positive or null; got {self.grad_clip}")


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Linear warm-up over a fraction of the run, then a cosine (or nothing) down to a fraction of the peak rate.

    The run is counted in steps, or in tokens where `tokens` says how many; it then ends with them.

    Args:
        type: cosine, or constant at the peak after the warm-up.
        warmup: Fraction of the run that warms up.
        warmup_steps: The same in optimizer steps; where given, it is used instead.
        final: Fraction of the peak rate at the end of a cosine.
        tokens: Length of the run in tokens, as a number or as text such as 4M.
    """

    type: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.1
    warmup_steps: int | None = None
    final: float = 0.1
    tokens: int | str | None = quantity("count", default=None)

    def __post_init__(self) -> None:
        for name in ("warmup", "final"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"schedule.{name}: must be from 0 to 1; got {getattr(self, name)}")
        if self.warmup_steps is not None and self.warmup_steps < 0:
            raise ConfigError(f"schedule.warmup_steps: must be at least 0; got {self.warmup_steps}")
        if self.tokens is not None and self.total_tokens < 1:
            raise ConfigError(f"schedule.tokens: must be at least 1; got {self.tokens}")

    @property
    def total_tokens(self) -> int:
        """`tokens` as a number, 0 where the run is counted in steps."""
        return 0 if self.tokens is None else int(parse_quantity(self.tokens, "count", Where("schedule.tokens")))


def train_step(model: HybridLM, optimizer: torch.optim.Optimizer, batch: Batch, grad_clip: float | None) -> Tensor:
    """Run forward, backward, clipping by the global norm and the optimizer; returns the loss of the targets."""
    loss, auxiliary = training_losses(model, batch)
    (loss if auxiliary is None else loss + auxiliary).backward()  # type: ignore[no-untyped-call]
    if grad_clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def training_losses(model: HybridLM, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return the mean cross-entropy of a batch, and what the MLPs add to it in training: None where they add nothing.

    The latter is over the scored tokens, each layer's loss times its weight, summed over layers.
    """
    with collect_auxiliary_losses(batch["targets"] != IGNORED) as auxiliary:
        loss, _ = model(batch["tokens"], None, batch.get("cu_seqlens"), targets=batch["targets"])
    return loss, auxiliary.total()


def forward(model: HybridLM, batch: Batch) -> Tensor:
    """Return the logits `[B, T, vocabulary]` of a batch."""
    logits: Tensor = model(batch["tokens"], None, batch.get("cu_seqlens"))[0]
    return logits


def build_optimizer(model: nn.Module, options: OptimizerOptions, *, fused: bool | None = None) -> torch.optim.AdamW:
    """Return AdamW over the parameter groups of `model`; fused on a GPU unless told otherwise."""
    if fused is None:
        fused = all(parameter.is_cuda for parameter in model.parameters())
    betas = (options.beta1, options.beta2)
    groups = parameter_groups(model, options.weight_decay)
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=betas, eps=options.eps, fused=fused)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the parameters that decay (matrices that their module does not exempt) and those that do not."""
    groups: dict[bool, dict[int, nn.Parameter]] = {True: {}, False: {}}
    for module in model.modules():
        exempt: frozenset[str] = getattr(module, "no_weight_decay", frozenset())
        for name, parameter in module.named_parameters(recurse=False):
            groups[parameter.ndim >= 2 and name not in exempt][id(parameter)] = parameter
    return [
        {"params": list(groups[True].values()), "weight_decay": weight_decay},
        {"params": list(groups[False].values()), "weight_decay": 0.0},
    ]


def lr_factor(progress: float, options: ScheduleOptions, warmup: float | None = None) -> float:
    """Return the learning rate's factor at `progress`, the share of the run (in steps or tokens) that is done.

    `warmup` is the share that warms up where the options' own does not say it, because they give it in steps.
    """
    warmup = options.warmup if warmup is None else warmup
    if progress < warmup:
        return progress / warmup
    if options.type == "constant":
        return 1.0
    after = min(1.0, (progress - warmup) / max(1e-9, 1 - warmup))
    return options.final + (1 - options.final) * 0.5 * (1 + math.cos(math.pi * after))
