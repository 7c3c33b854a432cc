"""Analyses the traces of many ranks together: clocks, waiting ranks, a merged timeline."""
