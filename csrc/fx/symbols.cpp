#include "fx/symbols.h"

#include <algorithm>
#include <array>

#include "py/calls.h"

namespace fxpress::fx {

Symbols symbols;
Names names;
PyObject* no_args = nullptr;
PyObject* no_kwargs = nullptr;

namespace {

struct Tables {
  size_t size;  // sizeof(Tables); differs if the modules were built from different sources
  Symbols symbols;
  Names names;
  PyObject* no_args;
  PyObject* no_kwargs;
};

constexpr const char* kTablesCapsule = "fxpress.tables";

Tables shared_tables;  // borrows from `symbols` and `names`; used by the capsule

// Raises TypeError unless `descriptor` describes a field of torch.fx.Node of type bool or object.
void expect_field(PyObject* descriptor, bool is_bool) {
  if (Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) {
    const int type = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member->type;
    if (is_bool ? type == T_BOOL : type == T_OBJECT || type == T_OBJECT_EX) return;
  }
  raise(PyExc_TypeError,
        "torch.fx.Node: expected a member descriptor for a field of type %s, found %R",
        is_bool ? "bool" : "object", descriptor);
}

// Returns the names of ops, in the order of core::Op; borrowed.
std::array<PyObject*, 6> op_names() {
  return {symbols.placeholder, symbols.get_attr,    symbols.call_function,
          symbols.call_method, symbols.call_module, symbols.output};
}

}  // namespace

void initialize_symbols(PyObject* objects) {
#define FXPRESS_SYMBOL(name) fill_slot(symbols.name, objects, #name);
#include "fx/symbols.def"
#undef FXPRESS_SYMBOL
#define FXPRESS_NAME_AS(name, text) Py_XSETREF(names.name, check(PyUnicode_InternFromString(text)));
#define FXPRESS_NAME(name) FXPRESS_NAME_AS(name, #name)
#include "fx/attribute_names.def"
#undef FXPRESS_NAME
#undef FXPRESS_NAME_AS
  PyObject* const fields[] = {
      symbols.node_args,      symbols.node_input_nodes, symbols.node_kwargs, symbols.node_meta,
      symbols.node_name,      symbols.node_next,        symbols.node_op,     symbols.node_target,
      symbols.node_type_expr, symbols.node_users,
  };
  for (PyObject* field : fields) expect_field(field, false);  // field_of() requires this
  expect_field(symbols.node_erased, true);
  Py_XSETREF(no_args, check(PyTuple_New(0)));
  Py_XSETREF(no_kwargs, call(symbols.immutable_dict_type).release());
}

Ref make_tables_capsule() {
  shared_tables = {sizeof(Tables), symbols, names, no_args, no_kwargs};
  return Ref::steal(PyCapsule_New(&shared_tables, kTablesCapsule, nullptr));
}

void adopt_tables(PyObject* capsule) {
  const auto* tables = static_cast<const Tables*>(PyCapsule_GetPointer(capsule, kTablesCapsule));
  if (tables == nullptr) throw_python_error();
  if (tables->size != sizeof(Tables)) {
    raise(PyExc_RuntimeError,
          "the extension modules of fxpress were built from different sources: reinstall fxpress");
  }
  symbols = tables->symbols;
  names = tables->names;
  no_args = tables->no_args;
  no_kwargs = tables->no_kwargs;
}

core::Op parse_op(PyObject* op) {
  const auto known = op_names();
  // Ops are nearly always interned strings, so identity is compared first.
  auto found = std::ranges::find(known, op);
  if (found == known.end()) {
    found = std::ranges::find_if(known, [&](PyObject* name) { return is_equal(name, op); });
  }
  if (found == known.end()) raise(PyExc_NotImplementedError, "node with unknown op %R", op);
  return static_cast<core::Op>(found - known.begin());
}

PyObject* op_name(core::Op op) {
  return op_names()[static_cast<size_t>(op)];
}

}  // namespace fxpress::fx
