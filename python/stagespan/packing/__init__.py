"""Tells PyInstaller what a program that uses stagespan needs. It finds this by an entry point."""

from __future__ import annotations


def hook_folders() -> list[str]:
    """Return the folder with the file that PyInstaller reads for each program with stagespan."""
    return list(__path__)
