"""The culprit reads the elements of tensors one by one in the loop of a training."""

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 20))
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def accuracy(scores, labels):
    best = scores.argmax(1)
    right = sum(best[at].item() == labels[at].item() for at in range(len(labels)))
    return right / len(labels)


def train(steps):
    total = 0.0
    for _ in range(steps):
        labels = torch.randint(20, (1_000,))
        scores = model(torch.randn(1_000, 64))
        total += accuracy(scores, labels)
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return total


print(train(400) >= 0)
