"""Models that say themselves, by torch.autocast, what computes in bfloat16."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


def bfloat16(enabled: bool = True, cache: bool = True) -> torch.autocast:
    """A region."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled, cache_enabled=cache)


class Block(nn.Module):
    """Attention by einsum and a gate that computes in float32; the norm's result is in bfloat16, its parameters are not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.gate = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        with bfloat16():
            y = self.norm(x)
            scores = torch.einsum("nic,njc->nij", self.queries(y), self.keys(y))
            y = torch.einsum("nij,njc->nic", scores.softmax(-1), self.values(y))
            with bfloat16(enabled=False):
                gate = torch.sigmoid(self.gate(y.float()))
            with torch.no_grad():
                scale = self.values(x).abs().mean().float() + 1
            return x + self.out(y * gate) / scale


class Blocks(nn.Module):
    """Blocks with regions between layers in float32."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Repeated(nn.Module):
    """One layer several times: twice in one region, where its weight is cast once and the gradients of both uses are
    added in bfloat16, unless there is no cache; and in a region of its own."""

    def __init__(self, cache: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)
        self.cache = cache

    def forward(self, x: Tensor) -> Tensor:
        with bfloat16(cache=self.cache):
            y = self.first(self.first(x).relu()) + self.again(x)
        with bfloat16(cache=self.cache):
            y = self.again(y)
            return self.head(y)


class Tied(nn.Module):
    """A table that embeds in float32 and makes the logits in bfloat16; one layer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.blocks = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.unread = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with bfloat16():
            y = self.blocks(self.table(x))
            self.unread(y)
            return functional.linear(y, self.table.weight)
