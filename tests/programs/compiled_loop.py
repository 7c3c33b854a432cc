"""A loop over a compiled function, which takes most of the time."""

import time

begin = time.perf_counter()
import torch  # noqa: E402
import torch._dynamo.utils  # noqa: E402


def scale(x):
    return x * 2


@torch.compile(backend="eager")
def compiled(x):
    return scale(x)


def wait():
    time.sleep(0.05)


x = torch.ones(1000)
compiled(x)
# The loop takes more time than the imports, on a busy machine too.
until = time.perf_counter() + max(6, 2 * (time.perf_counter() - begin))
while time.perf_counter() < until:
    for _ in range(200):
        compiled(x)
    wait()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
