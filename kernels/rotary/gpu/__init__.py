"""Rotary position embedding on GPUs, in plain Triton."""
