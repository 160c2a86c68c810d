// Memory that is charged to Python's account of it.
#pragma once

#include <cstdint>
#include <utility>

#include "py/object.h"

namespace fxpress::view {

class Charge {
 public:
  // take(bytes) raises where there is too little.
  explicit Charge(PyObject* take) : take_(Ref::borrow(take)) {}

  void add(uint64_t bytes) {
    waiting_ += bytes;
    if (waiting_ >= kStep) settle();
  }

 private:
  static constexpr uint64_t kStep = 1 << 20;  // bytes that nobody is told of at once

  void settle() {
    const uint64_t bytes = std::exchange(waiting_, 0);
    const Ref number = Ref::steal(PyLong_FromUnsignedLongLong(bytes));
    Ref::steal(PyObject_CallOneArg(take_.get(), number.get()));
  }

  Ref take_;
  uint64_t waiting_ = 0;  // bytes that take_ was not told of
};

}  // namespace fxpress::view
