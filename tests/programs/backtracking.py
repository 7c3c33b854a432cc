"""The culprit is a regular expression."""

import re

PATTERN = re.compile(r"(a+)+$")


def is_valid(text):
    return PATTERN.match(text) is not None


def count(texts):
    return sum(map(is_valid, texts))


print(count(["a" * 17 + "b"] * 60))
