// Bytes in memory that is kept when they are replaced, and not zeroed before they are: the payload of one request or
// answer after another. Aligned to 16 bytes.
// Owns: the memory. Threads: one. Blocks: no.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace orbitkv::channel {

class ByteBuffer {
 public:
  ByteBuffer() = default;
  ByteBuffer(ByteBuffer&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ByteBuffer& operator=(ByteBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void Clear() { size_ = 0; }
  void Assign(std::span<const std::byte> bytes) {
    size_ = 0;
    Append(bytes);
  }
  void Append(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    if (bytes.size() > capacity_ - size_) Grow(size_ + bytes.size());
    std::memcpy(data_.get() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }
  // Gives memory above max_bytes back; the content goes with it.
  void Shrink(std::size_t max_bytes) {
    size_ = 0;
    if (capacity_ > max_bytes) {
      data_.reset();
      capacity_ = 0;
    }
  }

 private:
  void Grow(std::size_t needed) {
    const std::size_t capacity = std::max({needed, 2 * capacity_, std::size_t{256}});
    auto data = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (size_ > 0) std::memcpy(data.get(), data_.get(), size_);
    data_ = std::move(data);
    capacity_ = capacity;
  }
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace orbitkv::channel
