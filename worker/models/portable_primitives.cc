#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

#include "worker/device/torch_tensors.h"
#include "worker/kernels/row_kernels.h"
#include "worker/models/functional.h"
#include "worker/models/fused_attention.h"
#include "worker/models/gemm.h"
#include "worker/models/heads.h"
#include "worker/models/primitives.h"

namespace harmony::worker {
namespace {

// Where a tensor's numbers are.
void* Numbers(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "row kernels take contiguous tensors");
  return tensor.mutable_data_ptr();
}
float* Floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

// For sums over rows, of which there are so many.
at::Tensor ScratchFor(const at::Tensor& rows_of, int64_t width, int64_t sums) {
  const RowParts parts(rows_of.numel() / width, width);
  return at::empty({parts.parts * width * sums}, rows_of.options().dtype(at::kFloat));
}

NormRows Describe(const at::Tensor& x, const NormParam& param, const NormSaved& saved) {
  NormRows norm;
  norm.width = x.size(-1);
  norm.rows = x.numel() / norm.width;
  norm.centred = param.bias.weight.defined();
  norm.epsilon = static_cast<float>(param.epsilon);
  norm.type = NumberOf(x.scalar_type());
  norm.parameters = NumberOf(param.weight.weight.scalar_type());
  norm.x = Numbers(x);
  norm.weight = Numbers(param.weight.weight);
  if (norm.centred) norm.bias = Numbers(param.bias.weight);
  norm.mean = Floats(saved.mean);
  norm.rstd = Floats(saved.rstd);
  return norm;
}

class Portable : public Primitives {
 public:
  Portable(LayerTarget target, const RowKernels& kernels) : Primitives(target), kernels_(kernels) {}

  void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
              bool accumulate) const override;
  void AddSumOfRows(at::Tensor& sums, const at::Tensor& dy) const override;
  void Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param,
            NormSaved& saved) const override;
  at::Tensor NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                          const NormSaved& saved) const override;
  void Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v) const override;
  AttentionGradients AttentionBackward(const at::Tensor& dy, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionSaved& saved) const override;
  void Gated(at::Tensor& out, const at::Tensor& gate, const at::Tensor& up,
             model::Activation activation, int64_t rows) const override;
  void GatedBackward(at::Tensor& gradient, at::Tensor& dup, const at::Tensor& gate,
                     const at::Tensor& up, model::Activation activation) const override;
  void Rotate(at::Tensor& rows, const RopeTables& tables, BatchShape shape,
              bool inverse) const override;
  int64_t GatherRows(const at::Tensor& table, const at::Tensor& ids, at::Tensor& y) const override;
  void ScatterAddRows(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& dy,
                      int64_t skip) const override;
  void AddPositions(at::Tensor& y, const at::Tensor& positions, BatchShape shape) const override;
  void SumPositions(at::Tensor& gradient, const at::Tensor& dy, BatchShape shape) const override;
  double RunLinearLoss(LinearLoss& loss) const override;

 private:
  const RowKernels& kernels_;
};

void Portable::MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                      bool accumulate) const {
  if (c.scalar_type() != a.scalar_type() && !c.is_cuda()) {
    worker::MatMul(c, a, b, accumulate);  // there is no such product in LibTorch
  } else if (c.scalar_type() != a.scalar_type()) {
    at::addmm_out(c, c, a, b, c.scalar_type());
  } else if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::mm_out(c, a, b);
  }
}

void Portable::AddSumOfRows(at::Tensor& sums, const at::Tensor& dy) const {
  const at::Tensor scratch = ScratchFor(dy, dy.size(1), 1);
  kernels_.AddSumOfRows(NumberOf(dy.scalar_type()), Numbers(dy), dy.size(0), dy.size(1),
                        Floats(scratch), Floats(sums));
}

void Portable::Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param,
                    NormSaved& saved) const {
  const int64_t rows = x.numel() / x.size(-1);
  const bool centred = param.bias.weight.defined();
  const at::TensorOptions statistics = x.options().dtype(at::kFloat);
  if (!y.defined()) y = at::empty_like(x);
  if (centred && !saved.mean.defined()) saved.mean = at::empty({rows, 1}, statistics);
  if (!saved.rstd.defined()) {
    saved.rstd = at::empty(centred ? at::IntArrayRef{rows, 1} : at::IntArrayRef{rows}, statistics);
  }
  kernels_.Norm(Describe(x, param, saved), Numbers(y));
}

at::Tensor Portable::NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                                  const NormSaved& saved) const {
  const bool centred = param.bias.weight.defined();
  const at::Tensor scratch = ScratchFor(x, x.size(-1), centred ? 2 : 1);
  kernels_.NormBackward(Describe(x, param, saved),
                        {.of_y = Numbers(dy),
                         .of_x = Numbers(dy),
                         .scratch = Floats(scratch),
                         .of_weight = Floats(param.weight.gradient),
                         .of_bias = centred ? Floats(param.bias.gradient) : nullptr});
  return dy;
}

void Portable::Gated(at::Tensor& out, const at::Tensor& gate, const at::Tensor& up,
                     model::Activation activation, int64_t) const {
  if (!out.defined()) out = at::empty_like(gate);
  kernels_.Gated(functional::RowsOfGated(gate, up, activation), Numbers(out));
}

void Portable::GatedBackward(at::Tensor& gradient, at::Tensor& dup, const at::Tensor& gate,
                             const at::Tensor& up, model::Activation activation) const {
  kernels_.GatedBackward(functional::RowsOfGated(gate, up, activation), Numbers(gradient),
                         Numbers(gradient), Numbers(dup));
}

// Where they are kept, the logarithms of the heads at one position of their groups are one tensor.
void KeepLogarithms(AttentionSaved& saved, const at::Tensor& logarithms) {
  if (saved.logsumexp.empty()) {
    saved.logsumexp = {logarithms};
    return;
  }
  const auto groups = static_cast<int64_t>(saved.logsumexp.size());
  for (int64_t r = 0; r < groups; ++r) {
    saved.logsumexp[static_cast<size_t>(r)].copy_(
        logarithms.unflatten(1, {-1, groups}).select(2, r));
  }
}

at::Tensor KeptLogarithms(const AttentionSaved& saved) {
  if (saved.logsumexp.size() == 1) return saved.logsumexp.front();
  return at::stack(saved.logsumexp, 2).flatten(1, 2);
}

void Portable::Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v) const {
  const auto [output, logarithms] =
      DeviceAttention(q, k, v, /*causal=*/true, std::nullopt, std::nullopt);
  KeepLogarithms(saved, logarithms);
  if (saved.output.defined()) {
    RowsAsHeads(saved.output, q).copy_(output);
  } else {
    saved.output = HeadsAsRows(output);
  }
}

AttentionGradients Portable::AttentionBackward(const at::Tensor& dy, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const AttentionSaved& saved) const {
  auto [dq, dk, dv] = DeviceAttentionBackward(RowsAsHeads(dy, q), q, k, v,
                                              RowsAsHeads(saved.output, q), KeptLogarithms(saved),
                                              /*causal=*/true, std::nullopt, std::nullopt);
  return {dq, dk, dv};
}

void Portable::Rotate(at::Tensor& rows, const RopeTables& tables, BatchShape shape,
                      bool inverse) const {
  TORCH_CHECK(tables.head_dim / 2 <= Rotation::kMostFrequencies, "heads of ", tables.head_dim,
              " numbers: rotary embedding is computed for ", 2 * Rotation::kMostFrequencies,
              " at most");
  kernels_.Rotate({NumberOf(rows.scalar_type()), Numbers(rows), shape.samples, shape.tokens,
                   rows.size(1) / tables.head_dim, tables.head_dim, tables.frequencies.data(),
                   inverse});
}

int64_t Portable::GatherRows(const at::Tensor& table, const at::Tensor& ids, at::Tensor& y) const {
  const at::Tensor outside = ids.lt(0).logical_or_(ids.ge(table.size(0)));
  if (outside.any().item<bool>()) return outside.to(at::kByte).argmax().item<int64_t>();
  at::index_select_out(y, table, 0, ids);
  return -1;
}

void Portable::ScatterAddRows(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& dy,
                              int64_t skip) const {
  const auto [sorted, order] = at::sort(ids, std::optional<bool>(true));  // stable
  kernels_.AddSortedRows({NumberOf(dy.scalar_type()), dy.size(0), dy.size(1),
                          sorted.const_data_ptr<int32_t>(), order.const_data_ptr<int64_t>(), skip,
                          Numbers(dy), Floats(gradient)});
}

void Portable::AddPositions(at::Tensor& y, const at::Tensor& positions, BatchShape shape) const {
  y.view({shape.samples, shape.tokens, -1}).add_(positions.narrow(0, 0, shape.tokens));
}

void Portable::SumPositions(at::Tensor& gradient, const at::Tensor& dy, BatchShape shape) const {
  kernels_.AddInOrder(NumberOf(dy.scalar_type()), Numbers(dy), shape.samples,
                      shape.tokens * dy.size(1), Floats(gradient));
}

double Portable::RunLinearLoss(LinearLoss& loss) const {
  const int64_t rows = loss.x.size(0), classes = loss.weight.size(0);
  const int64_t chunk_rows = std::min(rows, loss.chunk_rows);
  const bool biased = loss.bias.defined();
  at::Tensor buffer = at::empty({chunk_rows, classes}, loss.x.options());
  const at::Tensor losses = at::empty({rows}, loss.x.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    const at::Tensor chunk = loss.x.narrow(0, begin, count);
    at::Tensor chunk_gradient = loss.x_gradient.narrow(0, begin, count);
    if (biased) logits.copy_(loss.bias.expand_as(logits));
    MatMul(logits, chunk, loss.weight.t(), /*accumulate=*/biased);
    kernels_.CrossEntropy({NumberOf(logits.scalar_type()), count, classes, Numbers(logits),
                           loss.labels.const_data_ptr<int32_t>() + begin, loss.scale,
                           losses.mutable_data_ptr<double>() + begin});
    MatMul(loss.weight_gradient, logits.t(), chunk,
           /*accumulate=*/begin > 0 || !loss.sets_weight_gradient);
    MatMul(chunk_gradient, logits, loss.weight, /*accumulate=*/false);
    if (biased) AddSumOfRows(loss.bias_gradient, logits);
  }
  return losses.sum().item<double>();
}

}  // namespace

std::unique_ptr<const Primitives> MakePortablePrimitives(LayerTarget target,
                                                         const RowKernels& kernels) {
  return std::make_unique<Portable>(target, kernels);
}

}  // namespace harmony::worker
