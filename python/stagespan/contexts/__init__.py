"""Contexts and decorators that time stages, and the hooks around them."""
