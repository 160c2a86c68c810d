// Keeps daemon threads whose stack has frames of fxpress from unwinding at interpreter shutdown.
//
// Python before 3.14 ends a daemon thread by pthread_exit() when the thread takes the GIL.
// pthread_exit() unwinds the stack: destructors would release objects without the GIL, and a
// noexcept function or a catch-all handler would abort the process. The unwinder calls the C++
// personality routine for each frame that has something to clean up. The linker (--wrap) replaces
// this routine by the function below, for frames of the extension only. At the first such frame,
// the thread waits for the end of the process, as daemon threads do from Python 3.14 on.
#include <unwind.h>

#include "py/interpreter.h"

namespace fxpress::cpython {

// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class exception_class,
                                                _Unwind_Exception* exception,
                                                _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class exception_class,
                                                _Unwind_Exception* exception,
                                                _Unwind_Context* context) {
  if ((actions & _UA_FORCE_UNWIND) != 0) wait_if_finalizing();
  return __real___gxx_personality_v0(version, actions, exception_class, exception, context);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)

}  // namespace fxpress::cpython
