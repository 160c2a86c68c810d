#include "fx/symbols.h"

#include "core/check.h"

namespace fxpress::fx {

Symbols symbols;
Names names;
PyObject* no_args = nullptr;
PyObject* no_kwargs = nullptr;

void initialize_symbols(PyObject* objects, PyObject* attribute_names) {
#define FXPRESS_SYMBOL(name) fill_slot(symbols.name, objects, #name);
#include "fx/symbols.def"
#undef FXPRESS_SYMBOL
#define FXPRESS_NAME(name)                       \
  fill_slot(names.name, attribute_names, #name); \
  PyUnicode_InternInPlace(&names.name);
#include "fx/attribute_names.def"
#undef FXPRESS_NAME
  PyObject* const fields[] = {
      symbols.node_args,      symbols.node_input_nodes, symbols.node_kwargs, symbols.node_meta,
      symbols.node_name,      symbols.node_next,        symbols.node_op,     symbols.node_target,
      symbols.node_type_expr, symbols.node_users,
  };
  for (PyObject* field : fields) object_offset(field, "torch.fx.Node");  // see field_of()
  Py_XSETREF(no_args, check(PyTuple_New(0)));
  Py_XSETREF(no_kwargs, check(PyObject_CallNoArgs(symbols.immutable_dict_type)));
}

core::Op parse_op(PyObject* op) {
  using core::Op;
  // Ops are interned strings in practice; comparing by identity first costs nothing.
  struct Entry {
    PyObject* name;  // borrowed from the symbol table
    Op op;
  };
  const Entry entries[] = {
      {symbols.call_function, Op::kCallFunction}, {symbols.placeholder, Op::kPlaceholder},
      {symbols.get_attr, Op::kGetAttr},           {symbols.call_module, Op::kCallModule},
      {symbols.call_method, Op::kCallMethod},     {symbols.output, Op::kOutput},
  };
  for (const Entry& entry : entries) {
    if (entry.name == op) return entry.op;
  }
  for (const Entry& entry : entries) {
    const int equal = PyObject_RichCompareBool(entry.name, op, Py_EQ);
    check(equal);
    if (equal == 1) return entry.op;
  }
  raise(PyExc_NotImplementedError, "node with unknown op %R", op);
}

PyObject* op_name(core::Op op) {
  switch (op) {
    case core::Op::kPlaceholder:
      return symbols.placeholder;
    case core::Op::kGetAttr:
      return symbols.get_attr;
    case core::Op::kCallFunction:
      return symbols.call_function;
    case core::Op::kCallMethod:
      return symbols.call_method;
    case core::Op::kCallModule:
      return symbols.call_module;
    case core::Op::kOutput:
      return symbols.output;
  }
  FXPRESS_CHECK(false, "unknown op");
}

}  // namespace fxpress::fx
