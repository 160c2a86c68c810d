#include "engine/symbols.h"

#include "py/members.h"

namespace fxpress::engine {

Symbols symbols;
Names names;
NodeLayout node_layout;

namespace {

constexpr const char* kNode = "torch.fx.Node";

}  // namespace

void initialize_symbols(PyObject* objects, PyObject* attribute_names) {
#define FXPRESS_SYMBOL(name) fill_slot(symbols.name, objects, #name);
#include "engine/symbols.def"
#undef FXPRESS_SYMBOL
#define FXPRESS_NAME(name)                       \
  fill_slot(names.name, attribute_names, #name); \
  PyUnicode_InternInPlace(&names.name);
#include "engine/names.def"
#undef FXPRESS_NAME
  node_layout.args = object_offset(symbols.node_args, kNode);
  node_layout.kwargs = object_offset(symbols.node_kwargs, kNode);
  node_layout.op = object_offset(symbols.node_op, kNode);
  node_layout.target = object_offset(symbols.node_target, kNode);
  node_layout.next = object_offset(symbols.node_next, kNode);
  node_layout.input_nodes = object_offset(symbols.node_input_nodes, kNode);
  node_layout.erased = bool_offset(symbols.node_erased, kNode);
}

}  // namespace fxpress::engine
