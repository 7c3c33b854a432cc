"""Pages that show results: JSON Schema, Markdown, terminal, HTML."""
