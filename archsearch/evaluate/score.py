"""What a model gives the targets of a batch, in pieces that fit in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from archsearch.config import ConfigError
from archsearch.data.stream import IGNORED
from archsearch.mixers.common import State
from archsearch.model.generation import PREFILL_CHUNK
from archsearch.model.language_model import HybridLM

MOST_LOGITS = 2**26
"""Logits that are computed at once: 256 MiB in float32."""


class Scores(NamedTuple):
    """Per position `[B, T]`: the target's `losses` in nats, and whether it is the likeliest; 0 and false elsewhere."""

    losses: NDArray[np.float64]
    hits: NDArray[np.bool_]


def default_batch_size(model: HybridLM, length: int) -> int:
    """Return how many rows of `length` tokens make a batch: MOST_LOGITS at most, and 32 rows."""
    return max(1, min(32, MOST_LOGITS // (length * model.embedding.num_embeddings)))


@torch.inference_mode()
def score(model: HybridLM, batch: dict[str, Tensor]) -> Scores:
    """Return what the model, in evaluation mode, gives `targets` of `tokens` `[B, T]`, in at least float32.

    Rows are read in chunks between which recurrent states and caches are carried, packed documents (`cu_seqlens`) as a
    whole. Raises ConfigError where logits are not finite.
    """
    tokens, targets = batch["tokens"], batch["targets"]
    device, rows = model.embedding.weight.device, len(tokens)
    if "cu_seqlens" in batch:
        logits, _ = model(tokens.to(device), None, batch["cu_seqlens"])
        pieces = [_score(logits, targets.to(device))]
    else:
        chunk = min(PREFILL_CHUNK, max(1, MOST_LOGITS // (rows * model.embedding.num_embeddings)))
        pieces = _score_chunks(model, tokens, targets, chunk)
    losses, hits = (torch.cat(parts, dim=1).cpu() for parts in zip(*pieces, strict=True))
    if not losses.isfinite().all():
        raise ConfigError("the model's logits are not finite, so there is nothing to evaluate")
    return Scores(losses.double().numpy(), hits.numpy())


def _score_chunks(model: HybridLM, tokens: Tensor, targets: Tensor, chunk: int) -> list[tuple[Tensor, Tensor]]:
    device = model.embedding.weight.device
    states: list[State] | None = None
    pieces: list[tuple[Tensor, Tensor]] = []
    for part, wanted in zip(torch.split(tokens, chunk, dim=1), torch.split(targets, chunk, dim=1), strict=True):
        is_scored = bool((wanted != IGNORED).any())
        logits, states = model(part.to(device), states, last_only=not is_scored)
        nothing: Any = torch.zeros(wanted.shape, device=device)
        pieces.append(_score(logits, wanted.to(device)) if is_scored else (nothing, nothing.bool()))
    return pieces


def _score(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    scored = targets != IGNORED
    logits = logits[scored]  # of a long row only the answers may count
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = torch.zeros(targets.shape, dtype=logits.dtype, device=targets.device)
    losses[scored] = functional.cross_entropy(logits, targets[scored], reduction="none")
    hits = torch.zeros_like(scored)
    hits[scored] = logits.argmax(-1) == targets[scored]
    return losses, hits
