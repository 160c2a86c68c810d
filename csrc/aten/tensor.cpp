#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "tensor/call_digest.h"
#include "tensor/clone.h"
#include "tensor/metadata.h"
#include "tensor/storages.h"

namespace fxpress::aten {

namespace py = pybind11;
using namespace py::literals;

namespace {

using NumbersTuple =
    std::tuple<c10::SymInt, std::vector<c10::SymInt>, std::vector<c10::SymInt>, c10::SymInt>;

constexpr const char* kLayout = "fxpress.Layout";  // the name of capsules with a Layout

}  // namespace

void bind_tensor(py::module_& m) {
  m.def("storage_bytes", tensor::storage_bytes, "tensors"_a,
        "Return the bytes of the tensors' storages; shared storages count once.");
  m.def("same_data", tensor::same_data, "values"_a,
        "Return, for each value, the position of the first value that is the same object or view.");
  m.def("clone_aliased", tensor::clone_aliased, "values"_a,
        R"(Return (copies, {position: value not copied}); copies share storages as the originals do.

The copy is None for a value that is not a plain CPU tensor.)");
  m.def("clone_separately", tensor::clone_separately, "values"_a, "parameters"_a,
        R"(Return copies with separate storages, as Parameters where `parameters` is true.

The copy is None for a value that `clone()` does not copy byte by byte.)");
  m.def("like_pattern", tensor::like_pattern, "pattern"_a, "storage"_a,
        "Return a tensor on the meta device with the sizes, strides and offset of `pattern`.");
  m.def(
      "make_meta",
      [](NumbersTuple numbers, at::ScalarType dtype, const std::optional<at::Storage>& storage) {
        return tensor::make_meta(std::make_from_tuple<tensor::Numbers>(std::move(numbers)), dtype,
                                 storage);
      },
      "numbers"_a, "dtype"_a, "storage"_a,
      R"(Return a tensor on the meta device, in `storage` or, if it is None, in a new storage.

numbers: (bytes of a new storage, sizes, strides, offset). Symbolic numbers are not evaluated.)");
  m.def(
      "fake_result",
      [](py::handle fake, const std::optional<at::Tensor>& base,
         const std::optional<at::Tensor>& edge, std::optional<NumbersTuple> numbers,
         bool protects) {
        std::optional<tensor::Numbers> given;
        if (numbers) given = std::make_from_tuple<tensor::Numbers>(std::move(*numbers));
        return py::reinterpret_steal<py::object>(
            tensor::fake_result(fake.ptr(), base, edge, given, protects));
      },
      "fake"_a, "base"_a, "edge"_a, "numbers"_a, "protects"_a,
      R"(Return a copy of a fake tensor, without its Python attributes.

The copy has the storage of `base` or, if it is None, a new storage, and the gradient edge of `edge`.
numbers: (bytes of a new storage, sizes, strides, offset), which must equal the numbers of `fake`;
None: as in `fake`.)");
  m.def("known_layout", tensor::known_layout, "tensor"_a,
        "Return a bit for each fact about a symbolic layout that torch has computed and cached.");
  m.attr("UNDECIDED") = tensor::kUndecided;
  m.def(
      "layout_of",
      [](const at::Tensor& tensor) {
        auto layout = std::make_unique<tensor::Layout>(tensor);
        py::capsule made(layout.get(), kLayout,
                         [](void* owned) { delete static_cast<tensor::Layout*>(owned); });
        [[maybe_unused]] const auto* owned_by_capsule = layout.release();
        return made;
      },
      "tensor"_a, "Return an object with the symbolic layout of a tensor.");
  m.def(
      "give_layout",
      [](const py::capsule& layout, const at::Tensor& tensor, NumbersTuple numbers,
         const c10::SymInt& elements) {
        auto* known = static_cast<tensor::Layout*>(PyCapsule_GetPointer(layout.ptr(), kLayout));
        if (known == nullptr) throw py::error_already_set();
        known->give(tensor, std::make_from_tuple<tensor::Numbers>(std::move(numbers)), elements);
      },
      "layout"_a, "tensor"_a, "numbers"_a, "elements"_a,
      "Give a tensor a layout from `layout_of`, with equal numbers (see `fake_result`).");
  m.def(
      "call_digest",
      [](py::handle mode, py::handle fake_class, py::handle args, py::handle kwargs) {
        return py::reinterpret_steal<py::object>(
            tensor::call_digest(mode.ptr(), fake_class.ptr(), args.ptr(), kwargs.ptr()));
      },
      "mode"_a, "fake_class"_a, "args"_a, "kwargs"_a,
      R"(Return bytes that identify the arguments of a call on fake tensors of `mode`.

None for arguments with symbolic sizes, and for values that are not constants or fake tensors.)");
  m.def("storage_places", tensor::storage_places, "values"_a,
        R"(Return (address, bytes) of each storage, and an object that keeps the storages alive.

The list has None for a value that is not a plain view of a storage.)");
  m.def("storage_numbers", tensor::storage_numbers, "values"_a, "but_on"_a = py::none(),
        R"(Return the number of each value's storage, in order of first appearance.

It is -1 for a value that is not a plain view of a storage, or is on the device `but_on`.)");
  m.def("views_like", tensor::views_like, "values"_a, "numbers"_a, "storages"_a,
        R"(Return tensors like the values on other storages, by number; None where the number is -1.

A value that occurs twice gives one tensor. ValueError for a storage that is too small.)");
  m.def("storages_of", tensor::storages_of, "tensors"_a,
        "Return the tensors' storages, as tensors of bytes: uint8, one dimension.");
  m.def("allocate_bytes", tensor::allocate_bytes, "sizes"_a, "device"_a,
        "Return tensors of uninitialized bytes, and their addresses.");
  m.def("make_views", tensor::make_views, "storages"_a, "views"_a,
        R"(Return tensors that are views of storages.

views: (position of the storage, its name for errors, dtype, sizes, strides, offset, requires_grad,
is a parameter). ValueError for a view that is not inside of its storage.)");
  m.def("share_gradient_edge", tensor::share_gradient_edge, "made"_a, "like"_a,
        "Make a tensor a result of the autograd function that `like` is a result of.");
  // _native, which is built without torch's headers, reads and creates tensors by these functions.
  m.attr("tensor_facts") =
      py::capsule(reinterpret_cast<void*>(&tensor::read_facts), core::kTensorFactsCapsule);
  m.attr("fake_like") =
      py::capsule(reinterpret_cast<void*>(&tensor::fake_like), core::kFakeLikeCapsule);
}

}  // namespace fxpress::aten
