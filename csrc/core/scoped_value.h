// Defines ScopedValue, which sets a variable for the duration of a block.
#pragma once

#include <utility>

namespace fxpress::core {

// Sets a variable. The destructor restores the previous value.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& variable, T value)
      : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& variable_;
  T before_;
};

}  // namespace fxpress::core
