"""The culprit is the dataset of a training by Lightning, which parses numbers in Python."""

import logging
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Measurements(Dataset):
    def __init__(self):
        self.lines = [",".join(str(at * row % 97 / 7) for at in range(400)) for row in range(300)]

    def __len__(self):
        return 3_000

    def __getitem__(self, at):
        return torch.tensor([float(text) ** 0.5 for text in self.lines[at % 300].split(",")])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(400, 8)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.001)


trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(Measurements(), batch_size=50))
print(trainer.global_step)
