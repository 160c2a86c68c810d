#include "engine/take_gil.h"

#include <unistd.h>

namespace fxpress::engine {

void take_gil(PyThreadState* thread) {
  // While the process shuts down Python (before 3.14) ends a daemon thread that asks for the GIL by
  // unwinding its stack, on which we own objects that nobody may free any more. It waits for the
  // end instead, as it does from 3.14 on.
  try {
    PyEval_RestoreThread(thread);
  } catch (...) {  // the unwinding: a function in C throws nothing else
    for (;;) pause();
  }
}

}  // namespace fxpress::engine
