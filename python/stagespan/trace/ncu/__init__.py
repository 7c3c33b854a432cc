"""Nsight Compute beside a trace: its command for a stage's top kernels, its CSV, and what it says.

Needs neither ncu nor a device: the command can be run elsewhere, and its file read here.
"""
