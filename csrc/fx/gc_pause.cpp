#include "fx/gc_pause.h"

#include <Python.h>

#include <chrono>

namespace fxpress::fx {

namespace {
int pauses = 0;                               // guarded by the GIL
bool was_enabled = false;                     // what the first pause found
std::chrono::steady_clock::time_point since;  // the first pause
constexpr std::chrono::seconds kLongest{10};
}  // namespace

GcPause::GcPause() {
  if (pauses++ != 0) return;
  was_enabled = PyGC_Disable() != 0;
  since = std::chrono::steady_clock::now();
}

GcPause::~GcPause() {
  const bool is_last = --pauses == 0;
  if (!was_enabled) return;
  if (is_last || std::chrono::steady_clock::now() - since > kLongest) PyGC_Enable();
}

int gc_pauses() {
  return pauses;
}

}  // namespace fxpress::fx
