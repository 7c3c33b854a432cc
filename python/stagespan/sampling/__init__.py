"""Where the time of a program went, from samples of its stacks: `stagespan run` without stages."""
