"""The timing report: made, written, shown, compared."""
