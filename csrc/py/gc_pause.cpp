#include "py/gc_pause.h"

#include <chrono>
#include <limits>

#include "py/calls.h"

namespace fxpress::cpython {

namespace {

Holds pauses;
// When the first of the active pauses began. Its initializer, zero, cannot throw.
std::chrono::steady_clock::time_point since;  // NOLINT(bugprone-throwing-static-initialization)
constexpr std::chrono::seconds kLongest{10};

Holds rare;

// Values of the first threshold: the number of new objects that starts a collection.
constexpr long kRare = 100'000;                           // while a RareCollections exists
constexpr long kNever = std::numeric_limits<int>::max();  // while a GcPause exists

PyObject* usual = nullptr;          // thresholds to restore; owned; null if `ours` is null
PyObject* ours = nullptr;           // thresholds set by this file; owned
PyObject* get_threshold = nullptr;  // functions of gc; never released
PyObject* set_threshold = nullptr;

void find_functions() {
  const Ref gc = Ref::steal(PyImport_ImportModule("gc"));
  set_threshold = check(PyObject_GetAttrString(gc.get(), "set_threshold"));
  get_threshold = check(PyObject_GetAttrString(gc.get(), "get_threshold"));
}

// Returns a copy of `thresholds` with `first` as its first item.
Ref with_first(PyObject* thresholds, long first) {
  Ref made = Ref::steal(PySequence_List(thresholds));
  check(PySequence_SetItem(made.get(), 0, Ref::steal(PyLong_FromLong(first)).get()));
  return Ref::steal(PyList_AsTuple(made.get()));
}

// Raises the first threshold to at least `least`, or restores `usual` if `least` is 0. If other
// code has set thresholds in the meantime, they become `usual`.
void set_least(long least) {
  if (get_threshold == nullptr) find_functions();
  Ref now = call(get_threshold);
  const bool is_ours = ours != nullptr && is_equal(now.get(), ours);
  if (is_ours) now = Ref::borrow(usual);
  const long first = PyLong_AsLong(PyTuple_GetItem(now.get(), 0));
  const bool is_changed = 0 < first && first < least;  // threshold 0 disables collections
  Ref wanted = is_changed ? with_first(now.get(), least) : Ref();
  if (is_changed || is_ours) {
    PyObject* const set = is_changed ? wanted.get() : now.get();
    Ref::steal(PyObject_CallObject(set_threshold, set));
  }
  Py_XSETREF(usual, is_changed ? now.release() : nullptr);
  Py_XSETREF(ours, wanted.release());
}

// Sets the thresholds. Constructors and destructors call this function, so it reports errors, such
// as MemoryError, as unraisable. set_least() throws only Python errors.
void update(bool is_paused) noexcept {  // NOLINT(bugprone-exception-escape)
  const pybind11::error_scope kept;
  try {
    set_least(is_paused ? kNever : rare.count() != 0 ? kRare : 0);
  } catch (pybind11::error_already_set& error) {
    error.discard_as_unraisable("the collector's thresholds");
  }
}

}  // namespace

uint64_t Holds::add() {
  threads_.emplace(next_, std::this_thread::get_id());
  return next_++;
}

bool Holds::forget_other_threads() {
  const auto is_gone = [](const auto& hold) { return hold.second != std::this_thread::get_id(); };
  return std::erase_if(threads_, is_gone) != 0 && threads_.empty();
}

GcPause::GcPause() : hold_(pauses.add()) {
  if (pauses.count() != 1) return;
  since = std::chrono::steady_clock::now();
  update(true);
}

GcPause::~GcPause() {
  if (pauses.remove(hold_) ||
      (pauses.count() != 0 && std::chrono::steady_clock::now() - since > kLongest)) {
    update(false);
  }
}

int gc_pauses() {
  return pauses.count();
}

RareCollections::RareCollections() : hold_(rare.add()) {
  if (rare.count() == 1) update(pauses.count() != 0);
}

RareCollections::~RareCollections() {
  if (rare.remove(hold_)) update(pauses.count() != 0);
}

void end_pauses_of_other_threads() {
  const bool is_over = pauses.forget_other_threads();
  if (rare.forget_other_threads() || is_over) update(pauses.count() != 0);
}

}  // namespace fxpress::cpython
