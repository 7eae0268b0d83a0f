import dataclasses
import math

import pytest
import torch

from archsearch.architecture import small
from archsearch.model.language_model import HybridLM


def build(pattern, **changes):
    torch.manual_seed(0)
    return HybridLM(dataclasses.replace(small().with_pattern(pattern), vocab_size=40, **changes))


def test_a_sequence_may_be_cut_anywhere():
    model = build("RSMA").double()
    tokens = torch.randint(40, (2, 11))
    whole, _ = model(tokens)
    states, parts = None, []
    for part in tokens.split([1, 6, 4], dim=1):
        logits, states = model(part, states)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_packed_documents_do_not_see_each_other():
    model = build("RSMA").double()
    tokens = torch.randint(40, (2, 6))
    packed, states = model(tokens, None, torch.tensor([0, 2, 6, 9, 12]))
    assert states is None
    alone = [model(part[None])[0][0] for part in tokens.flatten().split([2, 4, 3, 3])]
    torch.testing.assert_close(packed.reshape(12, -1), torch.cat(alone))


def test_projections_back_into_the_residual_are_scaled_by_depth():
    model = build("M8", init_std=0.05)
    scaled = 0.05 / math.sqrt(16)
    for block in model.blocks:
        assert block.mlp.gate_up_proj.weight.std().item() == pytest.approx(0.05, rel=0.05)
        assert block.mlp.down_proj.weight.std().item() == pytest.approx(scaled, rel=0.05)
        assert block.mixer.in_proj.weight.std().item() == pytest.approx(0.05, rel=0.05)
        assert block.mixer.out_proj.weight.std().item() == pytest.approx(scaled, rel=0.05)


def test_tied_embeddings_are_one_parameter():
    model = build("M", tie_embeddings=True)
    assert model.head.weight is model.embedding.weight
    assert build("M").head.weight is not build("M").embedding.weight


def test_the_first_loss_is_that_of_a_uniform_guess():
    model = build("R2MA")
    tokens = torch.randint(40, (4, 33))
    logits, _ = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(40), abs=0.1)
