// growing.h: an array that grows without copying, if the system can remap pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
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

/// Codes from 0 on, in as few bytes as the largest one needs.
class Codes {
 public:
  void push(std::uint32_t code) {
    if (bytes_ == 1) {
      if (code <= kMost<std::int8_t>) return small_.push(static_cast<std::int8_t>(code));
      widen(&small_, &medium_);
      bytes_ = 2;
    }
    if (bytes_ == 2) {
      if (code <= kMost<std::int16_t>) return medium_.push(static_cast<std::int16_t>(code));
      widen(&medium_, &large_);
      bytes_ = 4;
    }
    large_.push(static_cast<std::int32_t>(code));
  }
  std::size_t size() const noexcept { return small_.size() + medium_.size() + large_.size(); }
  bool empty() const noexcept { return size() == 0; }
  std::uint32_t operator[](std::size_t at) const noexcept {
    const std::int32_t code = bytes_ == 1 ? small_[at] : bytes_ == 2 ? medium_[at] : large_[at];
    return static_cast<std::uint32_t>(code);
  }
  std::uint32_t back() const noexcept { return (*this)[size() - 1]; }
  /// Passes the array of the type in use to `use`, and returns what it returns.
  template <class Use>
  auto take(Use use) {
    if (bytes_ == 1) return use(std::move(small_));
    return bytes_ == 2 ? use(std::move(medium_)) : use(std::move(large_));
  }

 private:
  template <class T>
  static constexpr std::uint32_t kMost = static_cast<std::uint32_t>(std::numeric_limits<T>::max());

  template <class From, class To>
  static void widen(Growing<From>* from, Growing<To>* to) {
    for (std::size_t at = 0; at < from->size(); ++at) to->push((*from)[at]);
    *from = Growing<From>();
  }

  int bytes_ = 1;
  Growing<std::int8_t> small_;
  Growing<std::int16_t> medium_;
  Growing<std::int32_t> large_;
};

}  // namespace stagespan::trace
