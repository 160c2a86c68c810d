// Defines an array that grows by realloc(), which moves the pages of a large array without copying
// or touching them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace fxpress::core {

template <class T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  GrowingArray() = default;
  GrowingArray(const GrowingArray& other) { append(other.items()); }
  GrowingArray(GrowingArray&& other) noexcept { swap(other); }
  GrowingArray& operator=(GrowingArray other) noexcept {
    swap(other);
    return *this;
  }
  ~GrowingArray() { std::free(data_); }

  size_t size() const { return size_; }
  const T* data() const { return data_; }
  std::span<const T> items() const { return {data_, size_}; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    if (capacity > static_cast<size_t>(-1) / sizeof(T)) throw std::bad_alloc();
    void* moved = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
  }
  void append(const T& value, size_t count) {
    ensure_capacity_for(count);
    std::fill_n(data_ + size_, count, value);
    size_ += count;
  }
  void append(std::span<const T> values) {  // `values` must not be in this array
    ensure_capacity_for(values.size());
    std::copy(values.begin(), values.end(), data_ + size_);
    size_ += values.size();
  }

 private:
  void ensure_capacity_for(size_t count) {
    if (count > capacity_ - size_) reserve(std::max(size_ + count, capacity_ + capacity_ / 2));
  }
  void swap(GrowingArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace fxpress::core
