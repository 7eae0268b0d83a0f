"""The gate of a SwiGLU MLP on GPUs, in plain Triton."""
