"""Counts the operators that torch.profiler has recorded, while it is recording."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from pathlib import Path

# torch.profiler keeps operators in blocks of fixed size, for each thread, and counts the blocks in
# a static variable of libtorch_cpu.so: `counter_` in the constructor of EventBlock, in
# torch/csrc/profiler/collection.h. The size of a block is a part of the symbol's name. The last
# digit is the kind of constructor, which depends on the compiler.
_BLOCKS = (512, 1024)
_SYMBOL = (
    "_ZZN5torch8profiler4impl19ThreadLocalSubqueue14TorchOpStorage10EventBlockINS1_21"
    "KinetoObserverContext5EventELm{block}EEC{kind}EvE8counter_"
)


class OperatorCounter:
    """Counts the operators and annotations that are recorded from `start` on, in all threads."""

    def __init__(self) -> None:
        self._counter = _blocks()
        self._before = 0

    def start(self) -> None:
        """Count from here on."""
        if self._counter is not None:
            self._before = self._counter[0].value

    def count(self) -> int | None:
        """Return the number, rounded up to whole blocks of each thread.

        Returns None if this build of torch does not show it.
        """
        if self._counter is None:
            return None
        blocks, size = self._counter
        return (blocks.value - self._before) * size


@functools.cache
def _blocks() -> tuple[ctypes.c_uint64, int] | None:
    """Return torch's variable with the number of all blocks so far, and a block's size."""
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    # Only the library that torch has loaded: a second copy would be another variable.
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    for block, kind in itertools.product(_BLOCKS, "421"):
        try:
            symbol = _SYMBOL.format(block=block, kind=kind)
            return ctypes.c_uint64.in_dll(loaded, symbol), block
        except ValueError:
            continue
    return None
