"""Packs documents into windows of equal length, in an order that depends only on (seed, epoch)."""

import numpy as np


class PackedDocuments:
    """Every epoch shuffles the documents, joins them with an end-of-text token before each, and cuts the stream into
    windows. So the borders differ in each epoch, and any step's batch can be made again without the earlier steps."""

    def __init__(self, documents: list[list[int]], end_of_text: int, context: int, seed: int):
        self.context = context
        self._seed = seed
        self._documents = [np.array([end_of_text, *ids], dtype=np.int64) for ids in documents]
        self.num_tokens = sum(len(ids) for ids in self._documents)
        # Neighbouring windows share one token: the last token of a window is only a target there, and the next
        # window begins with it.
        self.num_windows = (self.num_tokens - 1) // context
        if self.num_windows < 1:
            raise ValueError(f"data: want more than {context} tokens, got {self.num_tokens}")
        self._epoch = -1
        self._windows = np.empty(0)

    def windows(self, epoch: int) -> np.ndarray:
        """[num_windows, context + 1] int64: inputs are all but the last column, targets all but the first."""
        if epoch != self._epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self._documents))
            stream = np.concatenate([self._documents[i] for i in order])
            starts = np.arange(self.num_windows)[:, None] * self.context
            self._windows, self._epoch = stream[starts + np.arange(self.context + 1)], epoch
        return self._windows

    def batch(self, step: int, batch_size: int) -> np.ndarray:
        """[batch_size, context + 1] int64: the windows of this step; an epoch's last, incomplete batch is left out."""
        batches = self.num_windows // batch_size
        if batches < 1:
            raise ValueError(f"data: want at least {batch_size} windows a batch, got {self.num_windows}")
        epoch, batch = divmod(step, batches)
        return self.windows(epoch)[batch * batch_size : (batch + 1) * batch_size]
