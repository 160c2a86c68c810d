// Translates C++ exceptions to Python's.
#pragma once

#include <exception>

namespace fxpress::engine {

// Sets the Python error that torch sets when an operator that Python calls throws this. With the
// GIL.
void set_python_error(const std::exception_ptr& thrown) noexcept;

}  // namespace fxpress::engine
