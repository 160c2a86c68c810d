#include "fx/fakes.h"

#include "core/tensor_access.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

namespace {

// Returns the function in the capsule fake_like of the extension module _aten; null if _aten is not
// available.
core::FakeLike find_fake_like() {
  static core::FakeLike found = nullptr;
  if (found != nullptr) return found;
  const Ref capsule = call(symbols.fake_like);
  if (capsule.get() == Py_None) return nullptr;
  void* const pointer = PyCapsule_GetPointer(capsule.get(), core::kFakeLikeCapsule);
  if (pointer == nullptr) throw_python_error();
  found = reinterpret_cast<core::FakeLike>(pointer);
  return found;
}

}  // namespace

FakeMaker::FakeMaker(PyObject* device, Ref attributes)
    : device_(Ref::borrow(device)),
      attributes_(std::move(attributes)),
      protects_(is_true(call(symbols.protects_data, attributes_).get())) {}

Ref FakeMaker::make(PyObject* real, bool requires_grad) const {
  PyObject* parts[] = {symbols.fake_tensor_type, real, requires_grad ? Py_True : Py_False, Py_True,
                       device_.get()};
  Ref fake = Ref::steal(
      PyObject_Vectorcall(symbols.make_subclass, parts, 3, symbols.make_subclass_keywords));
  if (protects_) call(symbols.protect_data, fake);
  set_attributes(fake.get());
  return fake;
}

Ref FakeMaker::like(PyObject* fake, PyObject* storage) const {
  const core::FakeLike make_like = find_fake_like();
  if (make_like == nullptr) return {};
  Ref made = Ref::steal(static_cast<PyObject*>(make_like(fake, storage, protects_)));
  set_attributes(made.get());
  return made;
}

void FakeMaker::set_attributes(PyObject* fake) const {
  const Ref own = Ref::steal(PyDict_Copy(attributes_.get()));
  check(set_instance_dict(fake, own.get()));
}

}  // namespace fxpress::fx
