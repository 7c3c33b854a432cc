"""Redefines functions, drops them, and calls a property, a constructor and one in C."""

import time
import weakref


def burn(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Rows:
    @property
    def total(self):
        burn(0.1)
        return 1


class Made:
    def __init__(self):
        burn(0.1)


def changing():
    burn(0.1)
    return 0


def redefined(number):
    def changing():
        burn(0.1)
        return number

    changing.__qualname__ = "changing"
    return changing


def dropped():
    def inner():
        burn(0.1)

    inner.__qualname__ = "inner"
    globals()["inner"] = inner
    inner()
    del globals()["inner"]
    return weakref.ref(inner)


def main():
    global changing
    until = time.perf_counter() + 4
    number = 0
    while time.perf_counter() < until:
        assert changing() == number
        number += 1
        changing = redefined(number)
        assert Rows().total == 1
        assert type(Made()) is Made
        assert dropped()() is None
        sorted(range(100_000), key=str)


main()
print("done")
