"""Continue texts token by token: recurrent states and key-value caches carry what has been read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from archsearch.mixers.common import State
from archsearch.model.language_model import HybridLM

PREFILL_CHUNK = 1024  # tokens of a prompt that are read at once: bounds the memory of activations


@dataclass(frozen=True)
class Step:
    """What one position brought: for each row the new token, None where its prompt goes on or it is done.

    `logits` `[B, vocabulary]` are those that the tokens were chosen from, `states` what the model remembered then.
    """

    tokens: list[int | None]
    logits: Tensor
    states: list[State]


def generate(
    model: HybridLM,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    stop: int | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """Return the continuation of each prompt, without the prompt; its last token is `stop` where that was met.

    Arguments and errors are those of `stream`.
    """
    rows: list[list[int]] = [[] for _ in prompts]
    options = {"temperature": temperature, "top_p": top_p}
    for step in stream(model, prompts, max_new_tokens, stop=stop, seed=seed, **options):
        for row, token in zip(rows, step.tokens, strict=True):
            if token is not None:
                row.append(token)
    return rows


@torch.inference_mode()  # on a generator it holds while a step is computed, not between steps
def stream(
    model: HybridLM,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    stop: int | None = None,
    seed: int = 0,
) -> Iterator[Step]:
    """Yield the continuation of all prompts, one position at a time, until each met `stop` or has its new tokens.

    All rows advance together from position 0 without padding: what every prompt has is read in parallel, then the
    longer prompts go on being read while the shorter ones are already continued. Temperature 0 takes the likeliest
    token. A row's random numbers depend on (seed, its number) alone, whatever the other rows are. Until the iterator
    ends or is closed the model is in evaluation mode. Raises ValueError.
    """
    _check(model, prompts, max_new_tokens, temperature, top_p, seed)
    shared = min(map(len, prompts))
    device = model.embedding.weight.device
    draws = [np.random.default_rng([seed, row]) for row in range(len(prompts))]
    left = [max_new_tokens] * len(prompts)
    with _evaluating(model):
        logits, states = _prefill(model, torch.tensor([prompt[:shared] for prompt in prompts], device=device))
        position = shared
        while True:
            new = [position >= len(prompt) and left[row] > 0 for row, prompt in enumerate(prompts)]
            numbers = torch.tensor([draws[row].random() if new[row] else 0.0 for row in range(len(prompts))])
            chosen = choose(logits, numbers, temperature, top_p).tolist()
            for row, is_new in enumerate(new):
                if is_new:
                    left[row] = 0 if chosen[row] == stop else left[row] - 1
            yield Step([token if is_new else None for token, is_new in zip(chosen, new, strict=True)], logits, states)
            if not any(left):
                return
            read = [p[position] if position < len(p) else token for p, token in zip(prompts, chosen, strict=True)]
            logits, states = _read(model, torch.tensor(read, device=device)[:, None], states)
            position += 1


def choose(logits: Tensor, draws: Tensor, temperature: float, top_p: float = 1.0) -> Tensor:
    """Return a token `[B]` per row of `logits` `[B, vocabulary]`, by the row's number in [0, 1) of `draws` `[B]`.

    Above temperature 0 it is drawn from the nucleus: the likeliest tokens, as few as together have probability `top_p`
    (Holtzman et al., arXiv:1904.09751); of equally likely ones the lower token comes first. In at least float32.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if not logits.isfinite().all():
        raise ValueError("the model's logits are not finite, so there is nothing to choose a token by")
    if temperature == 0:
        return logits.argmax(-1)
    # the likeliest is moved to 0 first, for a low temperature must not overflow
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    probabilities, order = scaled.softmax(-1).sort(dim=-1, descending=True, stable=True)
    mass = probabilities.cumsum(-1)
    # rounding must not cut the tail off where all of it is wanted
    kept = (probabilities > 0) & (mass - probabilities < (top_p if top_p < 1 else math.inf))
    last = kept.sum(-1, keepdim=True) - 1
    wanted = draws.to(mass)[:, None] * mass.gather(-1, last)
    place = torch.searchsorted(mass, wanted, right=True).minimum(last)
    return order.gather(-1, place)[:, 0]


def state_bytes(states: list[State]) -> int:
    """Return what the states of all layers and rows take."""
    return sum(part.numel() * part.element_size() for state in states for part in state.values())


def _prefill(model: HybridLM, tokens: Tensor) -> tuple[Tensor, list[State]]:
    states: list[State] | None = None
    for chunk in torch.split(tokens, PREFILL_CHUNK, dim=1):
        logits, states = _read(model, chunk, states)
    assert states is not None
    return logits, states


def _read(model: HybridLM, tokens: Tensor, states: list[State] | None) -> tuple[Tensor, list[State]]:
    logits, states = model(tokens, states, last_only=True)
    assert states is not None
    return logits[:, 0], states


def _check(
    model: HybridLM,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> None:
    vocab_size = model.embedding.num_embeddings
    if not prompts:
        raise ValueError("prompts: must hold at least one")
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompts[{i}]: must hold at least one token")
        if outside := [token for token in prompt if not 0 <= token < vocab_size]:
            raise ValueError(f"prompts[{i}]: tokens must be from 0 to {vocab_size - 1}; got {outside[0]}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: must be at least 1; got {max_new_tokens}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature: must be finite and at least 0; got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: must be above 0 and at most 1; got {top_p}")
    if seed < 0:
        raise ValueError(f"seed: must be at least 0; got {seed}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and back into its own at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
