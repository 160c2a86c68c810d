// Creates the values of instantiated nodes: fake tensors, which may share storages, and containers
// of values.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>

#include "decompose/recipe.h"
#include "fx/fakes.h"
#include "py/object.h"

namespace fxpress::decompose {

class Values {
 public:
  // `helper`: a fxpress._graphs.decompose.write.Writer; its `tools` are functions of torch by role.
  explicit Values(PyObject* helper);

  // `storages`: list of fxpress._graphs.decompose.values.Storage.
  Ref make(const ValueSpec& spec, PyObject* storages);

 private:
  // The first tensor of a spec, from which later tensors are copied.
  struct First {
    Ref fake;
    bool fills_storage;  // whether the storage of `fake` was created with it
  };

  Ref tensor(const ValueSpec& spec, PyObject* storages);
  // `fills_storage`: whether the storage is created with the tensor.
  Ref like_first(const ValueSpec& spec, PyObject* storage, bool fills_storage,
                 const fx::FakeMaker& fakes);
  Ref real_tensor(const ValueSpec& spec, PyObject* storage, bool fills_storage);
  Ref storage_of(PyObject* storage);
  void keep_storage(PyObject* storage, PyObject* tensor);
  const fx::FakeMaker& fakes_on(PyObject* device);

  PyObject* helper_;                                         // borrowed
  Ref made_, storage_, attributes_, set_, untyped_storage_;  // names of attributes and methods
  Ref empty_, empty_strided_, like_pattern_, meta_;
  Ref no_data_, dtype_device_;                            // constant arguments of calls
  std::deque<std::pair<Ref, fx::FakeMaker>> of_devices_;  // device -> maker of its fake tensors
  std::unordered_map<const ValueSpec*, First> first_;
};

}  // namespace fxpress::decompose
