#include "worker/models/attention_in_pieces.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/units.h"

namespace harmony::worker {
namespace {

constexpr Bytes kScores = MiB(16);  // of a piece, but for rows that are longer alone
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// From where and how many of the samples, of the heads of keys and of the rows of queries.
struct Piece {
  int64_t sample, samples, head, heads, row, rows;
};

at::Tensor HeadsOf(const Piece& piece, const at::Tensor& tensor) {
  return tensor.narrow(0, piece.sample, piece.samples).narrow(1, piece.head, piece.heads);
}

at::Tensor RowsOf(const Piece& piece, const at::Tensor& groups) {
  return HeadsOf(piece, groups).narrow(3, piece.row, piece.rows);
}

// Heads of queries that share one of keys are a group: [N, K, G, L, E] where the operator has
// [N, H, L, E]. In products the rows of a group stand behind each other: [n, k, G*l, E].
class Attention {
 public:
  Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal,
            const std::optional<at::Tensor>& mask, std::optional<double> scale)
      : key_(key), value_(value), causal_(causal) {
    const bool fit = query.dim() == 4 && key.dim() == 4 && value.sizes() == key.sizes() &&
                     query.numel() > 0 && key.numel() > 0 && query.size(0) == key.size(0) &&
                     query.size(1) % key.size(1) == 0 && query.size(3) == key.size(3);
    TORCH_CHECK(fit, "the query is ", query.sizes(), ", the key ", key.sizes(), ", the value ",
                value.sizes());
    query_ = InGroups(query);
    if (mask.has_value()) {
      mask_ = InGroups(mask->expand({query.size(0), query.size(1), query.size(2), key.size(2)}));
    }
    scale_ = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
    type_ = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  }

  // That sums are formed in.
  at::ScalarType type() const { return type_; }
  double scale() const { return scale_; }

  at::Tensor InGroups(const at::Tensor& heads) const {
    return heads.unflatten(1, {key_.size(1), -1});
  }
  at::Tensor Rows(const Piece& piece, const at::Tensor& groups) const {
    return RowsOf(piece, groups).to(type_).flatten(2, 3);
  }
  at::Tensor Queries(const Piece& piece) const { return Rows(piece, query_); }
  at::Tensor Keys(const Piece& piece) const { return HeadsOf(piece, key_).to(type_); }
  at::Tensor Values(const Piece& piece) const { return HeadsOf(piece, value_).to(type_); }

  struct Weights {
    at::Tensor weights;     // [n, k, G*l, S]
    at::Tensor logarithms;  // [n, k, G, l], of what the weights were divided by
  };
  Weights WeightsOf(const Piece& piece) const {
    at::Tensor scores = at::matmul(Queries(piece), Keys(piece).transpose(2, 3)).mul_(scale_);
    scores = scores.unflatten(2, {query_.size(2), piece.rows});
    if (mask_.has_value()) scores.add_(RowsOf(piece, *mask_));
    if (causal_) {
      const at::TensorOptions numbers = scores.options().dtype(at::kLong);
      const at::Tensor row = at::arange(piece.row, piece.row + piece.rows, numbers).unsqueeze(1);
      scores.masked_fill_(at::arange(key_.size(2), numbers).gt(row), -kInfinity);
    }
    const at::Tensor most = scores.amax(-1, /*keepdim=*/true);
    const at::Tensor sees_nothing = most.eq(-kInfinity);
    scores.sub_(most).exp_();
    const at::Tensor sum = scores.sum(-1, /*keepdim=*/true);
    scores.div_(sum).masked_fill_(sees_nothing, 0);
    return {scores.flatten(2, 3), sum.log().add_(most).masked_fill_(sees_nothing, 0).squeeze(-1)};
  }

  // Runs `run` for each piece: whole samples as long as one of them fits, else whole heads, else
  // rows. Pieces that share keys follow each other: `begin` comes before the first of these, `end`
  // after the last, with all rows.
  void ForEach(absl::FunctionRef<void(const Piece&)> begin,
               absl::FunctionRef<void(const Piece&)> run,
               absl::FunctionRef<void(const Piece&)> end) const {
    const int64_t samples = query_.size(0), heads = query_.size(1), rows = query_.size(3);
    const int64_t most = kScores.count() / static_cast<int64_t>(c10::elementSize(type_));
    const auto fitting = [&](int64_t scores, int64_t all) {
      return std::clamp<int64_t>(most / scores, 1, all);
    };
    // Scores, or rows of queries and keys, whichever are more.
    const int64_t of_row = query_.size(2) * std::max(key_.size(2), query_.size(4));
    const int64_t of_head = std::max(of_row * rows, key_.size(2) * key_.size(3));
    const int64_t some_rows = fitting(of_row, rows);
    const int64_t some_heads = some_rows < rows ? 1 : fitting(of_head, heads);
    const int64_t some_samples = some_heads < heads ? 1 : fitting(of_head * heads, samples);
    for (int64_t sample = 0; sample < samples; sample += some_samples) {
      for (int64_t head = 0; head < heads; head += some_heads) {
        const Piece all{sample, std::min(some_samples, samples - sample),
                        head,   std::min(some_heads, heads - head),
                        0,      rows};
        begin(all);
        for (int64_t row = 0; row < rows; row += some_rows) {
          Piece piece = all;
          piece.row = row;
          piece.rows = std::min(some_rows, rows - row);
          run(piece);
        }
        end(all);
      }
    }
  }

 private:
  at::Tensor query_;
  const at::Tensor key_, value_;
  std::optional<at::Tensor> mask_;
  const bool causal_;
  double scale_ = 0;
  at::ScalarType type_ = at::kFloat;
};

// [N, H, L, ...] with the heads behind the rows in memory.
at::Tensor Zeros(at::IntArrayRef shape, const at::TensorOptions& options) {
  std::vector<int64_t> sizes = shape.vec();
  std::swap(sizes[1], sizes[2]);
  return at::zeros(sizes, options).transpose(1, 2);
}

}  // namespace

AttentionResults AttentionInPieces(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, bool causal,
                                   const std::optional<at::Tensor>& mask,
                                   std::optional<double> scale) {
  const Attention attention(query, key, value, causal, mask, scale);
  at::Tensor output = at::empty_like(query);
  at::Tensor logarithms = Zeros(query.sizes().slice(0, 3), query.options().dtype(attention.type()));
  const at::Tensor outputs = attention.InGroups(output), sums = attention.InGroups(logarithms);
  const auto nothing = [](const Piece&) {};
  const auto run = [&](const Piece& piece) {
    const Attention::Weights made = attention.WeightsOf(piece);
    const at::Tensor place = RowsOf(piece, outputs);
    place.copy_(at::matmul(made.weights, attention.Values(piece)).view(place.sizes()));
    RowsOf(piece, sums).copy_(made.logarithms);
  };
  attention.ForEach(nothing, run, nothing);
  return {output, logarithms};
}

AttentionBackwardResults AttentionInPiecesBackward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output, const at::Tensor& /*logarithms*/,
    bool causal, const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  const Attention attention(query, key, value, causal, mask, scale);
  TORCH_CHECK(gradient.sizes() == query.sizes() && output.sizes() == query.sizes(),
              "the gradient is ", gradient.sizes(), ", the output ", output.sizes());
  const at::Tensor gradients = attention.InGroups(gradient), outputs = attention.InGroups(output);
  at::Tensor of_query = Zeros(query.sizes(), query.options());
  const at::Tensor of_queries = attention.InGroups(of_query);
  at::Tensor of_key = Zeros(key.sizes(), key.options());
  at::Tensor of_value = Zeros(value.sizes(), value.options());
  at::Tensor key_sums, value_sums;  // over the rows of a piece's keys, rounded when all are there
  const auto begin = [&](const Piece& piece) {
    const at::TensorOptions wide = key.options().dtype(attention.type());
    key_sums = at::zeros(HeadsOf(piece, of_key).sizes(), wide);
    value_sums = at::zeros(HeadsOf(piece, of_value).sizes(), wide);
  };
  const auto end = [&](const Piece& piece) {
    HeadsOf(piece, of_key).copy_(key_sums);
    HeadsOf(piece, of_value).copy_(value_sums);
  };
  const auto run = [&](const Piece& piece) {
    const at::Tensor weights = attention.WeightsOf(piece).weights;
    const at::Tensor of_rows = attention.Rows(piece, gradients);
    value_sums.add_(at::matmul(weights.transpose(2, 3), of_rows));
    // From here on the gradient of the weights, then that of the scores.
    at::Tensor changed = at::matmul(of_rows, attention.Values(piece).transpose(2, 3));
    changed.sub_(of_rows.mul(attention.Rows(piece, outputs)).sum(-1, /*keepdim=*/true));
    changed.mul_(weights).mul_(attention.scale());
    const at::Tensor place = RowsOf(piece, of_queries);
    place.copy_(at::matmul(changed, attention.Keys(piece)).view(place.sizes()));
    key_sums.add_(at::matmul(changed.transpose(2, 3), attention.Queries(piece)));
  };
  attention.ForEach(begin, run, end);
  return {of_query, of_key, of_value};
}

}  // namespace harmony::worker
