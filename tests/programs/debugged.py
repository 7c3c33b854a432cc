"""Runs each kind of callable in debug mode, and prints the signatures."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json

import torch

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, get_io_signatures

X = torch.randn(5, 40)


class Stage:
    @ProfilingContext4Debug("method")
    def method(self, x, steps=3, *, scale=1.0, cache=None):
        return {"x": x}

    @ProfilingContext4Debug("inference")
    @torch.inference_mode()
    def inference(self, x, steps=3):
        return x

    @classmethod
    @ProfilingContext4Debug("class")
    def build(cls, x):
        return x

    @staticmethod
    @ProfilingContext4Debug("static")
    def static(x):
        return x

    @ProfilingContext4Debug("coroutine")
    async def coroutine(self, x):
        await asyncio.sleep(0)
        return (x, 1)

    @ProfilingContext4Debug("generator")
    def generator(self, x):
        yield x

    @ProfilingContext4Debug("failing")
    def failing(self, x):
        raise KeyError("x")


def with_closure(factor):
    @ProfilingContext4Debug(f"closure{factor}")
    @functools.cache
    def inner(value, times=2):
        return value * factor * times

    return inner


stage = Stage()
result = stage.method(X, scale=5.0)
assert result["x"] is X
assert stage.method(x=X, scale=5.0)["x"] is X
stage.inference(X)
Stage.build(X)
Stage.static(X)
assert asyncio.run(stage.coroutine(X)) == (X, 1)
assert list(stage.generator(X)) == [X]
with contextlib.suppress(KeyError):
    stage.failing(X)
assert [with_closure(2)(4), with_closure(3)(4)] == [16, 24]
ProfilingContext4Debug("module")(torch.nn.Linear(40, 2))(X)
with ProfilingContext4Debug("block") as block:
    block.inputs(ids=torch.arange(100), mode="fast")
    block.output([X])
with ProfilingContext("always"):
    pass
names = stagespan.stage_names()
spans = [(names[row["stage"]], int(row["flags"])) for row in stagespan.spans()]
print(
    json.dumps(
        {
            "signatures": get_io_signatures(),
            "first": [name for name, flags in spans if flags & _core.FLAG_FIRST_OF_SHAPE],
            "errors": stagespan.lost()["hook_errors"] + stagespan.lost()["decorator_errors"],
        }
    )
)
