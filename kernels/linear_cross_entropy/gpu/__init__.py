"""The loss of a language model on GPUs, with flash-linear-attention's cross-entropy."""
