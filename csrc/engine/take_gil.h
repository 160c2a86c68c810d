// Taking the GIL back.
#pragma once

#include <Python.h>

namespace fxpress::engine {

// PyEval_RestoreThread() for a thread that may outlive the interpreter.
void take_gil(PyThreadState* thread);

}  // namespace fxpress::engine
