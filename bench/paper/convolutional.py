"""VGG-416 and ResNet-1026 as profiles (layer-profile/1) that nobody measured: by their FLOPs.

The architectures are those that the paper's authors published (msr-fiddle/harmony, model_lib/vgg_resnet_torch): VGG-16 with
80 more 3x3 convolutions in each of its five stages, without normalisation; ResNet with four stages of 128 basic blocks. Images
of 224 x 224 pixels, 1000 classes, fp32.

Times are FLOPs (two for each multiplication and addition; a backward twice a forward, and the forward once more for the
recompute) over the speed that a measured profile of the same GPU shows, and so proportional to the samples: what
normalisations, ReLUs and pooling take beside the convolutions is left out, and so is that few samples keep a GPU less busy.
Updates are as fast as that profile's. A forward is taken to need room for one more tensor of the size of its convolution's
output, a backward for what autograd saves beside it.
"""
from __future__ import annotations

import dataclasses
from typing import Any

FLOAT, INDEX = 4, 8  # bytes of a number, and of where a pooled one was
IMAGE, CLASSES = 224, 1000
MICROBATCHES = [1, 64]  # the importer interpolates between them, and all here is linear


@dataclasses.dataclass
class Layer:
    """Numbers, not bytes, but for `saved`."""
    parameters: int
    flops: int  # of a sample, forward
    inputs: int  # of a sample
    output: int
    saved: int = 0  # bytes of a sample that autograd keeps beside the layer's input and output
    inside: int = 0  # of a sample: the largest tensor that a forward makes on its way
    statistics: int = 0  # not trained


def convolution(inside: int, outside: int, size: int, kernel: int, bias: bool) -> tuple[int, int]:
    """Parameters and FLOPs; `size`: of the output, pixels of a side."""
    weights = inside * outside * kernel * kernel
    return weights + outside * bias, 2 * weights * size * size


def vgg(more: int) -> list[Layer]:
    """VGG-16 with so many more convolutions in each stage. ReLU works in place; dropout keeps a byte for each number."""
    layers = []
    channels, size = 3, IMAGE
    for count, outside in zip((2, 2, 3, 3, 3), (64, 128, 256, 512, 512)):
        for i in range(count + more):
            parameters, flops = convolution(channels, outside, size, 3, bias=True)
            made = outside * size * size
            layer = Layer(parameters, flops, channels * size * size, made, inside=made)
            if i + 1 == count + more:
                size //= 2
                layer.output = outside * size * size
                layer.saved = made * FLOAT + layer.output * INDEX
            layers.append(layer)
            channels = outside
    numbers = channels * size * size
    for outside, dropout in ((4096, True), (4096, True), (CLASSES, False)):
        layers.append(Layer(numbers * outside + outside, 2 * numbers * outside, numbers, outside,
                            saved=outside * (FLOAT + 1) if dropout else 0, inside=outside))
        numbers = outside
    return layers + [loss()]


def resnet(blocks: int) -> list[Layer]:
    """Four stages of so many basic blocks: two convolutions with normalisation, beside a shortcut."""
    size = IMAGE // 2
    made = 64 * size * size
    parameters, flops = convolution(3, 64, size, 7, bias=False)
    size //= 2
    channels, numbers = 64, 64 * size * size
    layers = [Layer(parameters + 2 * 64, flops, 3 * IMAGE * IMAGE, numbers, saved=2 * made * FLOAT + numbers * INDEX, inside=made,
                    statistics=2 * 64)]
    for stage in range(4):
        outside = 64 << stage
        for i in range(blocks):
            if stage > 0 and i == 0:
                size //= 2
            made = outside * size * size
            parts = [convolution(channels, outside, size, 3, False), convolution(outside, outside, size, 3, False)]
            if channels != outside:
                parts.append(convolution(channels, outside, size, 1, False))
            normalised = 2 * outside * len(parts)
            # What each normalisation reads, and what the second convolution does.
            layers.append(Layer(sum(p for p, _ in parts) + normalised, sum(f for _, f in parts), numbers, made,
                                saved=(len(parts) + 1) * made * FLOAT, inside=made, statistics=normalised))
            channels, numbers = outside, made
    layers.append(Layer(channels * CLASSES + CLASSES, 2 * channels * CLASSES, numbers, CLASSES, saved=channels * FLOAT,
                        inside=channels))
    return layers + [loss()]


def loss() -> Layer:
    return Layer(0, 5 * CLASSES, CLASSES, 0, saved=CLASSES * FLOAT, inside=CLASSES)


MODELS = {"vgg_416": lambda: vgg(80), "resnet_1026": lambda: resnet(128)}


def speeds_of(bert: dict[str, Any]) -> tuple[float, float]:
    """FLOPs a second of a GPU, and seconds of an update for a byte of parameters, as a measured profile of BERT has them: its
    transformer layer with 16 samples, for more of them make it no faster."""
    length, width = 512, 1024
    if bert["sample"] != f"sequence of {length} tokens":
        raise ValueError(f"the profile's sample is a {bert['sample']}, not a sequence of {length} tokens")
    layer = bert["layers"] // 2
    # Matrices of 12 width^2 numbers, and attention between all pairs of tokens.
    flops = 2 * 12 * width * width * length + 4 * length * length * width
    samples = 16
    seconds = bert["fwd"]["time_s"][layer][bert["fwd"]["microbatch"].index(samples)]
    return samples * flops / seconds, bert["update_time_s"][layer] / bert["param_bytes"][layer]


def profile(name: str, flops_per_second: float, update_seconds_per_byte: float) -> dict[str, Any]:
    layers = MODELS[name]()

    def phase(passes: int, forward: bool) -> dict[str, Any]:
        def peak(layer: Layer, samples: int) -> int:
            # A backward also has gradients, but for the first layer's input.
            twice = 1 if forward else 2
            kept = (layer.parameters + layer.statistics) * twice
            tensors = layer.inputs * (1 if layer is layers[0] else twice) + layer.output + layer.inside
            return kept * FLOAT + samples * (tensors * FLOAT + (0 if forward else layer.saved))

        return {"microbatch": MICROBATCHES,
                "time_s": [[samples * passes * layer.flops / flops_per_second for samples in MICROBATCHES] for layer in layers],
                "peak_bytes": [[peak(layer, samples) for samples in MICROBATCHES] for layer in layers]}

    parameters = [layer.parameters * FLOAT for layer in layers]
    return {"schema": "layer-profile/1", "model": name, "sample": f"image of {IMAGE} x {IMAGE} pixels", "dtype": "float32",
            "optimizer": "Adam", "layers": len(layers), "param_bytes": parameters, "grad_bytes": parameters,
            "buffer_bytes": [layer.statistics * FLOAT for layer in layers],
            "optimizer_state_bytes": [2 * size for size in parameters],
            "update_time_s": [size * update_seconds_per_byte for size in parameters],
            "input_bytes_per_sample": [layer.inputs * FLOAT for layer in layers],
            "output_bytes_per_sample": [layer.output * FLOAT for layer in layers],
            "fwd": phase(1, True), "bwd": phase(3, False)}
