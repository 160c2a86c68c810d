#include "serde/symbols.h"

namespace fxpress::serde {

Symbols symbols;
Names names;
core::ReadTensorFacts read_tensor_facts = nullptr;

void initialize_symbols(PyObject* objects) {
#define FXPRESS_SYMBOL(name) fill_slot(symbols.name, objects, #name);
#include "serde/symbols.def"
#undef FXPRESS_SYMBOL
  if (symbols.tensor_facts != Py_None) {
    void* reader = PyCapsule_GetPointer(symbols.tensor_facts, core::kTensorFactsCapsule);
    if (reader == nullptr) throw_python_error();
    read_tensor_facts = reinterpret_cast<core::ReadTensorFacts>(reader);
  }
#define FXPRESS_NAME(name) Py_XSETREF(names.name, check(PyUnicode_InternFromString(#name)));
#define FXPRESS_NAME_AS(role, name) Py_XSETREF(names.role, check(PyUnicode_InternFromString(name)));
#include "serde/attribute_names.def"
#undef FXPRESS_NAME_AS
#undef FXPRESS_NAME
}

}  // namespace fxpress::serde
