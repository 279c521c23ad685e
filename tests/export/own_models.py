"""Small models written by hand, each with something of its own that an export must get right."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, in-place activations and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x += shortcut
        return self.relu(x)


class ResidualNetwork(nn.Module):
    """A small residual network in stages, as those of torchvision."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 8, 1))
        self.layer2 = nn.Sequential(ResidualBlock(8, 16, 2), ResidualBlock(16, 16, 1))
        self.fc = nn.Linear(16, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(pixel_values)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class PlainConvolutions(nn.Module):
    """VGG: convolutions, BatchNorm and pools in one nn.Sequential, a classifier with dropout in another."""

    def __init__(self, classes: int = 10, norm: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside = 3
        for width in (8, 0, 16, 16, 0):
            if width == 0:
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers.append(nn.Conv2d(inside, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width)] if norm else []
            layers.append(nn.ReLU(inplace=True))
            inside = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(nn.Linear(64, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 32),
                                        nn.ReLU(True), nn.Dropout(), nn.Linear(32, classes))

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(pixel_values)), 1))


class ConvNormActivation(nn.Sequential):
    """A convolution in groups with BatchNorm and ReLU6."""

    def __init__(self, inside: int, outside: int, size: int = 3, stride: int = 1, groups: int = 1) -> None:
        super().__init__(nn.Conv2d(inside, outside, size, stride, (size - 1) // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(outside), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """MobileNet's block: wider, depthwise, narrow again."""

    def __init__(self, inside: int, outside: int, stride: int, ratio: int) -> None:
        super().__init__()
        inner = inside * ratio
        self.shortcut = stride == 1 and inside == outside
        self.conv = nn.Sequential(ConvNormActivation(inside, inner, 1),
                                  ConvNormActivation(inner, inner, 3, stride, inner),
                                  nn.Conv2d(inner, outside, 1, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetwork(nn.Module):
    """MobileNetV2 in small."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvNormActivation(3, 8, stride=2), InvertedResidual(8, 8, 1, 2),
                                      InvertedResidual(8, 16, 2, 3), InvertedResidual(16, 16, 1, 3),
                                      ConvNormActivation(16, 32, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, classes))

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.classifier(self.features(pixel_values).mean([2, 3]))


class DenseLayer(nn.Module):
    """What a dense layer adds to all before it."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(functional.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(functional.relu(self.norm2(x)))


class DenseBlock(nn.ModuleDict):
    """Every layer reads what all before it made."""

    def __init__(self, count: int, inside: int, growth: int) -> None:
        super().__init__({f"denselayer{i + 1}": DenseLayer(inside + i * growth, growth) for i in range(count)})

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class Transition(nn.Sequential):
    """Halves channels and size."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(nn.BatchNorm2d(inside), nn.ReLU(inplace=True), nn.Conv2d(inside, outside, 1, bias=False),
                         nn.AvgPool2d(2, 2))


class DenseNetwork(nn.Module):
    """DenseNet in small."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                                      DenseBlock(3, 8, 4), Transition(20, 10), DenseBlock(3, 10, 4), nn.BatchNorm2d(22))
        self.classifier = nn.Linear(22, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = functional.relu(self.features(pixel_values), inplace=True)
        return self.classifier(torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1))


class DoubleConvolution(nn.Sequential):
    """U-Net's two convolutions."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(2, outside), nn.SiLU(),
                         nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(2, outside), nn.SiLU())


class UNetwork(nn.Module):
    """Down and up again, with values that skip from each way down to the way up; a class for each pixel."""

    def __init__(self, classes: int = 4, width: int = 8) -> None:
        super().__init__()
        self.inc = DoubleConvolution(3, width)
        self.down1 = DoubleConvolution(width, 2 * width)
        self.down2 = DoubleConvolution(2 * width, 4 * width)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.conv1 = DoubleConvolution(4 * width, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.conv2 = DoubleConvolution(2 * width, width)
        self.outc = nn.Conv2d(width, classes, 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        a = self.inc(pixel_values)
        b = self.down1(functional.max_pool2d(a, 2))
        c = self.down2(functional.max_pool2d(b, 2))
        x = self.conv1(torch.cat([b, self.up1(c)], 1))
        x = self.conv2(torch.cat([a, self.up2(x)], 1))
        return self.outc(x)


class GraphConvolution(nn.Module):
    """Features of neighbours, weighted by the normalised adjacency that is given."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inside, outside, bias=False)
        self.bias = nn.Parameter(torch.zeros(outside))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ self.lin(x) + self.bias


class GraphNetwork(nn.Module):
    """A class for each node of a graph that all samples share; its adjacency is a buffer."""

    def __init__(self, nodes: int = 12, features: int = 8, classes: int = 3) -> None:
        super().__init__()
        edges = (torch.rand(nodes, nodes) < 0.3).float()
        edges = ((edges + edges.T) > 0).float() + torch.eye(nodes)
        degree = edges.sum(1).rsqrt()
        self.register_buffer("adjacency", degree[:, None] * edges * degree[None, :])
        self.conv1 = GraphConvolution(features, 16)
        self.conv2 = GraphConvolution(16, 16)
        self.conv3 = GraphConvolution(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv1(x, self.adjacency))
        x = functional.relu(self.conv2(x, self.adjacency))
        return self.conv3(x, self.adjacency)


class RecurrentTagger(nn.Module):
    """Embedding, two recurrent layers in both directions, a class for each token."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, vocabulary: int = 50, classes: int = 5, width: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width * 4 // 3)
        self.rnn = kind(width * 4 // 3, width, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(input_ids))[0])


class Experts(nn.Module):
    """A mixture of experts as Mixtral's: the best two of each token, in a loop of fixed length over the experts."""

    def __init__(self, width: int, inner: int, count: int, best: int) -> None:
        super().__init__()
        self.best = best
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.ModuleDict({"w1": nn.Linear(width, inner, bias=False), "w2": nn.Linear(inner, width, bias=False),
                           "w3": nn.Linear(width, inner, bias=False)}) for _ in range(count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = functional.softmax(self.gate(x), dim=-1)
        weights, chosen = torch.topk(probabilities, self.best, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = torch.where(chosen == number, weights, 0.0).sum(-1, keepdim=True)
            result = result + share * expert["w2"](functional.silu(expert["w1"](x)) * expert["w3"](x))
        load = functional.one_hot(chosen, len(self.experts)).float().mean((0, 1, 2))
        return result, (load * probabilities.mean((0, 1))).sum()


class MixtureBlock(nn.Module):
    """Attention and experts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Experts(width, 2 * width, 4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, length, width))
        y, balance = self.mlp(self.norm2(x))
        return x + y, balance


class Mixture(nn.Module):
    """A language model of experts; its loss has a term that each block adds to."""

    def __init__(self, vocabulary: int = 64, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(MixtureBlock(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(input_ids)
        total = torch.zeros(())
        for layer in self.layers:
            x, balance = layer(x)
            total = total + balance
        logits = self.lm_head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.01 * total


class Traps(nn.Module):
    """Things that an export gets wrong easily: no_grad, detach, frozen and unused parameters, one module called twice,
    writes through views, buffers that are not saved, integers that cross cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(3))
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(16, 5)
        self.register_buffer("scale", torch.rand(16), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x = self.frozen(self.stem(x)) * self.scale
        mask = torch.ones(16)
        mask[3:7] = 0.5
        order = x.detach().argsort(-1)
        for block in self.blocks:
            with torch.no_grad():
                norm = x.square().mean(-1, keepdim=True)
            x = block(x) * mask + norm
        x = self.blocks[1](x)
        y = x.clone()
        y[:, 2:5] = y[:, 2:5] * 2
        y.view(-1, 4, 4)[:, 1].add_(1.0)
        return self.head(y.gather(1, order) + x.detach())


class Translator(nn.Module):
    """PyTorch's own transformer: encoder, decoder, a causal mask."""

    def __init__(self, vocabulary: int = 50, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 4, 2, 2, 2 * width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        x = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(x)


class Upscaler(nn.Module):
    """Convolutions at three sizes with interpolation between them; an image for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
                          nn.PReLU()),
            nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.GELU(), nn.Upsample(scale_factor=2, mode="bilinear")),
            nn.Sequential(nn.Conv2d(16, 12, 3, 1, 1), nn.Hardswish(), nn.PixelShuffle(2)))

    def forward(self, pixel_values: Tensor) -> Tensor:
        return functional.mse_loss(self.blocks(pixel_values), pixel_values)


class MixerBlock(nn.Module):
    """A perceptron over places, one over channels."""

    def __init__(self, places: int, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.of_places = nn.Sequential(nn.Linear(places, 12), nn.GELU(), nn.Linear(12, places))
        self.norm2 = nn.LayerNorm(channels)
        self.of_channels = nn.Sequential(nn.Linear(channels, 32), nn.GELU(), nn.Linear(32, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.of_places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.of_channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer in small."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(*[MixerBlock(16, 16) for _ in range(3)])
        self.head = nn.Linear(16, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(pixel_values).flatten(2).transpose(1, 2)).mean(1))


class GraphAttention(nn.Module):
    """Attention over neighbours; every sample brings its own graph."""

    def __init__(self, inside: int, outside: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(inside, outside * heads, bias=False)
        self.to_node = nn.Parameter(torch.randn(heads, outside))
        self.of_node = nn.Parameter(torch.randn(heads, outside))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        y = self.lin(x).view(*x.shape[:2], self.heads, -1)
        to, of = (y * self.to_node).sum(-1), (y * self.of_node).sum(-1)
        scores = functional.leaky_relu(to[:, :, None] + of[:, None], 0.2)
        weights = scores.masked_fill(adjacency[..., None] == 0, float("-inf")).softmax(2)
        return torch.einsum("nijh,njho->niho", weights, y).flatten(2)


class GraphAttentionNetwork(nn.Module):
    """A class for each node."""

    def __init__(self, features: int = 6, classes: int = 5) -> None:
        super().__init__()
        self.conv1 = GraphAttention(features, 4, 3)
        self.conv2 = GraphAttention(12, classes, 1)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return self.conv2(functional.elu(self.conv1(x, adjacency)), adjacency)


class LowRank(nn.Module):
    """A frozen matrix and a trained correction of rank two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, width))
        self.b = nn.Parameter(torch.zeros(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.base(x) + x @ self.a.t() @ self.b.t())


class Repeated(nn.Module):
    """One block called three times; its parameters are those of three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = x + self.block(x)
        return self.head(x)
