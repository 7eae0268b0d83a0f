"""Mixture of experts: every token passes the few SwiGLUs that its router picks, and a shared one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from archsearch.config import ConfigError
from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.grouped_linear.op import grouped_linear
from archsearch.kernels.swiglu.op import swiglu
from archsearch.mlp_registry import MLPOptions, register_mlp
from archsearch.model.mlp.auxiliary import record_auxiliary_loss
from archsearch.model.mlp.common import MLP
from archsearch.model.mlp.swiglu import SwiGLU, SwiGLUOptions


@dataclass(frozen=True, kw_only=True)
class MoEOptions(MLPOptions):
    """Counts and widths of the experts, and how their outputs are weighed.

    `normalize` makes the weights of a token's experts sum to 1; `shared_intermediate_size` is the width of an expert
    that every token passes with weight 1, null for none. `aux_loss_weight` times the load-balancing loss of each
    layer is added to the training loss, summed over layers.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int | None = None
    normalize: bool = True
    aux_loss_weight: float = 0.001

    def check(self, hidden_size: int) -> None:
        for name in ("num_experts", "experts_per_token", "intermediate_size", "shared_intermediate_size"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ConfigError(f"{name}: must be positive; got {value}")
        if self.experts_per_token > self.num_experts:
            rule = "must be at most num_experts"
            raise ConfigError(f"experts_per_token: {rule}; got {self.experts_per_token} of {self.num_experts}")
        if self.aux_loss_weight < 0:
            raise ConfigError(f"aux_loss_weight: must be at least 0; got {self.aux_loss_weight}")

    def num_parameters(self, hidden_size: int) -> int:
        return self._parameters(hidden_size, self.num_experts)

    def active_parameters(self, hidden_size: int) -> int:
        return self._parameters(hidden_size, self.experts_per_token)

    def shape(self) -> str:
        shared = f", shared {self.shared_intermediate_size}" if self.shared_intermediate_size else ""
        return f"{self.experts_per_token} of {self.num_experts} experts of {self.intermediate_size}{shared}"

    def _parameters(self, hidden_size: int, experts: int) -> int:
        width = experts * self.intermediate_size + (self.shared_intermediate_size or 0)
        return hidden_size * (3 * width + self.num_experts)


@register_mlp("moe", options=MoEOptions)
class MoE(MLP):
    """`sum over the chosen experts of p_e(x) SwiGLU_e(x)`, plus a shared SwiGLU; p = softmax of a linear router.

    The router works in at least float32: a rounded probability would choose another expert. The experts' weights are
    stacked, `[experts, out, in]`.
    """

    def __init__(self, options: MoEOptions, hidden_size: int) -> None:
        super().__init__()
        self.options = options
        experts, width, shared = options.num_experts, options.intermediate_size, options.shared_intermediate_size
        self.router = nn.Linear(hidden_size, experts, bias=False)
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden_size, width))
        self.shared_expert = SwiGLU(SwiGLUOptions(intermediate_size=shared), hidden_size) if shared else None
        self.reset_parameters(0.02, 0.02)

    @property
    def has_auxiliary_loss(self) -> bool:
        return self.options.aux_loss_weight > 0

    def reset_parameters(self, init_std: float, output_std: float) -> None:
        nn.init.normal_(self.router.weight, std=init_std)
        nn.init.normal_(self.gate_up_proj, std=init_std)
        nn.init.normal_(self.down_proj, std=output_std)
        if self.shared_expert is not None:
            self.shared_expert.reset_parameters(init_std, output_std)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probabilities = self._route(tokens)
        weights, chosen = probabilities.topk(self.options.experts_per_token, dim=-1)
        if self.options.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        record_auxiliary_loss(
            self.options.aux_loss_weight, lambda scored: load_balancing_loss(probabilities, chosen, scored)
        )
        y = self._mix(tokens, weights, chosen)
        if self.shared_expert is not None:
            y = y + self.shared_expert(tokens)
        return y.reshape(x.shape)

    def _route(self, tokens: Tensor) -> Tensor:
        """Return the probability of each expert for `tokens` `[N, D]`, `[N, E]` in at least float32."""
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        with full_precision(tokens):
            return functional.linear(tokens.to(dtype), self.router.weight.to(dtype)).softmax(-1)

    def _mix(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Sum the outputs of the `chosen` experts `[N, K]` by their `weights` `[N, K]`: sort, compute, sort back."""
        per_token = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)  # of the N x K assignments, by expert
        experts = chosen.flatten()
        # not bincount: what decides the shape of its result torch.compile cannot know
        counts = experts.new_zeros(self.options.num_experts).index_add(0, experts, torch.ones_like(experts))
        inner = swiglu(grouped_linear(tokens[order // per_token], self.gate_up_proj, counts))
        y = grouped_linear(inner, self.down_proj, counts)
        y = y[order.argsort()].view(*chosen.shape, -1)  # [N, K, D]
        return (y * weights.to(y.dtype)[..., None]).sum(1)


def load_balancing_loss(probabilities: Tensor, chosen: Tensor, scored: Tensor) -> Tensor:
    """Return `E sum_e f_e P_e`, 1 where the experts share the load evenly (Fedus et al., arXiv:2101.03961, eq. 4-6).

    Over the `scored` tokens (`[N]` bool), f_e is the share of the assignments (`chosen`, `[N, K]`) that went to expert
    e, P_e the mean of its probability (`[N, E]`), through which alone the gradient passes.
    """
    mask = scored.flatten().to(probabilities.dtype)
    tokens, per_token, experts = mask.sum().clamp(min=1), chosen.shape[1], probabilities.shape[1]
    assigned = mask.new_zeros(experts).index_add(0, chosen.flatten(), mask.repeat_interleave(per_token))
    shares = assigned / (tokens * per_token)
    return experts * (shares * (mask @ probabilities / tokens)).sum()
