"""A residual stream's sum and its RMSNorm on GPUs, in plain Triton."""
