"""Mutants of complete TLX kernels: what goes wrong with a barrier, arrive, wait, fence, count, phase or byte operand."""
