import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from archsearch import registry
from archsearch.architecture import small
from archsearch.model import generation
from archsearch.model.generation import choose, generate, state_bytes, stream
from archsearch.model.language_model import HybridLM

VOCABULARY = 40
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [11, 12, 13]]
LETTERS = sorted(registry.default_letters())
RECURRENT = [x for x in LETTERS if small().with_pattern(x).cache_bytes(10) == small().with_pattern(x).cache_bytes(1000)]
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64: only the order of sums differs


def build(pattern, dtype=torch.float64):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "vocab_size": VOCABULARY, "init_std": 0.5}
    architecture = dataclasses.replace(small().with_pattern(pattern), **sizes)
    return HybridLM(architecture).to(dtype)


def recompute(model, prompts, max_new_tokens, pick):
    """Continue each prompt alone, reading its whole text anew for every token; also returns the logits."""
    texts, logits = [], []
    for row, prompt in enumerate(prompts):
        text = list(prompt)
        for _ in range(max_new_tokens):
            with torch.no_grad():
                logits.append(model(torch.tensor([text]))[0][0, -1])
            text.append(pick(logits[-1], row))
        texts.append(text[len(prompt) :])
    return texts, torch.stack(logits).unflatten(0, (len(prompts), -1))


def stepwise(model, prompts, max_new_tokens, **options):
    """Return what `stream` yields in the shape of `recompute`."""
    texts, logits = [[] for _ in prompts], [[] for _ in prompts]
    for step in stream(model, prompts, max_new_tokens, **options):
        for row, token in enumerate(step.tokens):
            if token is not None:
                texts[row].append(token)
                logits[row].append(step.logits[row])
    return texts, torch.stack([torch.stack(row) for row in logits])


@pytest.mark.parametrize("pattern", [*LETTERS, "RSMA"])
def test_greedy_tokens_and_logits_are_those_of_reading_the_whole_text_anew(pattern):
    model = build(pattern)
    expected = recompute(model, PROMPTS, 6, lambda logits, _: int(logits.argmax()))
    actual = stepwise(model, PROMPTS, 6)
    assert actual[0] == expected[0] == generate(model, PROMPTS, 6)
    torch.testing.assert_close(actual[1], expected[1], **EXACT)


def test_drawn_tokens_are_those_of_reading_the_whole_text_anew():
    model = build("RMA")
    draws = [np.random.default_rng([5, row]) for row in range(len(PROMPTS))]

    def pick(logits, row):
        return int(choose(logits[None], torch.tensor([draws[row].random()]), 0.9, 0.8))

    expected, logits = recompute(model, PROMPTS, 10, pick)
    actual = stepwise(model, PROMPTS, 10, temperature=0.9, top_p=0.8, seed=5)
    assert actual[0] == expected
    torch.testing.assert_close(actual[1], logits, **EXACT)
    assert expected != recompute(model, PROMPTS, 10, lambda logits, _: int(logits.argmax()))[0]


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_other_rows():
    model = build("MA")
    rows = generate(model, PROMPTS, 12, temperature=1.0, seed=3)
    assert generate(model, PROMPTS, 12, temperature=1.0, seed=3) == rows
    assert generate(model, PROMPTS[:1], 12, temperature=1.0, seed=3) == rows[:1]
    assert generate(model, PROMPTS, 12, temperature=1.0, seed=4) != rows
    same_prompt = generate(model, [[1], [1]], 12, temperature=1.0, seed=3)
    assert same_prompt[0] != same_prompt[1]


def test_a_row_ends_with_its_stop_token_and_the_others_go_on():
    model = build("RA")
    rows = generate(model, PROMPTS, 20)
    stop = next(token for token in rows[1] if token not in rows[0])
    cut = [row[: row.index(stop) + 1] if stop in row else row for row in rows]
    assert generate(model, PROMPTS, 20, stop=stop) == cut
    assert (len(cut[0]), cut[1][-1]) == (20, stop)
    assert len(cut[1]) < 20


def test_steps_end_with_the_last_row_that_goes_on():
    steps = list(stream(build("R"), [[1], [1, 2, 3]], 4))
    assert [[token is not None for token in step.tokens] for step in steps] == [
        [True, False],
        [True, False],
        [True, True],
        [True, True],
        [False, True],
        [False, True],
    ]


def test_a_long_prompt_is_read_in_chunks_with_the_same_result(monkeypatch):
    model, prompt = build("RSMA"), [i % VOCABULARY for i in range(20)]
    whole = stepwise(model, [prompt], 3)
    lengths = []
    model.embedding.register_forward_hook(lambda _, arguments, __: lengths.append(arguments[0].shape[1]))
    monkeypatch.setattr(generation, "PREFILL_CHUNK", 6)
    parts = stepwise(model, [prompt], 3)
    assert lengths == [6, 6, 6, 2, 1, 1]
    assert parts[0] == whole[0]
    torch.testing.assert_close(parts[1], whole[1], **EXACT)


def test_the_head_is_applied_to_the_last_position_of_a_prompt_alone():
    model, shapes = build("R"), []
    model.head.register_forward_hook(lambda _, arguments, __: shapes.append(arguments[0].shape[:2]))
    generate(model, [[1, 2, 3, 4], [1, 2, 3, 4]], 2)
    assert shapes == [(2, 1), (2, 1)]


@pytest.mark.parametrize("pattern", [*LETTERS, "RSMA"])
@pytest.mark.parametrize("length", [10, 1000])
def test_states_take_the_bytes_that_the_architecture_says(pattern, length):
    model = build(pattern, torch.bfloat16)
    prompt = [i % VOCABULARY for i in range(length - 1)]
    for step in stream(model, [prompt, prompt[::-1]], 2):
        states = step.states
    assert state_bytes(states) == 2 * model.architecture.cache_bytes(length, "bfloat16")


def test_recurrent_layers_remember_the_same_bytes_after_any_number_of_steps():
    model = build("".join(RECURRENT), torch.float32)
    sizes = [state_bytes(step.states) for step in stream(model, [[1]], 100)]
    assert set(sizes) == {model.architecture.cache_bytes(1, "float32")}
    assert set("RSM") <= set(RECURRENT)
    assert "A" not in RECURRENT


def test_modes_and_gradients_are_as_before_at_the_end_and_between_steps():
    model = build("R")
    model.blocks[0].mlp.eval()
    before = [module.training for module in model.modules()]
    assert len(set(before)) == 2
    steps = stream(model, [[1]], 5)
    step = next(steps)
    assert not any(module.training for module in model.modules())
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert step.logits.is_inference()
    steps.close()
    assert [module.training for module in model.modules()] == before
    generate(model, [[1]], 2)
    assert [module.training for module in model.modules()] == before
    nn.init.constant_(model.head.weight, float("nan"))
    with pytest.raises(ValueError, match="the model's logits are not finite"):
        generate(model, [[1]], 2)
    assert [module.training for module in model.modules()] == before


PROBABILITIES = [0.05, 0.5, 0.15, 0.3]  # of tokens 0 to 3


def shares(probabilities, temperature=1.0, top_p=1.0):
    """Return how often each token is chosen over 1,000 evenly spaced draws."""
    draws = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    logits = torch.tensor([probabilities], dtype=torch.float64).log().expand(1000, -1)
    chosen = choose(logits.clamp(min=-1e4), draws, temperature, top_p)
    return [x / 1000 for x in torch.bincount(chosen, minlength=len(probabilities)).tolist()]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1.0, PROBABILITIES),
        (0.96, PROBABILITIES),
        (0.94, [0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]),
        (0.7, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        (0.51, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        (0.5, [0, 1, 0, 0]),
        (1e-9, [0, 1, 0, 0]),
    ],
)
def test_the_nucleus_is_the_smallest_set_with_the_mass_asked_for(top_p, expected):
    assert shares(PROBABILITIES, top_p=top_p) == pytest.approx(expected, abs=0.002)


def test_of_equally_likely_tokens_the_lower_are_in_the_nucleus():
    assert shares([0.25] * 4, top_p=0.5) == [0.5, 0.5, 0, 0]
    assert shares([0.25] * 4, top_p=0.51) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.002)


def test_temperature_sharpens_and_flattens():
    squared = [x**2 / sum(y**2 for y in PROBABILITIES) for x in PROBABILITIES]
    assert shares(PROBABILITIES, temperature=0.5) == pytest.approx(squared, abs=0.002)
    assert shares(PROBABILITIES, temperature=1e-6) == [0, 1, 0, 0]
    assert shares(PROBABILITIES, temperature=1e6) == pytest.approx([0.25] * 4, abs=0.002)
    assert shares(PROBABILITIES, temperature=0) == [0, 1, 0, 0]


def test_a_token_without_probability_is_never_drawn():
    logits = torch.tensor([[0.0, -1e5, 0.0, -1e5]])
    assert choose(logits, torch.tensor([0.0]), 1.0).item() == 0
    assert choose(logits, torch.tensor([1 - 2**-24]), 1.0).item() == 2
    assert choose(logits, torch.tensor([1.0]), 1.0).item() == 2  # a number below 1 may be rounded up
    assert choose(logits.bfloat16(), torch.tensor([1 - 2**-24]), 1e-30).item() == 2


def test_a_draw_on_the_bound_of_two_tokens_takes_the_later():
    assert choose(torch.zeros(1, 2), torch.tensor([0.5]), 1.0).item() == 1


def test_low_precision_logits_are_summed_up_in_float32():
    assert choose(torch.zeros(1, 1000, dtype=torch.bfloat16), torch.tensor([0.9005]), 1.0).item() == 900


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "prompts: must hold at least one"),
        ([[1], []], {}, r"prompts\[1\]: must hold at least one token"),
        ([[1, 40]], {}, r"prompts\[0\]: tokens must be from 0 to 39; got 40"),
        ([[-1]], {}, r"prompts\[0\]: tokens must be from 0 to 39; got -1"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens: must be at least 1; got 0"),
        ([[1]], {"temperature": -1.0}, "temperature: must be finite and at least 0; got -1.0"),
        ([[1]], {"temperature": float("nan")}, "temperature: must be finite and at least 0; got nan"),
        ([[1]], {"top_p": 0.0}, "top_p: must be above 0 and at most 1; got 0.0"),
        ([[1]], {"top_p": 1.5}, "top_p: must be above 0 and at most 1; got 1.5"),
        ([[1]], {"seed": -1}, "seed: must be at least 0; got -1"),
    ],
)
def test_what_cannot_work_is_refused(prompts, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        generate(build("R"), prompts, **{"max_new_tokens": 3, **options})
