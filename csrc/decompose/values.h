// Makes the values of stamped nodes: fake tensors of their own, which share storages.
#pragma once

#include <utility>
#include <vector>

#include "decompose/recipe.h"
#include "py/object.h"

namespace fxpress::decompose {

class Values {
 public:
  // `helper`: a fxpress._decompose.write.Writer, whose `tools` has functions of torch by role.
  explicit Values(PyObject* helper);

  // `storages`: list of fxpress._decompose.values.Storage.
  Ref make(const ValueSpec& spec, PyObject* storages);

 private:
  Ref tensor(const ValueSpec& spec, PyObject* storages);
  Ref real_tensor(const ValueSpec& spec, PyObject* storage);
  Ref symbolic_tensor(const ValueSpec& spec, PyObject* storage, Ref made);
  Ref storage_of(PyObject* storage);
  PyObject* attributes_on(PyObject* device);

  PyObject* helper_;                                         // borrowed
  Ref made_, storage_, attributes_, set_, untyped_storage_;  // names
  Ref empty_, empty_strided_, like_pattern_, make_subclass_, protect_data_, fake_type_, meta_;
  Ref no_data_, dtype_device_, backend_;         // arguments that are always the same
  std::vector<std::pair<Ref, Ref>> of_devices_;  // device -> dict: attributes of fakes on it
};

}  // namespace fxpress::decompose
