"""Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon) for the matrices inside a decoder.

torch.optim.Muon is not used: it iterates in bfloat16, in which a CPU without matrix units computes a hundred times
slower than in float32. The step here is scaled as in "Muon is Scalable for LLM Training" (arXiv:2502.16982), so that it
moves a weight by as much as AdamW would at the same learning rate.
"""

import math
from collections.abc import Iterable

import torch


def orthogonalize(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """[rows, cols] -> the same matrix with all singular values near 1 (0.7 to 1.2), by Newton-Schulz iterations with
    the coefficients of the post named above."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / (wide.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with weight decay decoupled from the gradient as in AdamW."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"]
                momentum.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalize(weight.grad.lerp(momentum, group["momentum"]))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))
