"""Run a model over the rows of a case."""

from __future__ import annotations

import torch

from archsearch.config import ConfigError
from archsearch.evaluate.score import default_batch_size, score
from archsearch.evaluate.suites import Case
from archsearch.evaluate.tally import Figure, Tally
from archsearch.model.language_model import HybridLM


def measure(model: HybridLM, case: Case, batch_size: int | None = None) -> list[Figure]:
    """Return the figures of a case, of which one batch at a time is in memory. Raises ConfigError.

    The model has to be in evaluation mode.
    """
    rows_at_once = batch_size or default_batch_size(model, case.length)
    tally = Tally(case.source.groups)
    try:
        for first in range(0, case.rows, rows_at_once):
            batch = case.source.batch(range(first, min(case.rows, first + rows_at_once)))
            tally.add(batch, score(model, batch))
    except torch.OutOfMemoryError:
        size = f"{rows_at_once} rows of {case.length} tokens"
        raise ConfigError(f"{case.task}: out of memory with {size}; --batch-size takes fewer") from None
    return tally.figures(case.metrics)
