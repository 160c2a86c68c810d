#include "serde/symbols.h"

#include "fx/symbols.h"
#include "py/calls.h"

namespace fxpress::serde {

Symbols symbols;
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
}

bool has_torch() {
  return symbols.serialize_error != nullptr;
}

PyObject* damage_error() {
  return has_torch() ? symbols.serialize_error : PyExc_ValueError;
}

namespace {

// Returns the row of kSpecs for a member of InputKind or OutputKind, or null. Compares by identity
// first, because hashing an enum member runs Python code.
PyObject* row_of(PyObject* kind) {
  for (const auto& [key, row] : DictRange(symbols.spec_kinds)) {
    if (key == kind) return row;
  }
  return dict_get(symbols.spec_kinds, kind);
}

}  // namespace

const SpecInfo& spec_info(PyObject* spec, schema::Type type) {
  if (PyObject* row = row_of(get_attr(spec, fx::names.kind).get())) {
    const SpecInfo& info = schema::kSpecs[to_long(row)];
    if (schema::Schema::owner(info.tag) == type) return info;
  }
  raise(PyExc_AssertionError, "Unknown argument kind: %R", spec);
}

PyObject* python_type(SpecArgument type) {
  switch (type) {
    case SpecArgument::kTensor:
      return symbols.tensor_argument_type;
    case SpecArgument::kToken:
      return symbols.token_argument_type;
    case SpecArgument::kObject:
      return symbols.custom_obj_argument_type;
    case SpecArgument::kLiteral:
      return symbols.constant_argument_type;
    default:
      return nullptr;
  }
}

}  // namespace fxpress::serde
