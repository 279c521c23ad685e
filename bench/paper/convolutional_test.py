"""The networks by FLOPs, held to what others have counted of their smaller relatives."""
import sys
import unittest

import convolutional


def parameters(layers):
    return sum(layer.parameters for layer in layers)


class ConvolutionalTest(unittest.TestCase):

    def test_without_more_convolutions_it_is_vgg_16(self):
        layers = convolutional.vgg(0)
        self.assertEqual(parameters(layers), 138_357_544)  # torchvision's vgg16
        self.assertAlmostEqual(sum(layer.flops for layer in layers) / 2e9, 15.47, places=2)

    def test_with_two_blocks_it_is_resnet_18(self):
        layers = convolutional.resnet(2)
        self.assertEqual(parameters(layers), 11_689_512)  # torchvision's resnet18
        self.assertAlmostEqual(sum(layer.flops for layer in layers) / 2e9, 1.814, places=3)

    def test_depths(self):
        self.assertEqual(len(convolutional.MODELS["vgg_416"]()), 413 + 3 + 1)  # convolutions, matrices, loss
        self.assertEqual(len(convolutional.MODELS["resnet_1026"]()), 1 + 4 * 128 + 1 + 1)  # 2 * 512 convolutions in the blocks

    def test_what_leaves_a_layer_enters_the_next(self):
        for make in convolutional.MODELS.values():
            layers = make()
            for before, after in zip(layers, layers[1:]):
                self.assertEqual(before.output, after.inputs)

    def test_a_profile_has_what_the_layers_have(self):
        made = convolutional.profile("vgg_416", 1e12, 1e-9)
        first = convolutional.MODELS["vgg_416"]()[0]
        self.assertEqual(made["fwd"]["time_s"][0], [first.flops / 1e12, 64 * first.flops / 1e12])
        self.assertEqual(made["bwd"]["time_s"][0][0], 3 * first.flops / 1e12)
        self.assertEqual(made["param_bytes"][0], 4 * (3 * 64 * 9 + 64))
        # Weights, image and output, and one more tensor of the output's size.
        pixels = 224 * 224
        self.assertEqual(made["fwd"]["peak_bytes"][0][0], 4 * (3 * 64 * 9 + 64 + 3 * pixels + 2 * 64 * pixels))


if __name__ == "__main__":
    sys.exit(unittest.main())
