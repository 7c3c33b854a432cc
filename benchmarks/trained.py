"""A training script without stages, which `benchmarks.sampling` runs: loading, a model, a report.

Its argument is the number of epochs.
"""

import json
import random
import re
import sys

import torch


def lines() -> list[str]:
    """Return records as text, as a loader reads them."""
    numbers = random.Random(1)
    return [
        json.dumps({"id": n, "words": [f"w{numbers.randrange(500)}" for _ in range(24)]})
        for n in range(1_500)
    ]


def tokenize(record: str) -> list[int]:
    """Return the numbers of the words of a record."""
    words = json.loads(record)["words"]
    return [int(number) for word in words for number in re.findall(r"\d+", word)]


class Model(torch.nn.Module):
    """Classifies the words of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(500, 64)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of records."""
        return self.layers(self.embedding(words))


def train(epochs: int) -> float:
    """Train for some epochs, and return the last loss."""
    torch.manual_seed(1)
    model, records = Model(), lines()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(epochs):
        for first in range(0, len(records), 32):
            words = torch.tensor([tokenize(record) for record in records[first : first + 32]])
            loss = torch.nn.functional.cross_entropy(model(words), words[:, 0] % 10)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print("loss", train(int(sys.argv[1])))
