"""How everything is shown: results, and the pages on which they are. Knows nothing of traces."""
