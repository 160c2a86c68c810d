// Creates the values of instantiated nodes: fake tensors, which may share storages, and lists and
// tuples of values.
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
  // helper: a fxpress._graphs.decompose.write.Writer. Its dict `tools` contains functions of torch.
  explicit Values(PyObject* helper);

  // Creates a value. storages: a list of fxpress._graphs.decompose.values.Storage.
  Ref make(const ValueSpec& spec, PyObject* storages);

 private:
  // The first tensor that was created for a spec. Later tensors are copies of it.
  struct First {
    Ref fake;
    bool fills_storage;  // whether its storage was created with the tensor
  };

  Ref tensor(const ValueSpec& spec, PyObject* storages);
  // fills_storage: whether the storage is created with the new tensor.
  Ref like_first(const ValueSpec& spec, PyObject* storage, bool fills_storage,
                 const fx::FakeMaker& fakes);
  Ref real_tensor(const ValueSpec& spec, PyObject* storage, bool fills_storage);
  Ref storage_of(PyObject* storage);
  void keep_storage(PyObject* storage, PyObject* tensor);
  const fx::FakeMaker& fakes_on(PyObject* device);

  PyObject* helper_;                                         // borrowed
  Ref made_, storage_, attributes_, set_, untyped_storage_;  // interned names
  Ref empty_, empty_strided_, like_pattern_, meta_;
  Ref no_data_, dtype_device_;                            // constant arguments
  std::deque<std::pair<Ref, fx::FakeMaker>> of_devices_;  // device -> maker of fake tensors
  std::unordered_map<const ValueSpec*, First> first_;
};

}  // namespace fxpress::decompose
