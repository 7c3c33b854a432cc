"""Data that several analyses need from a trace, computed in one place."""
