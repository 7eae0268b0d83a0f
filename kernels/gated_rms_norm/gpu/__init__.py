"""Skip, gate and RMSNorm on GPUs, in plain Triton."""
