// growing.h: an array that grows without copying, if the system can remap pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

namespace stagespan::trace {

/// Like std::vector for plain values, but grown with realloc. The system remaps large arrays instead of copying them,
/// so growing needs no second copy in memory, and pages that were never written take no memory.
template <class T>
class Growing {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Growing() = default;
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  Growing(Growing&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Growing& operator=(Growing&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Growing() { std::free(data_); }

  void push(T value) {
    if (size_ == capacity_) make_room(size_ + 1);
    data_[size_++] = value;
  }
  void append(const T* values, std::size_t count) {
    if (count == 0) return;
    if (capacity_ - size_ < count) make_room(size_ + count);
    for (std::size_t i = 0; i < count; ++i) data_[size_ + i] = values[i];
    size_ += count;
  }
  /// Frees the capacity that is not in use.
  void fit() noexcept {
    if (size_ == 0 || size_ == capacity_) return;
    if (void* const moved = std::realloc(static_cast<void*>(data_), size_ * sizeof(T))) {
      data_ = static_cast<T*>(moved);
      capacity_ = size_;
    }
  }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](std::size_t at) noexcept { return data_[at]; }
  const T& operator[](std::size_t at) const noexcept { return data_[at]; }
  T& back() noexcept { return data_[size_ - 1]; }

 private:
  void make_room(std::size_t least) {
    std::size_t capacity = capacity_ + capacity_ / 2 + 16;
    if (capacity < least) capacity = least;
    void* const moved = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace stagespan::trace
