"""Names that a package imports on first use."""

from __future__ import annotations

import builtins
import signal
import threading
from typing import Any

import pytest

from stagespan.process.imports import OnFirstUse


def package_named(name: str) -> dict[str, Any]:
    return {"__name__": name, "__builtins__": builtins}


def test_a_signal_handler_may_import_another_package_meanwhile() -> None:
    # GIVEN a signal whose handler runs the same statement for another package
    other = package_named("other")
    lazy_of_other = OnFirstUse(other)

    def handler(number: int, frame: object) -> None:
        with lazy_of_other:
            exec("from json import dumps", other)

    before, real_import = signal.signal(signal.SIGUSR1, handler), builtins.__import__
    package = package_named("package")
    lazy = OnFirstUse(package)
    # WHEN it arrives while names of a package are noted
    watchdog = threading.Timer(60, signal.raise_signal, [signal.SIGABRT])
    watchdog.start()
    try:
        with lazy:
            signal.raise_signal(signal.SIGUSR1)
            exec("from json import loads", package)
    finally:
        watchdog.cancel()
        signal.signal(signal.SIGUSR1, before)
    # THEN both have their names, and the real import is back
    assert ([*lazy], [*lazy_of_other]) == (["loads"], ["dumps"])
    assert builtins.__import__ is real_import
    assert lazy("loads") is package["loads"]
    with pytest.raises(AttributeError, match="has no attribute 'dumps'"):
        lazy("dumps")


def test_a_name_can_have_another_one_in_the_package() -> None:
    # GIVEN a package that has a function by another name
    package = package_named("package")
    with OnFirstUse(package) as lazy:
        exec("from json import loads as read, dumps", package)
    assert ([*lazy], "read" in package) == (["read", "dumps"], False)
    # THEN it is found by this name alone
    assert lazy("read")("[1]") == [1]
    with pytest.raises(AttributeError, match="has no attribute 'loads'"):
        lazy("loads")
