"""Pipelines with one stage, two stages, and none."""

from __future__ import annotations

import torch


class Refine:
    def __init__(self, name):
        self.name = name

    def process(self, x):
        return x @ x.T


class Held:
    def __init__(self, *stages):
        self.stages = {"all": list(stages)}


class Pipeline:
    def __init__(self, *names):
        self.model = torch.nn.Linear(4, 4)
        self.held = Held(*map(Refine, names))
        self.itself = self

    def __call__(self, x):
        return self.held.stages["all"][0].process(x)

    @property
    def broken(self):
        raise RuntimeError("a property was read")


def get_one():
    return Pipeline("only")


def get_two():
    return Pipeline("first", "second")


def get_none():
    return Held()
