"""The culprit sorts, with a key in Python."""

import random


def rank(values):
    return sorted(values, key=lambda value: -value)


def run():
    values = [random.random() for _ in range(100_000)]
    for _ in range(15):
        rank(values)


run()
