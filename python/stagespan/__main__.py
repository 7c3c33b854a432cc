"""``python -m stagespan``: the same as the command ``stagespan``."""

from __future__ import annotations

from stagespan.cli import main

if __name__ == "__main__":
    main()
