"""The gated delta rule on GPUs, by flash-linear-attention."""
