"""Cases for the M²RNN kernels, and their comparison with the float64 loop: on a GPU and in Triton's interpreter.

`python -m tests.kernels.m2rnn_cases` runs the interpreter's cases and prints their errors as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from archsearch.kernels.m2rnn.op import m2rnn

LIMITS = {
    torch.float32: 1e-5,  # products in TF32 with error compensation where V > 32, float32 elsewhere
    torch.bfloat16: 1e-2,  # 2^-9 of rounding in each operand, and tanh to 5e-4
    torch.float16: 1e-2,  # the same tanh
}
NAMES = ("q", "k", "v", "weight", "forget", "initial_state")

Run = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set of shapes and features; `heads` are those of q, k, v, forget and weight."""

    batch: int
    steps: int
    heads: tuple[int, int, int, int, int]
    key: int
    value: int
    dtype: torch.dtype = torch.float32
    clip: float | None = None
    initial: bool = False
    final: bool = False  # the final state gets a gradient
    documents: tuple[int, ...] | None = None
    orthogonal: float | None = 1.0  # W = this times a random orthogonal matrix; None: W = I
    chaotic: bool = False  # W normal: an error grows about fourfold a step
    dy_scale: float = 1.0

    def __str__(self) -> str:
        parts = [str(self.dtype)[6:], f"B{self.batch} T{self.steps} heads{self.heads} K{self.key} V{self.value}"]
        parts += [f"clip{self.clip}"] * (self.clip is not None) + ["h0"] * self.initial + ["dhT"] * self.final
        parts += [f"docs{self.documents}"] * (self.documents is not None) + ["chaotic"] * self.chaotic
        parts += [f"W{self.orthogonal}"] * (self.orthogonal != 1.0) + [f"dy{self.dy_scale}"] * (self.dy_scale != 1.0)
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    tensors: list[Tensor | None]  # as in NAMES, rounded to the case's dtype
    cu_seqlens: Tensor | None
    dy: Tensor
    dstate: Tensor


def draw(case: Case, device: str, seed: int = 0) -> Inputs:
    g = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, device=device)

    b, t, n = case.batch, case.steps, max(case.heads)
    nq, nk, nv, nf, nw = case.heads
    q = torch.nn.functional.normalize(normal(b, t, nq, case.key), dim=-1)
    k = torch.nn.functional.normalize(normal(b, t, nk, case.key), dim=-1)
    v = normal(b, t, nv, case.value)
    if case.chaotic:
        weight = normal(nw, case.value, case.value)
        forget = torch.full((b, t, nf), 0.1, device=device)
    else:
        weight = torch.eye(case.value, device=device).expand(nw, -1, -1)
        if case.orthogonal is not None:
            weight = case.orthogonal * torch.linalg.qr(normal(nw, case.value, case.value).cpu())[0].to(device)
        forget = 0.05 + 0.95 * torch.rand(b, t, nf, generator=g, device=device)
    sequences = b if case.documents is None else len(case.documents)
    state = 0.5 * normal(sequences, n, case.key, case.value) if case.initial else None
    bounds = None
    if case.documents is not None:
        assert sum(case.documents) == t
        bounds = torch.tensor([0, *case.documents]).cumsum(0).to(device)
    dy = (normal(b, t, n, case.value) * case.dy_scale).to(case.dtype)
    dstate = normal(sequences, n, case.key, case.value)
    low = [x.to(case.dtype) for x in (q, k, v, weight)]
    return Inputs(tensors=[*low, forget, state], cu_seqlens=bounds, dy=dy, dstate=dstate)


def errors(run: Run, case: Case, inputs: Inputs) -> dict[str, float]:
    """Return ||a - b|| / ||b|| of y, the final state and every gradient; NaN counts as infinite.

    `run` takes the inputs by their order in NAMES, then the clip and `cu_seqlens`.
    """
    actual = results(run, case, inputs)
    wide = [None if x is None else x.double() for x in inputs.tensors]
    exact = results(loop, case, Inputs(tensors=wide, cu_seqlens=inputs.cu_seqlens, dy=inputs.dy, dstate=inputs.dstate))
    names = ["y", "state", *(name for name, x in zip(NAMES, wide, strict=True) if x is not None)]
    return {name: relative_error(a, b) for name, a, b in zip(names, actual, exact, strict=True)}


def results(run: Run, case: Case, inputs: Inputs) -> list[Tensor]:
    """Return y, the final state and the gradient of each input."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs.tensors]
    y, state = run(*leaves, case.clip, inputs.cu_seqlens)
    outputs, gradients = [y], [inputs.dy.to(y.dtype)]
    if case.final:
        outputs, gradients = [y, state], [inputs.dy.to(y.dtype), inputs.dstate.to(state.dtype)]
    wanted = [x for x in leaves if x is not None]
    return [y.detach(), state.detach(), *torch.autograd.grad(outputs, wanted, gradients)]


def loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    forget: Tensor,
    state: Tensor | None = None,
    clip: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the reference, document by document; an empty one passes its state on."""
    if cu_seqlens is None:
        return m2rnn(q, k, v, weight, forget, initial_state=state, gradient_clip=clip, backend="reference")
    outputs, finals = [], []
    bounds = cu_seqlens.tolist()
    for i, (start, end) in enumerate(pairwise(bounds)):
        initial = None if state is None else state[i : i + 1]
        if start == end:
            assert initial is not None
            finals.append(initial)
            continue
        y, final = loop(*(x[:, start:end] for x in (q, k, v)), weight, forget[:, start:end], initial, clip)
        outputs.append(y)
        finals.append(final)
    return torch.cat(outputs, dim=1), torch.cat(finals)


def relative_error(actual: Tensor, exact: Tensor) -> float:
    error = ((actual.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()
    return error if error == error else float("inf")


INTERPRETER = [
    Case(batch=1, steps=1, heads=(1, 1, 1, 1, 1), key=4, value=4, initial=True, final=True),
    Case(batch=2, steps=5, heads=(1, 1, 2, 2, 2), key=8, value=4),
    Case(batch=1, steps=17, heads=(1, 2, 1, 2, 1), key=20, value=5, clip=0.05, initial=True, final=True),
    Case(batch=1, steps=21, heads=(2, 1, 2, 1, 2), key=16, value=17, documents=(3, 1, 0, 17), clip=0.1,
         initial=True, final=True),
    Case(batch=1, steps=18, heads=(1, 1, 2, 1, 2), key=17, value=65, clip=0.1, initial=True, final=True),
]  # fmt: skip


def gpu_cases() -> Sequence[Case]:
    """Return what GPUs run: the lengths, head counts, head sizes, types and features that the kernels branch on."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    cases: list[Case] = []
    published, few = (1, 1, 6, 6, 6), (1, 2, 4, 4, 2)

    def add(dtype: torch.dtype, steps: int, heads: tuple[int, ...], key: int, value: int, **rest: object) -> None:
        cases.append(Case(dtype=dtype, steps=steps, heads=heads, key=key, value=value, **{"batch": 2, **rest}))  # type: ignore[arg-type]

    everything = {"initial": True, "final": True, "clip": 1.0}
    for dtype in (bf16, fp32):
        for steps in (1, 15, 16, 17, 64, 333, 1000):
            add(dtype, steps, published, 64, 16, orthogonal=0.95, **everything)
        add(dtype, 500, published, 64, 16)
        add(dtype, 500, published, 64, 16, orthogonal=None, clip=1.0)
        add(dtype, 257, published, 64, 16, batch=1, clip=0.02, initial=True, final=True)
        for heads in ((6, 6, 6, 6, 6), (6, 1, 1, 1, 1), (1, 6, 1, 1, 2), (1, 1, 6, 1, 1), (2, 3, 1, 6, 1),
                      (1, 1, 1, 6, 3), (1, 2, 1, 1, 6)):  # fmt: skip
            add(dtype, 100, heads, 32, 16, orthogonal=0.95, **everything)
    for key, value in ((4, 4), (20, 5), (12, 12), (48, 16), (128, 16), (7, 9), (96, 8), (64, 32), (16, 24), (64, 64),
                       (40, 48), (128, 128), (24, 100)):  # fmt: skip
        add(bf16, 70, few, key, value, **everything)
    for key, value in ((4, 4), (20, 5), (128, 16), (64, 32), (40, 48), (64, 64), (33, 128), (128, 128)):
        add(fp32, 70, few, key, value, batch=1, **everything)
    add(bf16, 600, (1, 1, 2, 2, 2), 64, 64, batch=1, orthogonal=0.95, **everything)
    add(fp32, 400, (1, 1, 2, 2, 2), 64, 64, batch=1, orthogonal=0.95, **everything)
    for dtype, value in ((bf16, 16), (bf16, 32), (fp32, 16)):
        add(dtype, 300, published, 64, value, batch=1, documents=(1, 16, 50, 0, 33, 200), **everything)
        add(dtype, 130, (1, 1, 4, 1, 1), 20, value, batch=1, documents=(17, 113), orthogonal=0.95)
    for key, value in ((64, 16), (20, 5), (64, 64)):
        add(fp16, 200, (1, 1, 4, 4, 4), key, value, orthogonal=0.95, **everything)
    add(fp16, 100, (1, 1, 4, 4, 4), 64, 16, dy_scale=1e-3)  # 1e-5 would leave dv itself in float16's subnormals
    # As many steps as the type's rounding leaves within its limit; neither case is long enough for the Gluon kernels.
    add(bf16, 2, published, 64, 16, batch=4, chaotic=True)
    add(fp32, 6, published, 64, 16, batch=4, chaotic=True)
    add(fp32, 6, published, 64, 16, batch=4, chaotic=True, **everything)
    return cases


def main() -> None:
    from archsearch.kernels.m2rnn.gpu.custom_op import m2rnn_triton

    torch.use_deterministic_algorithms(True)  # memory that nobody has written reads NaN
    print(json.dumps({str(case): errors(m2rnn_triton, case, draw(case, "cpu")) for case in INTERPRETER}))


if __name__ == "__main__":
    main()
