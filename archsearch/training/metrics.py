"""What an evaluation measures, summed over batches and devices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric

from archsearch.data.stream import IGNORED


class LanguageMetrics(Metric):
    """Loss (nats per token), perplexity and accuracy over the scored positions, and what `extra` names.

    `last_accuracy` is the accuracy of the last position, `exact` the share of rows with every scored position right.
    Loss and accuracy are also measured for each of the `groups` of positions.
    """

    full_state_update = False

    loss_sum: Tensor
    correct: Tensor
    scored: Tensor
    last_correct: Tensor
    last_scored: Tensor
    exact: Tensor
    rows: Tensor
    group_loss: Tensor
    group_correct: Tensor
    group_scored: Tensor

    def __init__(self, extra: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.extra, self.groups = extra, groups
        self.add_state("loss_sum", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("group_loss", torch.zeros(len(groups)), dist_reduce_fx="sum")
        for name in ("correct", "scored", "last_correct", "last_scored", "exact", "rows"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")
        for name in ("group_correct", "group_scored"):
            self.add_state(name, torch.zeros(len(groups), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor, groups: Tensor | None = None) -> None:
        """Add a batch: `logits` `[B, T, vocabulary]`, `targets` `[B, T]` and the number of each position's group."""
        mask = targets != IGNORED
        hits = (logits.argmax(-1) == targets) & mask
        losses = _losses(logits, targets)
        self.loss_sum += losses.sum()
        self.correct += hits.sum()
        self.scored += mask.sum()
        self.last_correct += hits[:, -1].sum()
        self.last_scored += mask[:, -1].sum()
        self.exact += ((hits == mask).all(-1) & mask.any(-1)).sum()
        self.rows += mask.any(-1).sum()
        if self.groups and groups is not None:
            chosen = (mask & (groups >= 0)).flatten()
            numbers = groups.flatten().clamp(min=0)  # weighed, not picked out: a GPU would be asked how many there are
            self.group_loss.index_add_(0, numbers, losses.flatten().where(chosen, 0.0))
            self.group_correct.index_add_(0, numbers, (hits.flatten() & chosen).long())
            self.group_scored.index_add_(0, numbers, chosen.long())

    def compute(self) -> dict[str, dict[str, Tensor]]:
        """Return the metrics by name: of all positions under "", and of each group that has any under its name."""
        loss = self.loss_sum / self.scored
        extra = {"last_accuracy": self.last_correct / self.last_scored, "exact": self.exact / self.rows}
        whole = {"loss": loss, "perplexity": loss.exp(), "accuracy": self.correct / self.scored}
        return {"": {**whole, **{name: extra[name] for name in self.extra}}, **self._compute_groups()}

    def _compute_groups(self) -> dict[str, dict[str, Tensor]]:
        return {
            name: {"loss": loss / scored, "accuracy": correct / scored}
            for name, loss, correct, scored in zip(
                self.groups, self.group_loss, self.group_correct, self.group_scored, strict=True
            )
            if scored > 0
        }


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each position's cross-entropy `[B, T]`, 0 where it is not scored, in at least float32."""
    logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    losses = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view_as(targets).float()
