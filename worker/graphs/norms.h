#pragma once

// Norms, of inputs in 16 bits but for RMS norms, as operations of graphs that are not LibTorch's:
// what a graph's forward saves for its backward has one type on all devices, and LibTorch's do not.
// Its layer norm leaves means and deviations in the parameters' type on the CPU, and in fp32 on a
// GPU; and on a GPU neither its layer norm nor its group norm takes parameters of another type than
// the input's. Its batch norm without running statistics, of which instance norms are made, leaves
// them in fp32 on a GPU, and on the CPU in the type of its parameters or, without any, of its
// input.
//
//   harmony::layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias,
//       float eps) -> (Tensor, Tensor, Tensor)
//   harmony::layer_norm_backward(Tensor gradient, Tensor input, int[] normalized_shape, Tensor
//   mean,
//       Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
//   harmony::group_norm(Tensor input, Tensor? weight, Tensor? bias, int N, int C, int HxW, int
//   group,
//       float eps) -> (Tensor, Tensor, Tensor)
//   harmony::group_norm_backward(Tensor gradient, Tensor input, Tensor mean, Tensor rstd,
//       Tensor? weight, int N, int C, int HxW, int group, bool[3] output_mask)
//       -> (Tensor, Tensor, Tensor)
//   harmony::batch_norm(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum,
//       float eps) -> (Tensor, Tensor, Tensor)
//   harmony::batch_norm_backward(Tensor gradient, Tensor input, Tensor? weight, Tensor?
//   running_mean,
//       Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps,
//       bool[3] output_mask) -> (Tensor, Tensor, Tensor)
//   harmony::rms_norm(Tensor input, Tensor weight, float eps) -> (Tensor, Tensor)
//   harmony::rms_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor rstd,
//       Tensor? other) -> (Tensor, Tensor)
//
// The last two are of any type; LibTorch has them as a dozen operations, of which each reads and
// writes all rows. docs/model_format.md says what they compute. The CPU does it by the kernels that
// eager PyTorch takes there, to the same bits.

namespace torch {
class Library;
}

namespace harmony::worker {

void DefineNorms(torch::Library& library);

}  // namespace harmony::worker
