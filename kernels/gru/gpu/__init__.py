"""The vector GRU on GPUs, in plain Triton."""
