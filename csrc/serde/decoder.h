// Decodes a program: from a document of the schema straight to torch's graphs.
#pragma once

#include <string_view>

#include "py/object.h"
#include "serde/decode_argument.h"
#include "serde/decode_graph.h"
#include "serde/decode_node.h"
#include "serde/decode_node_metadata.h"
#include "serde/decode_results.h"
#include "serde/decode_signature.h"
#include "serde/decode_values.h"
#include "serde/decoding.h"
#include "serde/gate.h"
#include "serde/open_graphs.h"

namespace fxpress::serde {

// One file, or parts of one that come in documents of their own. It puts the decoders together,
// each of which reads one kind of thing.
class Decoder {
 public:
  explicit Decoder(const DecodeContext& context);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  void set_constants(PyObject* constants) { file_.context.constants = constants; }

  // Sets the document that the decoder reads from here on, after it has passed the gate. Documents
  // must outlive the decoder.
  void read(Document& document) {
    pass_gate(document);
    file_.document = &document;
  }

  // The program's parts: (graph module, signature, calls, whether the graph holds objects that
  // have no source text).
  Ref program();
  // Reads a document of another kind as Python's objects. `extra`: what it belongs to; see
  // decoder.cpp.
  Ref part(std::string_view kind, PyObject* extra);

  // Numbers and tensors are made anew from here on: ranges or the mode have changed.
  void forget_values() { values_.forget(); }

  OpenGraphs& graphs() { return graphs_; }
  const OpenGraphs& graphs() const { return graphs_; }
  // The value of a name in an open graph.
  Ref value(uint64_t scope, std::string_view name);
  void name_node(PyObject* node, std::string_view name) { results_.name_node(node, name); }

  PyObject* signature() const { return file_.signature.get(); }
  void set_signature(Ref signature) { file_.signature = std::move(signature); }

 private:
  void check_root(Type type) const;
  Ref add_part(std::string_view kind, const Value& value, PyObject* extra);

  Decoding file_;
  OpenGraphs graphs_;
  ValueDecoder values_;
  NodeMetadataDecoder metadata_;
  ArgumentDecoder arguments_;
  ResultDecoder results_;
  NodeDecoder nodes_;
  GraphDecoder graph_;
  SignatureDecoder signatures_;
};

}  // namespace fxpress::serde
