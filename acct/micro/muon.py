"""The optimizer of the embedded models' matrices."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for the layers' matrices, in float32 and batched by shape."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(list(params), dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for (rows, columns), params in shapes.items():
                updates = []
                for p in params:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    momentum.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(momentum, group["momentum"]))
                x = torch.stack(updates)
                x = x.mT if rows > columns else x
                x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
                for _ in range(5):
                    gram = x @ x.mT
                    x = 3.4445 * x + (2.0315 * gram @ gram - 4.775 * gram) @ x
                x = x.mT if rows > columns else x
                for p, update in zip(params, x):
                    p.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)
