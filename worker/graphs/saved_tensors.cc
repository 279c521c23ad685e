#include "worker/graphs/saved_tensors.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "worker/device/cpu_memory.h"
#include "worker/graphs/tensors.h"

namespace harmony::worker {
namespace {

Bytes SlotBytes(const model::ExportedTensor& tensor, int64_t samples) {
  const int64_t elements = c10::multiply_integers(tensor.ShapeFor(samples));
  return (SizeOf(tensor.dtype) * elements).AlignUp(kSlotAlignment);
}

bool SharesOneOf(Tensors places, const at::Tensor& value) {
  return absl::c_any_of(places, [&](const DeviceTensor& place) {
    return HostPointer<const void>(place.address) == value.storage().data();
  });
}

}  // namespace

Bytes SavedTensors::PlaceBytes(const std::vector<model::ExportedTensor>& types, int64_t samples) {
  Bytes bytes;
  for (const model::ExportedTensor& tensor : types) bytes += SlotBytes(tensor, samples);
  return bytes;
}

SavedTensors::SavedTensors(const std::vector<model::ExportedTensor>& types, int64_t samples,
                           DeviceAddress place, c10::Device device)
    : types_(types), samples_(samples), place_(place), device_(device) {
  if (!place_) tensors_.resize(types_.size());
}

at::Tensor SavedTensors::PlaceOf(size_t index) const {
  if (!place_) return at::Tensor();
  TORCH_CHECK(index < types_.size(), "nothing is saved at ", index);
  DeviceAddress place = place_;
  for (size_t i = 0; i < index; ++i) place = place + SlotBytes(types_[i], samples_);
  return TensorOver(place, types_[index].dtype, types_[index].ShapeFor(samples_), device_);
}

// Contiguous wherever it is kept: operations choose by strides, and the bits have to be the same.
void SavedTensors::Put(size_t index, const at::Tensor& value, Tensors outputs) {
  const model::ExportedTensor& type = types_[index];
  TORCH_CHECK(value.sizes() == at::IntArrayRef(type.ShapeFor(samples_)) &&
                  value.scalar_type() == ScalarTypeOf(type.dtype),
              "what is saved at ", index, " is ", value.scalar_type(), " ", value.sizes(),
              ", which model.json does not say: export the model anew if its directory is old");
  if (place_) {
    PutInto(PlaceOf(index), value, "saved tensor");
    return;
  }
  const bool borrowed = SharesOneOf(outputs, value);
  tensors_[index] = borrowed ? value.clone(at::MemoryFormat::Contiguous) : value.contiguous();
}

at::Tensor SavedTensors::Take(size_t index) {
  if (place_) return PlaceOf(index);
  TORCH_CHECK(index < tensors_.size() && tensors_[index].defined(), "no forward saved anything");
  return std::move(tensors_[index]);
}

}  // namespace harmony::worker
