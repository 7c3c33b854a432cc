"""The culprit is the garbage collector."""

import gc


class Node:
    def __init__(self):
        self.other = self


def build():
    nodes: list[Node] = []
    for _ in range(60):
        nodes.extend(Node() for _ in range(3_000))
        gc.collect()
    return nodes


print(len(build()))
