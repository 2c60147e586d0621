"""The measurements of a training run, as a CSV from which the loss curve is drawn. Needs only the standard library."""

import csv
import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Entry:
    step: int
    tokens: int
    train_loss: float               # mean since the previous entry, nats per token, with dropout
    validation_loss: float | None   # without dropout; None when it was not measured at this step


class History:
    """The file always has whole rows. A run that continues from an earlier step first drops the rows after it."""

    def __init__(self, path: pathlib.Path, from_step: int = 0):
        self.path = path
        self.entries = [entry for entry in read(path) if entry.step <= from_step] if path.exists() else []
        self._write()

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._write()

    def _write(self) -> None:
        partial = self.path.with_suffix(".partial")
        with partial.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(field.name for field in dataclasses.fields(Entry))
            for entry in self.entries:
                validation = "" if entry.validation_loss is None else f"{entry.validation_loss:.4f}"
                writer.writerow([entry.step, entry.tokens, f"{entry.train_loss:.4f}", validation])
        partial.replace(self.path)


def read(path: pathlib.Path) -> list[Entry]:
    with path.open(newline="") as file:
        return [Entry(int(row["step"]), int(row["tokens"]), float(row["train_loss"]),
                      float(row["validation_loss"]) if row["validation_loss"] else None) for row in csv.DictReader(file)]
