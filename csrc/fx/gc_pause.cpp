#include "fx/gc_pause.h"

#include <Python.h>

namespace fxpress::fx {

namespace {
int pauses = 0;            // guarded by the GIL
bool was_enabled = false;  // what the first pause found
}  // namespace

GcPause::GcPause() {
  if (pauses++ == 0) was_enabled = PyGC_Disable() != 0;
}

GcPause::~GcPause() {
  if (--pauses == 0 && was_enabled) PyGC_Enable();
}

int gc_pauses() {
  return pauses;
}

}  // namespace fxpress::fx
