// The encoders of one call, put together.
#pragma once

#include "serde/encode_argument.h"
#include "serde/encode_graph.h"
#include "serde/encode_node.h"
#include "serde/encode_node_metadata.h"
#include "serde/encode_signature.h"
#include "serde/encode_values.h"
#include "serde/encoding.h"

namespace fxpress::fx::serde {

struct Encoders {
  Encoders(const Schema& schema, EventSink& sink, const EncodeContext& context)
      : to{SchemaWriter(schema, sink), context},
        values(to),
        metadata(to),
        arguments(to, values, graphs),
        nodes(to, arguments, metadata),
        graphs(to, arguments, nodes, values),
        signatures(to, arguments, values) {}
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  Encoding to;                   // what they share
  ValueEncoder values;           // tensors and numbers of the tables
  NodeMetadataEncoder metadata;  // where nodes come from
  ArgumentEncoder arguments;     // of nodes, graphs and signatures
  NodeEncoder nodes;             // that call something
  GraphEncoder graphs;           // also those that are arguments
  SignatureEncoder signatures;   // and calls of modules
};

}  // namespace fxpress::fx::serde
