// Leases of the installation for Python.
#pragma once

#include <pybind11/pybind11.h>

#include <tuple>
#include <utility>
#include <vector>

#include "install/installation.h"

namespace fxpress::install {

// A policy, pairs of an original and its stand-in, and callbacks.
using Prepared =
    std::tuple<pybind11::str, std::vector<std::pair<pybind11::object, pybind11::object>>,
               pybind11::list>;

// Takes a lease; a scoped one belongs to a context manager.
const Lease* acquire(Installation& installation, const Prepared& prepared, bool scoped);

// Gives the newest lease back that is not scoped; RuntimeError when there is none.
void release_newest(Installation& installation);

// `with installed()`. What `prepare` does has no effect on others, and may be interrupted.
class InstalledBlock {
 public:
  // installation: an Installation. prepare: () -> Prepared. decorate: (function) -> function.
  InstalledBlock(pybind11::object installation, pybind11::object prepare,
                 pybind11::object decorate);
  pybind11::object call(const pybind11::object& function) const { return decorate_(function); }
  void enter();
  void exit(const pybind11::args&);

 private:
  pybind11::object owner_;
  Installation* installation_;  // of the owner
  pybind11::object prepare_;
  pybind11::object decorate_;
  const Lease* lease_ = nullptr;  // while the block runs
};

}  // namespace fxpress::install
