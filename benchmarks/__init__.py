"""The cost of stagespan, compared with its budgets and other tools: `python -m benchmarks`."""
