"""Calls the extension; its C++ scopes appear as children of Python's spans."""

from __future__ import annotations

import cpp_stages

import stagespan


def main() -> None:
    """Run both functions and print the figures."""
    with stagespan.span("python side"):
        print("trace:", cpp_stages.multiply(100))
    print("trace:", cpp_stages.multiply_on_thread(100))
    print(stagespan.stats())


if __name__ == "__main__":
    main()
