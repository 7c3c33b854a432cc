"""Read traces: from the bytes of a file to columns."""
