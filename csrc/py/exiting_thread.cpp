// Prevents unwinding of daemon threads in fxpress at interpreter shutdown.
//
// Before Python 3.14, a daemon thread that acquires the GIL at shutdown ends by pthread_exit(),
// which unwinds the stack. Destructors would then release objects without the GIL, and a noexcept
// function or a catch-all handler would abort the process. For each frame that needs cleanup, the
// unwinder calls the C++ personality routine. In the frames of this extension, the linker (--wrap)
// replaces this routine by the function below. It makes the thread wait for the end of the process,
// as Python does from 3.14 on.
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
