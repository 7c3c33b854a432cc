"""The analyses of one trace, one module each; `stagespan.trace.analysis` runs them."""
