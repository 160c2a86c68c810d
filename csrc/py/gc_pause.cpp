#include "py/gc_pause.h"

#include <chrono>

#include "py/calls.h"

namespace fxpress::cpython {

namespace {

Holds pauses;
bool was_enabled = false;  // what the first pause found
// The first pause; zero is no reason to throw.
std::chrono::steady_clock::time_point since;  // NOLINT(bugprone-throwing-static-initialization)
constexpr std::chrono::seconds kLongest{10};

Holds rare;
constexpr long kYoung = 100'000;        // objects
PyObject* thresholds_before = nullptr;  // outside of all blocks: a tuple; owned
PyObject* get_threshold = nullptr;      // functions of the module gc; owned, for good
PyObject* set_threshold = nullptr;

void enable_again() {
  if (was_enabled) PyGC_Enable();
}

// The thresholds, the first of them replaced: a new reference.
Ref with_first(PyObject* thresholds, long first) {
  Ref made = Ref::steal(PySequence_List(thresholds));
  check(PySequence_SetItem(made.get(), 0, Ref::steal(PyLong_FromLong(first)).get()));
  return Ref::steal(PyList_AsTuple(made.get()));
}

void make_rare() {
  Ref before = call(get_threshold);
  const long first = PyLong_AsLong(PyTuple_GetItem(before.get(), 0));
  if (0 < first && first < kYoung) {  // 0 is no collections at all
    Ref::steal(PyObject_CallObject(set_threshold, with_first(before.get(), kYoung).get()));
  }
  Py_XSETREF(thresholds_before, before.release());
}

// Other code may have set other thresholds meanwhile; those stay.
void make_usual() {
  const Ref now = call(get_threshold);
  const Ref ours = with_first(thresholds_before, kYoung);
  if (is_equal(now.get(), ours.get())) {
    Ref::steal(PyObject_CallObject(set_threshold, thresholds_before));
  }
}

}  // namespace

Hold::Hold(Holds& holds) : holds_(&holds), next_(holds.first) {
  if (next_ != nullptr) next_->previous_ = this;
  holds.first = this;
  ++holds.count;
}

bool Hold::leave() {
  if (holds_ == nullptr) return false;
  (previous_ == nullptr ? holds_->first : previous_->next_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  return --std::exchange(holds_, nullptr)->count == 0;
}

bool Holds::forget_other_threads() {
  bool is_over = false;
  for (Hold* hold = first; hold != nullptr;) {
    Hold* const next = hold->next_;
    if (hold->thread_ != std::this_thread::get_id()) is_over = hold->leave();
    hold = next;
  }
  return is_over;
}

GcPause::GcPause() : hold_(pauses) {
  if (pauses.count != 1) return;
  was_enabled = PyGC_Disable() != 0;
  since = std::chrono::steady_clock::now();
}

GcPause::~GcPause() {
  if (hold_.leave() || (pauses.count != 0 && std::chrono::steady_clock::now() - since > kLongest)) {
    enable_again();
  }
}

int gc_pauses() {
  return pauses.count;
}

RareCollections::RareCollections() : hold_(rare) {
  if (rare.count == 1) make_rare();
}

// make_usual() throws errors of Python alone.
RareCollections::~RareCollections() {  // NOLINT(bugprone-exception-escape)
  if (!hold_.leave()) return;
  try {
    make_usual();
  } catch (pybind11::error_already_set& error) {
    error.discard_as_unraisable("the collector's thresholds");
  }
}

void initialize_gc() {
  const Ref gc = Ref::steal(PyImport_ImportModule("gc"));
  get_threshold = check(PyObject_GetAttrString(gc.get(), "get_threshold"));
  set_threshold = check(PyObject_GetAttrString(gc.get(), "set_threshold"));
}

void end_pauses_of_other_threads() {
  if (pauses.forget_other_threads()) enable_again();
  if (rare.forget_other_threads()) make_usual();
}

}  // namespace fxpress::cpython
