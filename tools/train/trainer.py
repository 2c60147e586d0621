"""The training loop: a step is a function of the weights, the settings and its number, so a run can stop anywhere."""

import dataclasses
import math
import pathlib
import signal
import time

import numpy as np
import torch
from torch.nn import functional

from decoder import Decoder, DecoderConfig
from history import Entry, History
from muon import Muon
from packing import PackedDocuments

CHECKPOINT = "checkpoint.pt"  # everything that a run needs to continue
BEST = "best.pt"              # the weights with the least validation loss so far


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    steps: int
    precision: str = "float32"   # or "bfloat16", of products; weights and sums stay in float32
    batch_size: int = 16         # windows
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    cooldown: float = 0.3        # fraction of the steps
    weight_decay: float = 0.1
    clip: float = 1.0            # largest norm of the gradient
    dropout: float = 0.1
    seed: int = 1
    log_steps: int = 10
    validate_steps: int = 100
    checkpoint_seconds: float = 600.0


def learning_rate(config: TrainerConfig, step: int) -> float:
    """A linear warm-up, a plateau, and a linear descent to zero over the last steps. It is as good as a cosine
    (arXiv:2405.18392), and does not depend on the number of steps before the descent begins."""
    warm = (step + 1) / config.warmup_steps
    left = (config.steps - step) / (config.cooldown * config.steps)
    return config.learning_rate * min(1.0, warm, left)


def native_precision() -> str:
    """bfloat16 on a GPU, and on a CPU that multiplies in it in half the time of float32; else float32."""
    cpu = getattr(torch.cpu, "get_capabilities", dict)()  # older torch does not have it
    native = torch.cuda.is_available() or cpu.get("avx512_bf16", False) or cpu.get("amx_bf16", False)
    return "bfloat16" if native else "float32"


def time_left(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


class StopRequest:
    """Catches SIGTERM and SIGINT while it is entered, so that the running step ends and is saved."""

    def __enter__(self) -> "StopRequest":
        self.asked = False
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_) -> None:
        self.asked = True


class Trainer:
    def __init__(self, model_config: DecoderConfig, config: TrainerConfig, training: PackedDocuments,
                 validation: PackedDocuments, folder: pathlib.Path):
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(config.seed)
        self.model = Decoder(model_config, config.dropout).to(self.device)
        matrices = [weight for weight in self.model.transformer.blocks.parameters() if weight.ndim == 2]
        norms = [weight for weight in self.model.parameters() if weight.ndim == 1]
        self._optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, config.learning_rate, config.weight_decay),
            torch.optim.AdamW([{"params": [self.model.transformer.wte.weight]}, {"params": norms, "weight_decay": 0.0}],
                              lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True)]
        self._training = training
        self._validation = validation
        self._folder = folder
        self.step = 0
        self.best_loss = math.inf
        self._losses: list[float] = []  # of the steps since the last entry of the history
        if (folder / CHECKPOINT).exists():
            self._restore(torch.load(folder / CHECKPOINT, map_location=self.device, weights_only=True))
        self.history = History(folder / "history.csv", from_step=self.step)

    def run(self) -> bool:
        """Trains to the last step, or until SIGTERM or SIGINT; True when it is done. Saved either way."""
        config = self.config
        tokens_per_step = config.batch_size * self._training.context
        start = saved = time.monotonic()
        first_step = self.step
        with StopRequest() as stop:
            while self.step < config.steps and not stop.asked:
                self._losses.append(self._train_step())
                last = self.step == config.steps
                validated = self._validate() if self.step % config.validate_steps == 0 or last else None
                if self.step % config.log_steps == 0 or validated is not None:
                    entry = Entry(self.step, self.step * tokens_per_step, float(np.mean(self._losses)), validated)
                    self._losses.clear()
                    self.history.add(entry)
                    seconds = (time.monotonic() - start) / (self.step - first_step)
                    self._report(entry, tokens_per_step / seconds, seconds * (config.steps - self.step))
                if last or stop.asked or time.monotonic() - saved > config.checkpoint_seconds:
                    self._save()
                    saved = time.monotonic()
        return self.step >= config.steps

    def _train_step(self) -> float:
        self.model.train()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(self.config, self.step)
        # Dropout depends on the step's number, not on earlier steps.
        torch.manual_seed(self.config.seed * 1_000_003 + self.step)
        loss = self._loss(self._training.batch(self.step, self.config.batch_size))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def _loss(self, windows: np.ndarray) -> torch.Tensor:
        """windows: [batch, context + 1] -> mean loss in nats per token."""
        ids = torch.from_numpy(windows).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            logits = self.model(ids[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    @torch.no_grad()
    def _validate(self) -> float:
        """Loss over all held-out windows. Keeps the weights when it is the least so far."""
        self.model.eval()
        windows = self._validation.windows(0)
        batches = np.array_split(windows, math.ceil(len(windows) / self.config.batch_size))
        loss = sum(self._loss(batch).item() * len(batch) for batch in batches) / len(windows)
        if loss < self.best_loss:
            self.best_loss = loss
            self._write(BEST, {"model": self.model.state_dict(), "step": self.step, "validation_loss": loss})
        return loss

    def _save(self) -> None:
        self._write(CHECKPOINT, {
            "model": self.model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "step": self.step, "best_loss": self.best_loss, "losses": self._losses})

    def _restore(self, saved: dict) -> None:
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self._optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.best_loss, self._losses = saved["step"], saved["best_loss"], saved["losses"]
        print(f"going on from step {self.step}", flush=True)

    def _write(self, name: str, content: dict) -> None:
        """Writes the whole file or nothing of it, even when the machine stops."""
        partial = self._folder / f"{name}.partial"
        torch.save(content, partial)
        partial.replace(self._folder / name)

    def _report(self, entry: Entry, tokens_per_second: float, seconds_left: float) -> None:
        validation = "" if entry.validation_loss is None else f"  validation {entry.validation_loss:.4f}"
        print(f"step {entry.step}/{self.config.steps}  {entry.tokens / 1e6:.2f} M tokens  loss {entry.train_loss:.4f}"
              f"{validation}  {tokens_per_second:.0f} tokens/s  {time_left(seconds_left)} left", flush=True)
