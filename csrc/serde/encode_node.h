// Nodes that call something.
#pragma once

#include <string_view>

#include "py/object.h"
#include "serde/encode_argument.h"
#include "serde/encode_node_metadata.h"
#include "serde/encoding.h"

namespace fxpress::serde {

class NodeEncoder {
 public:
  NodeEncoder(Encoding& to, ArgumentEncoder& arguments, NodeMetadataEncoder& metadata)
      : out_(to.out),
        sink_(to.out.sink()),
        names_(to.names),
        with_metadata_(to.context.metadata),
        arguments_(arguments),
        metadata_(metadata) {}

  // A node of the graph at work.
  void node(const NodeEntry& entry);
  // The list of its outputs.
  void outputs(const NodeEntry& entry);
  // The list of the arguments of a call. args: tuple; kwargs: dict.
  void inputs(const Operator& function, bool symbolic, PyObject* args, PyObject* kwargs);

 private:
  void inputs_of(const NodeEntry& entry);
  void special_inputs(PyObject* node);
  void symbolic_inputs(const Operator& function, PyObject* args, PyObject* kwargs);
  void schema_inputs(const Operator& function, PyObject* args, PyObject* kwargs);
  void other_inputs(PyObject* args, PyObject* kwargs);
  void named_argument(std::string_view name, PyObject* value, int64_t kind, PyObject* type);

  SchemaWriter& out_;
  EventSink& sink_;
  NodeNames& names_;
  const bool with_metadata_;  // see EncodeContext
  ArgumentEncoder& arguments_;
  NodeMetadataEncoder& metadata_;
};

}  // namespace fxpress::serde
