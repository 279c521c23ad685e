#include "common/io/safetensors_writer.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/cancel.h"
#include "common/base/status.h"
#include "common/io/float_convert.h"

namespace harmony::io {
namespace {

constexpr int64_t kWrittenElements = 1 << 17;  // of 16 bits
constexpr int64_t kReadBack = 1 << 20;

struct StateDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
// A running XXH3 (64 bits).
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void Add(const void* data, int64_t size) {
    XXH3_64bits_update(state_.get(), data, static_cast<size_t>(size));
  }
  uint64_t Digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, StateDeleter> state_;
};

// Offsets from the start of the data, wide types first.
std::vector<SafetensorsEntry> LayOut(const std::vector<TensorToWrite>& tensors) {
  std::vector<SafetensorsEntry> entries;
  int64_t position = 0;
  for (const int64_t width : {8, 4, 2, 1}) {
    for (const TensorToWrite& tensor : tensors) {
      if (SizeOf(tensor.dtype).count() != width) continue;
      int64_t elements = 1;
      for (int64_t n : tensor.shape) elements *= n;
      const int64_t end = position + elements * width;
      entries.push_back({tensor.name, tensor.dtype, tensor.shape, position, end});
      position = end;
    }
  }
  return entries;
}

std::string HeaderJson(const std::vector<SafetensorsEntry>& entries,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::json json;
  if (!metadata.empty()) json["__metadata__"] = metadata;
  for (const SafetensorsEntry& entry : entries) {
    json[entry.name] = {{"dtype", std::string(ToString(entry.dtype))},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  while (text.size() % 8 != 0) text += ' ';  // the data start aligned
  return text;
}

}  // namespace

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries = LayOut(tensors);
  const std::string text = HeaderJson(entries, metadata);
  std::string start;
  for (int i = 0; i < 8; ++i) start += static_cast<char>((text.size() >> (8 * i)) & 0xff);
  start += text;
  const int64_t data_begin = static_cast<int64_t>(start.size());
  for (SafetensorsEntry& entry : entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  HARMONY_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  HARMONY_RETURN_IF_ERROR(file.file().Reserve(entries.empty() ? data_begin : entries.back().end));
  HARMONY_RETURN_IF_ERROR(file.file().WriteAt(0, start.data(), data_begin));
  SafetensorsWriter writer(std::move(file), std::move(entries));
  for (size_t i = 0; i < writer.entries_.size(); ++i) {
    const std::string& name = writer.entries_[i].name;
    if (!writer.index_.emplace(name, static_cast<int>(i)).second) {
      return absl::InternalError(
          absl::StrCat(path, ": tensor '", name, "' is to be written twice"));
    }
  }
  writer.written_.resize(writer.entries_.size());
  return writer;
}

absl::Status SafetensorsWriter::WriteTensor(absl::string_view name,
                                            absl::Span<const float> values) {
  const auto it = index_.find(std::string(name));
  if (it == index_.end() || written_[it->second].done ||
      !IsFloatForUs(entries_[it->second].dtype) ||
      entries_[it->second].elements() != static_cast<int64_t>(values.size())) {
    return absl::InternalError(absl::StrCat(file_.path(), ": tensor '", name, "' (", values.size(),
                                            " elements) is not expected here"));
  }
  HARMONY_RETURN_IF_ERROR(CheckNotCancelled(cancelled_));
  const SafetensorsEntry& entry = entries_[it->second];
  Hasher hasher;
  if (entry.dtype == DType::kF32) {
    hasher.Add(values.data(), entry.end - entry.begin);
    HARMONY_RETURN_IF_ERROR(
        file_.file().WriteAt(entry.begin, values.data(), entry.end - entry.begin));
  } else {
    std::vector<uint16_t> buffer(std::min<size_t>(kWrittenElements, values.size()));
    for (size_t done = 0; done < values.size();) {
      const size_t count = std::min<size_t>(kWrittenElements, values.size() - done);
      const auto out = absl::MakeSpan(buffer).subspan(0, count);
      const auto in = values.subspan(done, count);
      entry.dtype == DType::kBF16 ? Bf16FromFloats(in, out) : F16FromFloats(in, out);
      hasher.Add(buffer.data(), static_cast<int64_t>(2 * count));
      HARMONY_RETURN_IF_ERROR(file_.file().WriteAt(entry.begin + static_cast<int64_t>(2 * done),
                                                   buffer.data(), static_cast<int64_t>(2 * count)));
      done += count;
    }
  }
  written_[it->second] = {true, hasher.Digest()};
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::WriteBytes(absl::string_view name,
                                           absl::Span<const std::byte> bytes) {
  const auto it = index_.find(std::string(name));
  const auto size = static_cast<int64_t>(bytes.size());
  if (it == index_.end() || written_[it->second].done ||
      entries_[it->second].end - entries_[it->second].begin != size) {
    return absl::InternalError(absl::StrCat(file_.path(), ": tensor '", name, "' (", size,
                                            " bytes) is not expected here"));
  }
  HARMONY_RETURN_IF_ERROR(CheckNotCancelled(cancelled_));
  Hasher hasher;
  hasher.Add(bytes.data(), size);
  HARMONY_RETURN_IF_ERROR(file_.file().WriteAt(entries_[it->second].begin, bytes.data(), size));
  written_[it->second] = {true, hasher.Digest()};
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Verify() {
  const File& file = file_.file();
  HARMONY_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> written,
                           ReadSafetensorsHeader(file));
  if (written.size() != entries_.size()) {
    return absl::DataLossError(absl::StrCat(file_.path(), ": read back with ", written.size(),
                                            " tensors, written with ", entries_.size()));
  }
  std::vector<char> buffer(kReadBack);
  for (const SafetensorsEntry& entry : written) {
    const auto it = index_.find(entry.name);
    const SafetensorsEntry* expected = it == index_.end() ? nullptr : &entries_[it->second];
    if (expected == nullptr || expected->dtype != entry.dtype || expected->shape != entry.shape ||
        expected->begin != entry.begin || expected->end != entry.end) {
      return absl::DataLossError(absl::StrCat(file_.path(), ": tensor '", entry.name,
                                              "' is read back with another shape, type or place"));
    }
    Hasher hasher;
    for (int64_t at = entry.begin; at < entry.end;) {
      HARMONY_RETURN_IF_ERROR(CheckNotCancelled(cancelled_));
      const int64_t count = std::min<int64_t>(kReadBack, entry.end - at);
      HARMONY_RETURN_IF_ERROR(file.ReadAt(at, buffer.data(), count));
      hasher.Add(buffer.data(), count);
      at += count;
    }
    if (hasher.Digest() != written_[it->second].hash) {
      return absl::DataLossError(
          absl::StrCat(file_.path(), ": tensor '", entry.name,
                       "' is read back with another checksum than was written"));
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  for (size_t i = 0; i < written_.size(); ++i) {
    if (!written_[i].done) {
      return absl::InternalError(
          absl::StrCat(file_.path(), ": tensor '", entries_[i].name, "' was never written"));
    }
  }
  HARMONY_RETURN_IF_ERROR(CheckNotCancelled(cancelled_));
  HARMONY_RETURN_IF_ERROR(file_.file().Sync());
  HARMONY_RETURN_IF_ERROR(Verify());
  return file_.Commit();
}

}  // namespace harmony::io
