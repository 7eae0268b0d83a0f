"""Blocks that are computed once more in the backward pass: the same bits, less memory, nothing counted twice."""

from collections import Counter

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.model.generation import generate
from archsearch.model.language_model import HybridLM
from archsearch.training.step import training_losses

HEADS = {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}
ARCHITECTURE = {
    "hidden_size": 16,
    "vocab_size": 7,
    "init_std": 0.5,
    "pattern": "GMASNUD",
    "mixers": {
        "G": {"type": "gated_deltanet", **HEADS},
        "M": {"type": "m2rnn", **HEADS},
        "A": {"type": "attention", "num_heads": 2},
        "S": {"type": "mamba2", "num_heads": 2, "head_dim": 4, "state_dim": 4},
        "N": {"type": "rnn", "num_heads": 2, "head_dim": 4},
        "U": {"type": "gru", "num_heads": 2, "head_dim": 4},
        "D": {"type": "gated_deltaproduct", **HEADS},
    },
    "mlp": {"intermediate_size": 16},
}
EXPERTS = {"type": "moe", "num_experts": 4, "experts_per_token": 2, "intermediate_size": 8, "aux_loss_weight": 0.5}


def build(checkpointing=False, **changes):
    torch.manual_seed(0)
    model = HybridLM(Architecture.from_dict({**ARCHITECTURE, **changes}, Where("x")))
    model.activation_checkpointing = checkpointing
    return model


def batch(packed=False):
    tokens = torch.randint(7, (2, 11), generator=torch.Generator().manual_seed(1))
    bounds = {"cu_seqlens": torch.tensor([0, 3, 10, 17, 20])} if packed else {}
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], **bounds}


def losses_and_gradients(model, batch):
    loss, auxiliary = training_losses(model, batch)
    (loss if auxiliary is None else loss + auxiliary).backward()
    return loss, auxiliary, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("mlp", [ARCHITECTURE["mlp"], EXPERTS], ids=["swiglu", "moe"])
def test_losses_and_gradients_are_the_same_bits(mlp, packed):
    expected = losses_and_gradients(build(mlp=mlp), batch(packed))
    actual = losses_and_gradients(build(checkpointing=True, mlp=mlp), batch(packed))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_every_block_runs_twice_in_training_and_once_without_gradients():
    model, runs = build(checkpointing=True), Counter()
    for number, block in enumerate(model.blocks):
        block.mixer.register_forward_hook(lambda *_, number=number: runs.update([number]))
    losses_and_gradients(model, batch())
    assert runs == dict.fromkeys(range(7), 2)
    runs.clear()
    with torch.no_grad():
        training_losses(model, batch())
    assert runs == dict.fromkeys(range(7), 1)


def test_the_forward_pass_keeps_only_the_inputs_of_blocks():
    def kept(checkpointing):
        elements = Counter()

        def pack(x):
            elements[x.data_ptr()] = x.numel()
            return x

        model = build(checkpointing)
        with saved_tensors_hooks(pack, lambda x: x):
            states = model(batch()["tokens"])[0]
        assert states.requires_grad
        parameters = {parameter.data_ptr() for parameter in model.parameters()}
        return sum(count for place, count in elements.items() if place not in parameters)

    assert kept(checkpointing=True) < 0.1 * kept(checkpointing=False)


def test_the_auxiliary_loss_is_counted_once():
    model = build(checkpointing=True, mlp=EXPERTS)
    loss, auxiliary = training_losses(model, batch())
    before = auxiliary.item()
    (loss + auxiliary).backward()
    assert auxiliary.item() == before == training_losses(build(mlp=EXPERTS), batch())[1].item()
    assert 7 * 0.5 * 0.9 < before < 7 * 0.5 * 2  # seven layers, near the 1 of an even load


def test_decoding_is_unaffected():
    prompts = [[1, 2, 3], [4, 5, 6, 0, 1]]
    assert generate(build(checkpointing=True), prompts, 6) == generate(build(), prompts, 6)


def test_it_can_be_read_back():
    assert build(checkpointing=True).activation_checkpointing
    assert not build().activation_checkpointing
