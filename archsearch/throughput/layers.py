"""Single mixers of architectures, run forward and backward on a GPU outside any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from archsearch import registry
from archsearch.architecture import Architecture
from archsearch.registry import MixerOptions


def build(name: str, options: MixerOptions, hidden_size: int, device: str = "cuda") -> nn.Module:
    """Return a mixer with fresh float32 weights."""
    with torch.device(device):
        return registry.get(name).module(options, hidden_size, norm_eps=1e-5)


def training_pass(mixer: nn.Module, x: Tensor, dy: Tensor, cu_seqlens: Tensor | None = None) -> Callable[[], None]:
    """Return a function that runs `mixer` on `x` `[B, T, D]` in bfloat16 autocast, forward and backward."""
    wanted = [x, *mixer.parameters()]

    def run() -> None:
        with torch.autocast(x.device.type, torch.bfloat16):
            y, _ = mixer(x, None, cu_seqlens)
        torch.autograd.grad(y, wanted, dy)

    return run


class Layers:
    """The distinct mixers of some architectures, each at B x T tokens in rows and once more as packed documents."""

    def __init__(self, architectures: Sequence[Architecture], batch_size: int, length: int) -> None:
        self.passes: list[Callable[[], None]] = []
        mixers = {(x.type, x.options, a.hidden_size): None for a in architectures for x in a.layers}
        for name, options, hidden_size in mixers:
            mixer = build(name, options, hidden_size)
            for packed in (False, True):
                rows, steps = (1, batch_size * length) if packed else (batch_size, length)
                x = torch.randn(rows, steps, hidden_size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                bounds = torch.arange(0, steps + 1, length, device="cuda") if packed else None
                self.passes.append(training_pass(mixer, x, torch.randn_like(x), bounds))

    def run(self) -> None:
        """Run every mixer once."""
        for one in self.passes:
            one()
        torch.cuda.synchronize()
