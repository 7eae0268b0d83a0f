"""Where the kernel time of a training step goes: `python studies/training_h200/parts.py B T PATTERN...`."""

import sys

import torch

from archsearch.architecture import Architecture, resolve
from archsearch.model.language_model import HybridLM
from archsearch.throughput.timing import kernel_time
from archsearch.training.step import OptimizerOptions, build_optimizer, train_step

KINDS = {
    "convolution": ("short_conv",),
    "gate and norm": ("gated_rms",),
    "SwiGLU": ("swiglu",),
    "matrix products": ("gemm", "nvjet", "cutlass"),
    "attention": ("flash", "fmha"),
    "sum and RMSNorm": ("add_rms_norm", "layer_norm", "rms"),
    "rotary": ("rotary",),
    "loss": ("cross_entropy",),
    "AdamW": ("adam",),
    "recurrence": (
        "forward_kernel",
        "backward_kernel",
        "sum_output",
        "sum_grad",
        "chunk",
        "wy",
        "solve",
        "l2norm",
        "carry_",
        "output_kernel",
        "gradient_kernel",
        "scale_kernel",
        "sum_decays",
        "gradients_kernel",
    ),
}


def main(rows: int, length: int, patterns: list[str]) -> None:
    for pattern in patterns:
        architecture = resolve(pattern, "search_spaces/hybrid_410m.yaml")
        print(pattern, parts(architecture, rows, length), flush=True)


def parts(architecture: Architecture, rows: int, length: int) -> dict[str, float]:
    """Return the milliseconds of each part of one step, after eight others."""
    tokens = torch.randint(architecture.vocab_size, (rows, length + 1), device="cuda")
    batch = {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    with torch.device("cuda"):
        model = HybridLM(architecture)
    optimizer = build_optimizer(model, OptimizerOptions())

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            train_step(model, optimizer, batch, 1.0)

    for _ in range(8):
        step()
    return {kind: round(time, 1) for kind, time in kernel_time(step, KINDS, runs=1).items()}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
