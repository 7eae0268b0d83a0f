"""The short convolution on GPUs, in plain Triton."""
