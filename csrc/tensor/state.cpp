#include "tensor/state.h"

#include <torch/csrc/autograd/python_variable.h>

#include <unordered_map>

#include "tensor/python_tensors.h"

namespace fxpress::tensor {

namespace py = pybind11;

namespace {

// Returns a key that is the same for two values of the same data: the storage, or the value itself
// when it has no plain storage.
const void* place_of(PyObject* value) {
  if (!THPVariable_Check(value)) return value;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (is_plain(tensor)) return tensor.storage().unsafeGetStorageImpl();
  return tensor.unsafeGetTensorImpl();
}

// Whether two values with one place see it through one view.
bool is_same_view(PyObject* a, PyObject* b) {
  if (!THPVariable_Check(a)) return true;
  const at::Tensor& left = THPVariable_Unpack(a);
  const at::Tensor& right = THPVariable_Unpack(b);
  if (!is_plain(left)) return true;
  return left.scalar_type() == right.scalar_type() &&
         left.storage_offset() == right.storage_offset() && left.is_conj() == right.is_conj() &&
         left.is_neg() == right.is_neg() && left.sizes() == right.sizes() &&
         left.strides() == right.strides();
}

}  // namespace

std::vector<int64_t> same_data(const std::vector<py::object>& values) {
  std::unordered_map<const void*, int64_t> latest;   // place -> the last distinct view of it
  std::vector<int64_t> previous(values.size(), -1);  // the one before, of the same place
  std::vector<int64_t> result;
  latest.reserve(values.size());
  result.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto [place, added] = latest.try_emplace(place_of(values[i].ptr()), -1);
    int64_t same = place->second;
    while (same >= 0 && !is_same_view(values[static_cast<size_t>(same)].ptr(), values[i].ptr())) {
      same = previous[static_cast<size_t>(same)];
    }
    if (same < 0) {
      same = static_cast<int64_t>(i);
      previous[i] = place->second;
      place->second = same;
    }
    result.push_back(same);
  }
  return result;
}

}  // namespace fxpress::tensor
