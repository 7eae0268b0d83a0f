"""What transformers asks of a model: its configuration, its cache, and its classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple, logging

from archsearch.export.huggingface.parts import MIXERS, MLPS
from archsearch.mixers.common import State

logger = logging.get_logger(__name__)

# releases from 5 on have renamed it
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class ArchsearchConfig(PretrainedConfig):
    """The sizes of the model, its pattern (a letter is a layer), and what the letters stand for.

    `mixers` has by letter a type and its options; `mlp` likewise, `mlps` for the letters that have another one.
    """

    model_type = "archsearch"
    keys_to_ignore_at_inference = [CACHE]  # noqa: RUF012 - the Trainer adds a list to it

    def __init__(
        self,
        hidden_size: int = 128,
        vocab_size: int = 256,
        pattern: str = "",
        mixers: Mapping[str, Mapping[str, Any]] | None = None,
        mlp: Mapping[str, Any] | None = None,
        mlps: Mapping[str, Mapping[str, Any]] | None = None,
        norm_eps: float = 1e-5,
        tie_embeddings: bool = False,
        init_std: float = 0.02,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.hidden_size, self.vocab_size, self.pattern = hidden_size, vocab_size, pattern
        self.mixers, self.mlp, self.mlps = dict(mixers or {}), dict(mlp or {}), dict(mlps or {})
        self.norm_eps, self.init_std, self.use_cache = norm_eps, init_std, use_cache
        self.tie_embeddings = tie_embeddings
        self.num_hidden_layers = len(pattern)
        super().__init__(**{**kwargs, "tie_word_embeddings": tie_embeddings})


class StateCache(Cache):
    """What every layer remembers of the tokens it has seen: recurrent states, taps of filters, keys and values."""

    is_compileable = False
    is_croppable = False

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.states: list[State] | None = None
        self.length = 0

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return the number of tokens seen."""
        return self.length

    def reset(self) -> None:
        """Forget everything."""
        self.states, self.length = None, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the rows that a beam search goes on with."""
        self.states = [
            {name: part.index_select(0, beam_idx.to(part.device)) for name, part in state.items()}
            for state in self.states or []
        ]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        states = self.states or []
        self.states = [{name: part.repeat_interleave(repeats, 0) for name, part in x.items()} for x in states]

    def crop(self, *_: Any, **__: Any) -> None:
        """Refuse: what a recurrence has read it cannot take back."""
        raise NotImplementedError("a recurrent state cannot be cropped")


class Block(nn.Module):
    """`x + mixer(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, config: ArchsearchConfig, letter: str) -> None:
        super().__init__()
        hidden_size, eps = config.hidden_size, config.norm_eps
        self.mixer_norm = nn.RMSNorm(hidden_size, eps=eps)
        self.mixer = build(MIXERS, config.mixers[letter], hidden_size, norm_eps=eps)
        self.mlp_norm = nn.RMSNorm(hidden_size, eps=eps)
        self.mlp = build(MLPS, config.mlps.get(letter, config.mlp), hidden_size)
        output_std = config.init_std / math.sqrt(2 * len(config.pattern))
        self.mixer.reset_parameters(config.init_std, output_std)
        self.mlp.reset_parameters(config.init_std, output_std)

    def forward(self, x: Tensor, state: State | None, cu_seqlens: Tensor | None) -> tuple[Tensor, State | None]:
        """Return the hidden states `[B, T, D]` and what the mixer remembers."""
        mixed, state = self.mixer(self.mixer_norm(x), state, cu_seqlens)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), state


class ArchsearchPreTrainedModel(PreTrainedModel):
    """What both models share."""

    config_class = ArchsearchConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Block",)
    _is_stateful = True

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load as every model does, but refuse files that lack a weight. Raises ValueError."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        if info["missing_keys"]:
            raise ValueError(f"the files lack weights of the model: {', '.join(sorted(info['missing_keys']))}")
        return (model, info) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Draw embeddings and the head; all other modules have drawn their weights when they were built."""
        if isinstance(module, nn.Embedding) or module is getattr(self, "lm_head", None):
            nn.init.normal_(module.weight, std=self.config.init_std)


class ArchsearchModel(ArchsearchPreTrainedModel):
    """Embedding, the blocks of the pattern, and a final RMSNorm."""

    def __init__(self, config: ArchsearchConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, letter) for letter in config.pattern)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding."""
        self.embedding = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool = False,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Return the hidden states `[B, T, D]` of `input_ids` `[B, T]`, and a cache to go on from.

        Places that `attention_mask` `[B, T]` leaves out, on whichever side, take no part; their hidden states are 0.
        `position_ids` that start again at 0 within a row begin a document, which sees nothing of the one before.
        Neither goes with a cache. Raises ValueError.
        """
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        rows, length = x.shape[:2]
        known = as_state_cache(past_key_values if cache is None else cache)
        mask, cu_seqlens = documents(rows, length, attention_mask, position_ids)
        if mask is not None:
            if use_cache or known is not None:
                raise ValueError(
                    "padded rows and packed documents leave no state to go on from: "
                    "pass rows of one length without padding, or use_cache=False"
                )
            x = x[mask][None]
        elif known is None and (use_cache or (use_cache is None and self.config.use_cache and not self.training)):
            known = StateCache()

        seen, states = [x], []
        for i, block in enumerate(self.blocks):
            arguments = x, known.states[i] if known is not None and known.states else None, cu_seqlens
            if self.gradient_checkpointing and self.training:
                x, state = self._gradient_checkpointing_func(block.__call__, *arguments)
            else:
                x, state = block(*arguments)
            seen.append(x)
            states.append(state)
        seen[-1] = self.norm(x)
        if known is not None:
            known.states, known.length = states, known.length + length
        if mask is not None:
            seen = [x.new_zeros(rows, length, x.shape[-1]).index_put((mask,), x[0]) for x in seen]
        return BaseModelOutputWithPast(
            last_hidden_state=seen[-1], hidden_states=tuple(seen) if output_hidden_states else None, **{CACHE: known}
        )


class ArchsearchForCausalLM(ArchsearchPreTrainedModel, GenerationMixin):
    """The language model: `ArchsearchModel` and a head."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012 - as transformers declares it

    def __init__(self, config: ArchsearchConfig) -> None:
        super().__init__(config)
        self.model = ArchsearchModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding."""
        embedding: nn.Module = self.model.embedding
        return embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding."""
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Linear:
        """Return the head."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the head."""
        self.lm_head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool = False,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits `[B, T, vocabulary]`, of the last places only where `logits_to_keep` says so.

        With `labels` `[B, T]`, -100 not counted, also the mean cross-entropy of each next token. All else as
        `ArchsearchModel`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, **{CACHE: outputs.get(CACHE)}
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Return the arguments of `forward` that read what the cache has not seen, of padded rows everything."""
        known = as_state_cache(past_key_values if cache is None else cache)
        if known is None and attention_mask is not None and not bool(attention_mask.all()):
            logger.warning_once("padded rows are read anew for every token; rows of one length would have a cache")
            use_cache = False
        return {
            "input_ids": input_ids if known is None else input_ids[:, known.length :],
            "attention_mask": attention_mask,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep or 0,
            CACHE: known,
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False


def build(table: Mapping[str, tuple[Any, Any]], values: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Return the mixer or MLP that `values` describe: its type in the table, and its options."""
    options, module = table[values["type"]]
    return module(options(**{key: value for key, value in values.items() if key != "type"}), *args, **kwargs)


def as_state_cache(cache: Cache | None) -> StateCache | None:
    """Return a cache as this model's own; one of another kind is replaced while it is empty. Raises TypeError."""
    if cache is None or isinstance(cache, StateCache):
        return cache
    if cache.get_seq_length():
        raise TypeError(f"the cache must be a StateCache, which a first call returns; got {type(cache).__name__}")
    return StateCache()


def documents(
    rows: int, length: int, attention_mask: Tensor | None, position_ids: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return which places `[B, T]` hold tokens, and the bounds of documents among those, laid end to end.

    None and None where every row is one document without padding. Raises ValueError.
    """
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(f"attention_mask must be [batch, length]; got {tuple(attention_mask.shape)}")
    padded = attention_mask is not None and not bool(attention_mask.all())
    restarted = position_ids is not None and bool((position_ids[:, 1:] == 0).any())
    if not padded and not restarted:
        return None, None
    given = attention_mask if attention_mask is not None else position_ids
    assert given is not None
    mask = torch.ones(rows, length, dtype=torch.bool, device=given.device)
    if attention_mask is not None:
        if attention_mask.shape != mask.shape:
            raise ValueError("attention_mask leaves out tokens that a cache has seen; pass rows without padding")
        mask = attention_mask.bool()
    starts = mask & (mask.cumsum(1) == 1)
    if position_ids is not None:
        starts = starts | (position_ids == 0)
    kept = starts[mask]
    return mask, torch.cat([kept, kept.new_ones(1)]).nonzero()[:, 0]
