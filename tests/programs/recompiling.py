"""The culprit is torch.compile, which compiles a function again for each number."""

import torch
import torch._dynamo

torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 64


class Scaled(torch.nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(20)))

    def forward(self, x):
        return self.layers(x) * len(self.step)


def sample(steps):
    x = torch.randn(16, 32)
    for at in range(steps):
        model = torch.compile(Scaled("x" * at), backend="eager")
        x = model(x).detach()
    return x


print(tuple(sample(20).shape))
