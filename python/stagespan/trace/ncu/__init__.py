"""Nsight Compute (ncu) for a stage's top kernels: its command line, its CSV, and a report.

Neither ncu nor a device is needed here: you can run the command on another machine and read its
file here.
"""
