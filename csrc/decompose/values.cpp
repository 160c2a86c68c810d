#include "decompose/values.h"

#include "py/calls.h"
#include "py/containers.h"

namespace fxpress::decompose {

namespace {

Ref word(const char* text) {
  return Ref::steal(PyUnicode_InternFromString(text));
}

Ref tool(PyObject* tools, const char* role) {
  return Ref::steal(PyMapping_GetItemString(tools, role));
}

}  // namespace

Values::Values(PyObject* helper)
    : helper_(helper),
      made_(word("made")),
      storage_(word("storage")),
      attributes_(word("attributes")),
      set_(word("set_")),
      untyped_storage_(word("untyped_storage")) {
  const Ref tools = Ref::steal(PyObject_GetAttrString(helper, "tools"));
  empty_ = tool(tools.get(), "empty");
  empty_strided_ = tool(tools.get(), "empty_strided");
  like_pattern_ = tool(tools.get(), "like_pattern");
  meta_ = tool(tools.get(), "meta");
  no_data_ = Ref::steal(PyLong_FromLong(0));
  dtype_device_ = Ref::steal(Py_BuildValue("(ss)", "dtype", "device"));
}

Ref Values::make(const ValueSpec& spec, PyObject* storages) {
  if (spec.type == ValueType::kConstant) return Ref::borrow(spec.constant.get());
  if (spec.type == ValueType::kTensor) return tensor(spec, storages);
  Ref list = make_list(spec.parts.size(), [&](size_t i) { return make(spec.parts[i], storages); });
  return spec.type == ValueType::kList ? std::move(list) : Ref::steal(PyList_AsTuple(list.get()));
}

Ref Values::tensor(const ValueSpec& spec, PyObject* storages) {
  PyObject* storage = PyList_GetItem(storages, spec.storage);
  check(storage);
  const fx::FakeMaker& fakes = fakes_on(spec.device.get());
  const bool fills_storage = spec.is_whole && get_attr(storage, made_.get()).get() == Py_None;
  if (Ref made = like_first(spec, storage, fills_storage, fakes)) return made;
  const Ref real = real_tensor(spec, storage, fills_storage);
  Ref fake = fakes.make(real.get(), /*requires_grad=*/false);
  first_.insert_or_assign(&spec, First{Ref::borrow(fake.get()), fills_storage});
  return fake;
}

// Returns a copy of the first tensor of `spec`. Returns an empty Ref if none exists, or if the new
// tensor fills its storage and the first tensor does not.
Ref Values::like_first(const ValueSpec& spec, PyObject* storage, bool fills_storage,
                       const fx::FakeMaker& fakes) {
  const auto known = first_.find(&spec);
  if (known == first_.end()) return {};
  PyObject* first = known->second.fake.get();
  if (!fills_storage) {
    return fakes.like(first, storage_of(storage).get());
  }
  if (!known->second.fills_storage) return {};
  Ref fake = fakes.like(first, nullptr);
  if (fake) keep_storage(storage, fake.get());
  return fake;
}

Ref Values::real_tensor(const ValueSpec& spec, PyObject* storage, bool fills_storage) {
  Ref real;
  if (spec.pattern.get() != Py_None) {
    const Ref place = fills_storage ? Ref::borrow(Py_None) : storage_of(storage);
    real = call(like_pattern_.get(), spec.pattern, place);
  } else if (fills_storage) {
    PyObject* sizes[] = {spec.shape.get(), spec.strides.get(), spec.dtype.get(), meta_.get()};
    real = Ref::steal(PyObject_Vectorcall(empty_strided_.get(), sizes, 2, dtype_device_.get()));
  } else {
    const Ref place = storage_of(storage);
    PyObject* none[] = {no_data_.get(), spec.dtype.get(), meta_.get()};
    real = Ref::steal(PyObject_Vectorcall(empty_.get(), none, 1, dtype_device_.get()));
    call_method(real.get(), set_.get(), place, spec.offset, spec.shape, spec.strides);
  }
  if (fills_storage) keep_storage(storage, real.get());
  return real;
}

void Values::keep_storage(PyObject* storage, PyObject* tensor) {
  const Ref made = call_method(tensor, untyped_storage_.get());
  check(PyObject_SetAttr(storage, made_.get(), made.get()));
}

Ref Values::storage_of(PyObject* storage) {
  Ref made = get_attr(storage, made_.get());
  if (made.get() != Py_None) return made;
  return call_method(helper_, storage_.get(), storage);
}

const fx::FakeMaker& Values::fakes_on(PyObject* device) {
  for (const auto& [known, fakes] : of_devices_) {
    if (is_equal(known.get(), device)) return fakes;
  }
  Ref attributes = call_method(helper_, attributes_.get(), device);
  return of_devices_.emplace_back(Ref::borrow(device), fx::FakeMaker(device, std::move(attributes)))
      .second;
}

}  // namespace fxpress::decompose
