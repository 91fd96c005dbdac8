"""Lightning: the smallest codes from which every single digit can be reconstructed; the best model by its audit."""

import logging
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

import samplewise as sw
from samplewise.integrations.lightning import Audits, Rounds
from studies.data import digits

EPOCHS = 40
CONSTRAINTS = [sw.AtMost("error", 0.02, margin=0.008)]


class Autoencoder(L.LightningModule):
    """Reconstructs an image from a code of sixteen numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))
        self.decoder = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64), nn.Sigmoid())
        self.method = sw.SequentialPenalty(CONSTRAINTS, schedule=sw.Geometric(100.0, growth=1.1, maximum=1e4))

    def evaluate(self, batch):
        images, _ = batch
        code = self.encoder(images)
        return code.abs().mean(1), {"error": sw.measures.mse(self.decoder(code), images)}

    def training_step(self, batch):
        objective, measures = self.evaluate(batch)
        return self.method(objective, **measures)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def main() -> None:
    """Train, and say what holds before and after."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    L.seed_everything(0, verbose=False)
    data = digits()
    splits = {"train": data.train, "test": data.test}
    module = Autoencoder()
    problem = sw.Problem(Autoencoder.evaluate, CONSTRAINTS)
    before = {name: sw.audit(problem, module, split).satisfied for name, split in splits.items()}

    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="train/selection_loss")
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            callbacks=[Rounds(), Audits(problem, splits), best],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(data.train, batch_size=64, shuffle=True))
        module = Autoencoder.load_from_checkpoint(best.best_model_path)

    for name, split in splits.items():
        after = sw.audit(problem, module, split)
        print(f"{name}: {before[name]:.1%} of the digits within the bound before, {after.satisfied:.1%} after")
    print(after)  # the test samples alone say something of others


if __name__ == "__main__":
    main()
