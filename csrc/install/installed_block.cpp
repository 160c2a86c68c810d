#include "install/installed_block.h"

#include <pybind11/stl.h>

namespace fxpress::install {

namespace py = pybind11;

namespace {

Ref ref(const py::handle& object) {
  return Ref::borrow(object.ptr());
}

}  // namespace

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
