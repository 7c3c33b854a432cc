"""The running process, seen from inside: statistics, open spans, log lines."""
