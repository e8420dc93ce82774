"""A LightningModule in its Trainer: one device, `ddp`, `ddp_spawn`, or manual optimization with two optimizers."""

import lightning
import torch
from common import WIDTH, Rows, StepLog, classifier, options
from torch.nn.functional import cross_entropy, mse_loss


class Classifier(lightning.LightningModule):
    """Automatic optimization; the log is written after each update."""

    def __init__(self):
        super().__init__()
        self.model, self.loss_of_step = classifier(), 0.0

    def training_step(self, batch, index):
        inputs, classes = batch
        loss = cross_entropy(self.model(inputs), classes)
        self.loss_of_step += loss.item()
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def on_train_start(self):
        self.step_log, self.logged = StepLog(), 0

    def on_train_batch_end(self, *args):
        if self.trainer.global_step > self.logged and self.trainer.is_global_zero:
            self.logged = self.trainer.global_step
            self.step_log(self.loss_of_step)
            self.loss_of_step = 0.0


class TwoOptimizers(Classifier):
    """Manual optimization: a classifier, and a small decoder with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.decoder = torch.nn.Linear(16, WIDTH)

    def training_step(self, batch, index):
        inputs, classes = batch
        of_model, of_decoder = self.optimizers()
        scores = self.model(inputs)
        loss = cross_entropy(scores, classes)
        of_model.zero_grad()
        self.manual_backward(loss)
        of_model.step()
        of_decoder.zero_grad()
        self.manual_backward(mse_loss(self.decoder(scores.detach()), inputs))
        of_decoder.step()
        self.loss_of_step = loss.item()

    def configure_optimizers(self):
        return super().configure_optimizers(), torch.optim.SGD(self.decoder.parameters(), lr=1e-2)


def main():
    args = options(("--devices", 1), ("--strategy", "auto"), ("--optimization", "automatic"))
    module = Classifier() if args.optimization == "automatic" else TwoOptimizers()
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps * args.devices)
    trainer = lightning.Trainer(
        accelerator=args.device,
        devices=args.devices,
        strategy=args.strategy,
        max_epochs=1,
        accumulate_grad_batches=args.accumulation,
        default_root_dir=args.out,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size))


if __name__ == "__main__":
    main()
