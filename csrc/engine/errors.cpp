#include "engine/errors.h"

#include <torch/csrc/Exceptions.h>

#include <new>
#include <stdexcept>

#include "engine/symbols.h"

namespace fxpress::engine {

void set_python_error(const std::exception_ptr& thrown) noexcept {
  // torch knows its own errors and makes a RuntimeError of any other. Older releases leave these to
  // pybind11, through which Python calls operators there.
  try {
    if (symbols.plain_errors == Py_True) return torch::translate_exception_to_python(thrown);
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::overflow_error& error) {
    PyErr_SetString(PyExc_OverflowError, error.what());
  } catch (const std::domain_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::length_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::range_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception&) {
    torch::translate_exception_to_python(thrown);
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

}  // namespace fxpress::engine
