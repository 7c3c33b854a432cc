"""What stagespan costs, beside its budgets and other tools: `python -m benchmarks`."""
