#include "install/installation.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

namespace fxpress::install {

namespace py = pybind11;

namespace {

Replacements stand_ins(const Patches& patches) {
  Replacements made;
  for (const Patch& patch : patches.patches) made[patch.original.get()] = patch.stand_in.get();
  return made;
}

Replacements originals(const Patches& patches) {
  Replacements made;
  for (const Patch& patch : patches.patches) made[patch.stand_in.get()] = patch.original.get();
  return made;
}

void call_all(const std::vector<Ref>& callbacks) {
  for (const Ref& callback : callbacks) {
    Py_XDECREF(PyObject_CallNoArgs(callback.get()));
    PyErr_Clear();  // names have changed whatever it says
  }
}

Ref ref(const py::handle& object) {
  return Ref::borrow(object.ptr());
}

}  // namespace

const Lease* Installation::acquire(Lease lease, Patches patches) {
  auto made = std::make_unique<Lease>(std::move(lease));
  const Lease* const result = made.get();
  leases_.reserve(leases_.size() + 1);
  if (leases_.empty()) put_in_place(std::move(patches));
  leases_.push_back(std::move(made));
  if (leases_.size() == 1) call_all(active_.callbacks);
  return result;
}

void Installation::release(const Lease* lease) {
  const auto found = std::find_if(leases_.begin(), leases_.end(),
                                  [&](const auto& each) { return each.get() == lease; });
  if (found == leases_.end()) return;
  const auto gone = std::move(*found);  // its objects go at the end
  leases_.erase(found);
  if (leases_.empty()) restore();
}

const Lease* Installation::newest() const {
  const auto found = std::find_if(leases_.rbegin(), leases_.rend(),
                                  [](const auto& each) { return !each->is_scoped; });
  return found == leases_.rend() ? nullptr : found->get();
}

PyObject* Installation::policy() const {
  if (leases_.empty() || active_.patches.empty()) return nullptr;
  return leases_.back()->policy.get();
}

void Installation::put_in_place(Patches patches) {
  try {
    rebind(stand_ins(patches));
  } catch (...) {
    const pybind11::error_scope error;
    rebind(originals(patches));
    throw;
  }
  active_ = std::move(patches);
}

void Installation::restore() {
  const Patches gone = std::exchange(active_, {});
  rebind(originals(gone));
  call_all(gone.callbacks);
}

const Lease* acquire(Installation& installation, const Prepared& prepared, bool scoped) {
  const auto& [policy, pairs, callbacks] = prepared;
  Patches patches;
  for (const auto& [original, stand_in] : pairs) {
    patches.patches.push_back({ref(original), ref(stand_in)});
  }
  for (const py::handle& callback : callbacks) patches.callbacks.push_back(ref(callback));
  return installation.acquire({ref(policy), scoped}, std::move(patches));
}

void release_newest(Installation& installation) {
  const Lease* newest = installation.newest();
  if (newest == nullptr) {
    raise(PyExc_RuntimeError, "fxpress.uninstall() without a matching fxpress.install()");
  }
  installation.release(newest);
}

InstalledBlock::InstalledBlock(py::object installation, py::object prepare, py::object decorate)
    : owner_(std::move(installation)),
      installation_(owner_.cast<Installation*>()),
      prepare_(std::move(prepare)),
      decorate_(std::move(decorate)) {}

void InstalledBlock::enter() {
  if (lease_ != nullptr) raise(PyExc_RuntimeError, "the block was entered already");
  const auto prepared = prepare_().cast<Prepared>();
  lease_ = acquire(*installation_, prepared, true);
}

void InstalledBlock::exit(const py::args&) {
  installation_->release(std::exchange(lease_, nullptr));
}

}  // namespace fxpress::install
