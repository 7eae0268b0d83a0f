"""The state-space recurrence of Mamba-2 on GPUs, by flash-linear-attention."""
