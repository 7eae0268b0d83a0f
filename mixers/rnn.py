"""The plain RNN with heads: a vector state per head, no gate inside the recurrence (Elman, 1990)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from archsearch.kernels.gated_rms_norm.op import gated_rms_norm
from archsearch.kernels.rnn.op import BACKENDS, rnn
from archsearch.mixers.common import (
    Mixer,
    NonlinearOptions,
    SplitLinear,
    State,
    check_head_counts,
    check_packed,
    check_positive,
)
from archsearch.registry import register


@dataclass(frozen=True, kw_only=True)
class RNNOptions(NonlinearOptions):
    """Head counts and size of an RNN mixer; counts left out are `num_heads`, the number of states.

    That x alone passes the convolution, and that x, the output gate and W have every head their own, is inferred: with
    no other tensor than projections, filters, weights and one norm, only so are the published sizes met
    (arXiv:2603.14360v2: hidden 1024, 85 heads of 16). How W starts is not published; it starts as M²RNN's.
    """

    num_heads: int = 4
    head_dim: int = 16
    num_input_heads: int | None = None
    num_weight_heads: int | None = None

    def inputs(self) -> dict[str, int]:
        """Return the number of heads of each input of the recurrence by name, x first."""
        return {"x": self._heads(self.num_input_heads)}

    def weights(self) -> dict[str, int]:
        """Return the number of heads of each weight by the name of its parameter."""
        return {"weight": self._heads(self.num_weight_heads)}

    def _heads(self, count: int | None) -> int:
        return self.num_heads if count is None else count

    def check(self, hidden_size: int) -> None:
        super().check(hidden_size)
        check_positive(num_heads=self.num_heads, head_dim=self.head_dim)
        check_head_counts(self.num_heads, {**self.inputs(), **self.weights()})

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels that pass the short convolution: x."""
        return self.inputs()["x"] * self.head_dim if self.conv_width else 0

    def widths(self) -> list[int]:
        """Return how many channels of the input projection each input and the output gate take."""
        return [*(count * self.head_dim for count in self.inputs().values()), self.inner]

    def num_parameters(self, hidden_size: int) -> int:
        projections = hidden_size * (sum(self.widths()) + self.inner)
        weights = sum(self.weights().values()) * self.head_dim**2
        return projections + weights + self.conv_channels * (self.conv_width or 0) + self.inner

    def state_size(self, hidden_size: int) -> int:
        return self.inner

    def cache_size(self, hidden_size: int, length: int) -> int:
        return self.conv_channels * ((self.conv_width or 1) - 1)

    def flops_per_token(self, hidden_size: int, length: int) -> float:
        projections = hidden_size * (sum(self.widths()) + self.inner)
        recurrence = len(self.weights()) * self.inner * self.head_dim
        return 2 * (projections + self.conv_channels * (self.conv_width or 0) + recurrence)


@register("rnn", options=RNNOptions, letters="N")
class RNN(Mixer):
    """Project, convolve x, recur, gate by `silu(g)`, RMSNorm over all heads, project out."""

    backends = BACKENDS
    weight: nn.Parameter

    def __init__(self, options: RNNOptions, hidden_size: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.options = options
        self.in_proj = SplitLinear(hidden_size, options.widths())
        self.conv = options.short_conv([options.conv_channels])
        for name, count in options.weights().items():
            self.register_parameter(name, nn.Parameter(self.in_proj.weight.new_empty(count, *[options.head_dim] * 2)))
        self.norm = nn.RMSNorm(options.inner, eps=norm_eps)
        self.out_proj = nn.Linear(options.inner, hidden_size, bias=False)
        self.reset_parameters(0.02, 0.02)

    def reset_parameters(self, init_std: float, output_std: float) -> None:
        super().reset_parameters(init_std, output_std)
        for name in self.options.weights():
            self.options.draw_weight(self.get_parameter(name))

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        check_packed(x, state, cu_seqlens)
        options, state = self.options, state or {}
        x, *gates, g = self.in_proj(x)
        new_state: State = {}
        if self.conv is not None:
            (x,), new_state["conv"] = self.conv(x, state.get("conv"), cu_seqlens, self.backend_around)
        elif options.activation == "silu":
            x = functional.silu(x)
        inputs = [part.unflatten(-1, (-1, options.head_dim)) for part in (x, *gates)]
        y, new_state["recurrent"] = self.recur(inputs, state.get("recurrent"), cu_seqlens)
        y = gated_rms_norm(
            y,
            self.norm.weight,
            self.norm.eps or 0.0,
            gate=g.unflatten(-1, (-1, options.head_dim)),
            backend=self.backend_around,
        )
        return self.out_proj(y), (new_state if cu_seqlens is None else None)

    def recur(self, inputs: list[Tensor], state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run the recurrence over `inputs` (each `[B, T, heads, D]`); returns its states and the final one."""
        (x,) = inputs
        return rnn(
            x,
            self.weight,
            initial_state=state,
            gradient_clip=self.options.gradient_clip,
            cu_seqlens=cu_seqlens,
            backend=self.backend,
        )
