"""Gated DeltaProduct: Gated DeltaNet with several Householder steps per token (Siems et al., arXiv:2502.10297)."""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.mixers.common import check_positive
from archsearch.mixers.gated_deltanet import GatedDeltaNet, GatedDeltaNetOptions
from archsearch.registry import register


@dataclass(frozen=True, kw_only=True)
class GatedDeltaProductOptions(GatedDeltaNetOptions):
    """Head counts and shapes as of Gated DeltaNet, and `num_householder`, the steps per token: 1 is Gated DeltaNet.

    A token brings that many keys, values and writing strengths, but decays the state once, before the first of them,
    and reads it once, after the last. With `allow_negative_eigenvalues` each step can reflect the state.
    """

    num_householder: int = 2
    allow_negative_eigenvalues: bool = True

    def check(self, hidden_size: int) -> None:
        super().check(hidden_size)
        check_positive(num_householder=self.num_householder)

    @property
    def steps(self) -> int:
        return self.num_householder


@register("gated_deltaproduct", options=GatedDeltaProductOptions, letters="D")
class GatedDeltaProduct(GatedDeltaNet):
    """Gated DeltaNet; its options say how many steps a token takes."""
