// Arguments of nodes, graphs and signatures as Python's values.
#pragma once

#include <string_view>
#include <vector>

#include "py/object.h"
#include "serde/decode_values.h"
#include "serde/decoding.h"
#include "serde/open_graphs.h"

namespace fxpress::serde {

class GraphDecoder;

// The nodes that arguments mention; all borrowed.
struct Mentions {
  std::vector<PyObject*> nodes;   // in the order in which they are mentioned
  std::vector<PyObject*> graphs;  // those of them that stand for a graph
};

class ArgumentDecoder {
 public:
  // graphs_within: writes the graphs that are arguments.
  ArgumentDecoder(Decoding& file, OpenGraphs& graphs, ValueDecoder& values,
                  GraphDecoder& graphs_within)
      : file_(file), graphs_(graphs), values_(values), graphs_within_(graphs_within) {}

  Ref argument(const Value& value);
  // An object that is an input of the graph, or one that the file has beside it.
  Ref object(const Value& value);

  // The nodes that arguments read since the last clear_mentions() mention.
  Mentions& mentions() { return mentions_; }
  void clear_mentions();

  // Whether an argument was an object that the file has beside the graph: it has no source text.
  bool has_objects() const { return has_objects_; }

  // A graph may be an argument while this object lives. Elsewhere no graph is open that the
  // argument could belong to.
  class GraphsAllowed {
   public:
    explicit GraphsAllowed(ArgumentDecoder& arguments) : arguments_(arguments) {
      arguments_.graphs_allowed_ = true;
    }
    ~GraphsAllowed() { arguments_.graphs_allowed_ = false; }
    GraphsAllowed(const GraphsAllowed&) = delete;
    GraphsAllowed& operator=(const GraphsAllowed&) = delete;

   private:
    ArgumentDecoder& arguments_;
  };

 private:
  Ref node_reference(std::string_view name);
  Ref choice(const Value& value);
  template <class Item>
  std::vector<Ref> items(const Value& list, Item&& item);
  template <class Item>
  Ref list(const Value& list, Item&& item);
  Ref tensor_list(const Value& list);
  Ref plain_list(const Value& list);
  Ref complex_number(const Value& value) const;
  Ref dict(const Value& map);
  Ref graph(const Value& value);

  Decoding& file_;
  OpenGraphs& graphs_;
  ValueDecoder& values_;
  GraphDecoder& graphs_within_;
  Mentions mentions_;            // see mentions()
  bool has_objects_ = false;     // see has_objects()
  bool graphs_allowed_ = false;  // see GraphsAllowed
};

}  // namespace fxpress::serde
