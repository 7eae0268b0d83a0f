"""M²RNN on NVIDIA GPUs: Gluon kernels for bfloat16 on Hopper, plain Triton for the rest."""
