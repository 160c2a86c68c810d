#include "fx/fakes.h"

#include "core/fake_like.h"
#include "fx/symbols.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

namespace {

void give_attributes(PyObject* fake, PyObject* attributes) {
  const Ref own = Ref::steal(PyDict_Copy(attributes));
  check(set_instance_dict(fake, own.get()));
}

}  // namespace

Ref make_fake(PyObject* real, bool requires_grad, PyObject* device, PyObject* attributes) {
  PyObject* parts[] = {symbols.fake_tensor_type, real, requires_grad ? Py_True : Py_False, Py_True,
                       device};
  Ref fake = Ref::steal(
      PyObject_Vectorcall(symbols.make_subclass, parts, 3, symbols.make_subclass_keywords));
  PyObject* protected_as[] = {fake.get(), attributes};
  Ref::steal(PyObject_Vectorcall(symbols.protect_data, protected_as, 2, nullptr));
  give_attributes(fake.get(), attributes);
  return fake;
}

Ref fake_like(PyObject* fake, PyObject* storage, PyObject* attributes) {
  const Ref capsule = Ref::steal(PyObject_CallNoArgs(symbols.fake_like));
  if (capsule.get() == Py_None) return {};
  void* const make = PyCapsule_GetPointer(capsule.get(), core::kFakeLikeCapsule);
  if (make == nullptr) throw_python_error();
  Ref made =
      Ref::steal(static_cast<PyObject*>(reinterpret_cast<core::FakeLike>(make)(fake, storage)));
  give_attributes(made.get(), attributes);
  return made;
}

}  // namespace fxpress::fx
