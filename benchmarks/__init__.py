"""What stagespan costs, compared with its budgets and other tools: `python -m benchmarks`."""
