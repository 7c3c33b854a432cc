"""Texts that people read: tables, pages, escaping, and secrets that are not shown."""
