"""What an evaluation measures, summed over batches and devices."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from archsearch.training.step import IGNORED


class LanguageMetrics(Metric):
    """Loss (nats per token), perplexity and accuracy over the scored positions, and the accuracy of the last one."""

    full_state_update = False

    loss_sum: Tensor
    correct: Tensor
    scored: Tensor
    last_correct: Tensor
    last_scored: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("loss_sum", torch.tensor(0.0), dist_reduce_fx="sum")
        for name in ("correct", "scored", "last_correct", "last_scored"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        """Add a batch: its mean loss over scored positions, `logits` `[B, T, vocabulary]` and `targets` `[B, T]`."""
        mask = targets != IGNORED
        hits = (logits.argmax(-1) == targets) & mask
        self.loss_sum += loss.detach().float() * mask.sum()
        self.correct += hits.sum()
        self.scored += mask.sum()
        self.last_correct += hits[:, -1].sum()
        self.last_scored += mask[:, -1].sum()

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by name."""
        loss = self.loss_sum / self.scored
        return {
            "loss": loss,
            "perplexity": loss.exp(),
            "accuracy": self.correct / self.scored,
            "last_accuracy": self.last_correct / self.last_scored,
        }
