"""How tables and pages are printed."""
