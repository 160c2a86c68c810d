#include "decompose/values.h"

#include "fx/symbols.h"
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
  make_subclass_ = tool(tools.get(), "make_subclass");
  protect_data_ = tool(tools.get(), "protect_data");
  fake_type_ = tool(tools.get(), "fake_type");
  meta_ = tool(tools.get(), "meta");
  no_data_ = Ref::steal(PyLong_FromLong(0));
  dtype_device_ = Ref::steal(Py_BuildValue("(ss)", "dtype", "device"));
  backend_ = Ref::steal(Py_BuildValue("(ss)", "dispatch_device", "device_for_backend_keys"));
}

Ref Values::make(const ValueSpec& spec, PyObject* storages) {
  if (spec.kind == ValueSpec::Kind::kConstant) return Ref::borrow(spec.constant.get());
  if (spec.kind == ValueSpec::Kind::kTensor) return tensor(spec, storages);
  const auto count = static_cast<Py_ssize_t>(spec.parts.size());
  Ref list = Ref::steal(PyList_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyList_SET_ITEM(list.get(), i, make(spec.parts[static_cast<size_t>(i)], storages).release());
  }
  return spec.kind == ValueSpec::Kind::kList ? std::move(list)
                                             : Ref::steal(PyList_AsTuple(list.get()));
}

// As FakeTensor's constructor makes it, with attributes that all tensors of a device share.
Ref Values::tensor(const ValueSpec& spec, PyObject* storages) {
  const Ref real = real_tensor(spec, PyList_GetItem(storages, spec.storage));
  PyObject* parts[] = {fake_type_.get(), real.get(), Py_False, Py_True, spec.device.get()};
  Ref fake = Ref::steal(PyObject_Vectorcall(make_subclass_.get(), parts, 3, backend_.get()));
  Ref::steal(PyObject_CallOneArg(protect_data_.get(), fake.get()));
  const Ref attributes = Ref::steal(PyDict_Copy(attributes_on(spec.device.get())));
  check(set_instance_dict(fake.get(), attributes.get()));
  return fake;
}

Ref Values::real_tensor(const ValueSpec& spec, PyObject* storage) {
  check(storage);
  Ref made = get_attr(storage, made_.get());
  if (spec.pattern.get() != Py_None) return symbolic_tensor(spec, storage, std::move(made));
  if (made.get() == Py_None && spec.is_whole) {
    PyObject* sizes[] = {spec.shape.get(), spec.strides.get(), spec.dtype.get(), meta_.get()};
    Ref real = Ref::steal(PyObject_Vectorcall(empty_strided_.get(), sizes, 2, dtype_device_.get()));
    made = Ref::steal(PyObject_CallMethodNoArgs(real.get(), untyped_storage_.get()));
    check(PyObject_SetAttr(storage, made_.get(), made.get()));
    return real;
  }
  if (made.get() == Py_None) made = storage_of(storage);
  PyObject* none[] = {no_data_.get(), spec.dtype.get(), meta_.get()};
  Ref real = Ref::steal(PyObject_Vectorcall(empty_.get(), none, 1, dtype_device_.get()));
  PyObject* place[] = {real.get(), made.get(), spec.offset.get(), spec.shape.get(),
                       spec.strides.get()};
  Ref::steal(PyObject_VectorcallMethod(set_.get(), place, 5, nullptr));
  return real;
}

Ref Values::symbolic_tensor(const ValueSpec& spec, PyObject* storage, Ref made) {
  const bool is_new = made.get() == Py_None && spec.is_whole;
  if (made.get() == Py_None && !is_new) made = storage_of(storage);
  PyObject* parts[] = {spec.pattern.get(), made.get()};
  Ref real = Ref::steal(PyObject_Vectorcall(like_pattern_.get(), parts, 2, nullptr));
  if (is_new) {
    made = Ref::steal(PyObject_CallMethodNoArgs(real.get(), untyped_storage_.get()));
    check(PyObject_SetAttr(storage, made_.get(), made.get()));
  }
  return real;
}

Ref Values::storage_of(PyObject* storage) {
  PyObject* asked[] = {helper_, storage};
  return Ref::steal(PyObject_VectorcallMethod(storage_.get(), asked, 2, nullptr));
}

PyObject* Values::attributes_on(PyObject* device) {
  for (const auto& [known, attributes] : of_devices_) {
    if (known.get() == device || PyObject_RichCompareBool(known.get(), device, Py_EQ) == 1) {
      return attributes.get();
    }
  }
  PyObject* asked[] = {helper_, device};
  of_devices_.emplace_back(Ref::borrow(device), Ref::steal(PyObject_VectorcallMethod(
                                                    attributes_.get(), asked, 2, nullptr)));
  return of_devices_.back().second.get();
}

}  // namespace fxpress::decompose
