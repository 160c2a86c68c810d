// Reads a template, the nodes that a decomposed call adds to a graph, into arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "core/flat_map.h"
#include "fx/names.h"
#include "py/object.h"

namespace fxpress::decompose {

// How an instantiated node gets an item of its meta.
enum class MetaKind : uint8_t {
  kCopied,         // a shallow copy of the call node's item
  kLiteral,        // the recorded value
  kCopiedLiteral,  // a shallow copy of the recorded value
  kStack,          // the call node's stack trace, not copied
  kSource,         // a list with the provenance record of the call node
  kValue,          // the node's value, created for it
  kSequence,       // torch's current sequence number
  kCounted,        // the name of the last function called, and the count of its calls
};

struct MetaItem {
  Ref key;
  MetaKind kind;
  Ref value;  // see MetaKind
};

enum class ValueType : uint8_t { kConstant, kTensor, kList, kTuple };

// A node's value: a tensor, a list or tuple of values, or a constant.
struct ValueSpec {
  ValueType type = ValueType::kConstant;
  Ref constant;                               // the value of kConstant
  Ref shape, strides, dtype, device, offset;  // metadata of kTensor
  Py_ssize_t storage = 0;                     // index of its storage in the instance's storages
  bool is_whole = false;                      // whether a new tensor of `shape` fills the storage
  Ref pattern;                   // a tensor with the same sizes if they are symbolic, else None
  std::vector<ValueSpec> parts;  // of a list or tuple
};

struct RecipeNode {
  Ref target;
  Ref original;               // the node of the recorded trace, for its arguments
  core::StringId candidate;   // from which the name of the node is derived
  bool is_impure;             // whether the node stays without users
  std::vector<int32_t> uses;  // the values it uses: -1, -2… inputs, 0, 1… nodes
  std::vector<MetaItem> meta;
  ValueSpec value;
  int32_t number;  // number of the expression it computes; kNoNumber: it computes none
  bool is_needed;  // whether it stands for a number that another node computes
  int32_t parts;   // how many nodes before it compute the number if it is not known
  int32_t read;    // the value from which the trace read the number; kNothing: none
};

inline constexpr int32_t kNoNumber = -1;
inline constexpr int32_t kNothing = INT32_MAX;

// A `fxpress._graphs.decompose.template.Template`, read by the names of its fields.
class Recipe {
 public:
  Recipe(PyObject* source, fx::NameWriter& names);

  const std::vector<RecipeNode>& nodes() const { return nodes_; }
  // Returns the number of the value of a node of the recorded trace.
  int32_t number_of(PyObject* original) const;
  bool counts() const { return counts_; }

 private:
  std::vector<RecipeNode> nodes_;
  core::FlatMap numbers_;  // address of a recorded node -> index in values_
  std::vector<int32_t> values_;
  bool counts_ = false;  // whether a node has an item of kCounted
};

}  // namespace fxpress::decompose
