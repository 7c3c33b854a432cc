"""Nsight Compute (ncu) for a stage's top kernels: its command line, its CSV, and a report."""
