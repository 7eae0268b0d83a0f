"""The state-space recurrence of Mamba-2 on GPUs: plain Triton inside chunks, cuBLAS between them."""
