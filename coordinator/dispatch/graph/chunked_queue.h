#pragma once

// A queue whose elements are looked up by number and never move: in chunks of 256, so that adding
// one seldom allocates. PURE.

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

namespace harmony::dispatch {

template <typename T>
class ChunkedQueue {
 public:
  T& operator[](size_t i) { return At(begin_ + i); }
  const T& operator[](size_t i) const { return At(begin_ + i); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& front() { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }

  void push_back(T&& value) {
    if (begin_ + size_ == chunks_.size() * kChunk) {
      if (spare_ == nullptr) spare_ = std::make_unique<T[]>(kChunk);
      chunks_.push_back(std::move(spare_));
    }
    At(begin_ + size_++) = std::move(value);
  }
  void pop_front() {  // REQUIRES: !empty(). What the element holds is freed later.
    --size_;
    if (++begin_ < kChunk) return;
    begin_ = 0;
    spare_ = std::move(chunks_.front());
    chunks_.pop_front();
  }

 private:
  static constexpr size_t kChunk = 256;
  T& At(size_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& At(size_t i) const { return chunks_[i / kChunk][i % kChunk]; }

  std::deque<std::unique_ptr<T[]>> chunks_;
  std::unique_ptr<T[]> spare_;
  size_t begin_ = 0;  // in the first chunk
  size_t size_ = 0;
};

}  // namespace harmony::dispatch
