"""The vector RNN on GPUs, in plain Triton; what the GRU's kernels share with it lies here too."""
