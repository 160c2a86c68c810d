// The encoders of one call. They refer to one another (a graph has arguments, an argument may be a
// graph), so one object owns them all.
#pragma once

#include "serde/encode_argument.h"
#include "serde/encode_graph.h"
#include "serde/encode_list.h"
#include "serde/encode_node.h"
#include "serde/encode_node_metadata.h"
#include "serde/encode_signature.h"
#include "serde/encode_values.h"
#include "serde/encoding.h"

namespace fxpress::serde {

struct Encoders {
  Encoders(const Schema& schema, EventSink& sink, const EncodeContext& context)
      : to{SchemaWriter(schema, sink), context},
        values(to),
        metadata(to),
        lists(to),
        arguments(to, values, lists, graphs),
        nodes(to, arguments, metadata),
        graphs(to, arguments, nodes, values),
        signatures(to, arguments, values) {}
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  Encoding to;                   // all of them write to it
  ValueEncoder values;           // writes what tables say of values
  NodeMetadataEncoder metadata;  // writes where nodes come from
  ListEncoder lists;             // writes lists among the arguments
  ArgumentEncoder arguments;     // writes what nodes, graphs and signatures refer to
  NodeEncoder nodes;             // writes calls
  GraphEncoder graphs;           // writes the program's graph, and those that are arguments
  SignatureEncoder signatures;   // writes signatures and the module call graph
};

}  // namespace fxpress::serde
