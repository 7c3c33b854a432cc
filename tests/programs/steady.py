"""Does the same again and again. Its functions keep their code.

A sample waits up to 5 ms for the interpreter's lock, and is then often taken where the thread
releases it by itself: behind the function. Functions that are much longer lose little by it.
"""

import asyncio
import time
from collections.abc import Callable


def burn(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Model:
    def __call__(self):
        burn(0.32)


def load():
    time.sleep(0.2)


def rows():
    for _ in range(2):
        burn(0.12)
        yield


ROUTES: dict[str, Callable[[], None]] = {}


def route(function):
    ROUTES[function.__name__] = function
    return function


@route
def held():
    burn(0.16)


async def fetch():
    burn(0.12)
    await asyncio.sleep(0)


def step(model):
    model()
    load()
    list(rows())
    ROUTES["held"]()
    asyncio.run(fetch())


def main():
    model = Model()
    began = time.perf_counter()
    while time.perf_counter() < began + 18:
        step(model)


functions = {name: globals()[name] for name in ("load", "rows", "held", "fetch", "step")}
codes = {name: function.__code__ for name, function in functions.items()}
main()
assert all(functions[name].__code__ is code for name, code in codes.items())
