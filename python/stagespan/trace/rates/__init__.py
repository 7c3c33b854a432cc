"""The work of operators: their operations and bytes from shapes, and the peaks of devices."""
