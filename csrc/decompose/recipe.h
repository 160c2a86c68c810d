// A template, read into arrays: what one call adds to a graph.
#pragma once

#include <cstdint>
#include <vector>

#include "core/flat_map.h"
#include "fx/names.h"
#include "py/object.h"

namespace fxpress::decompose {

// How a node that is stamped gets an item of its meta.
enum class MetaKind : uint8_t {
  kCopied,         // a shallow copy of the called node's item
  kLiteral,        // the recorded value
  kCopiedLiteral,  // a shallow copy of the recorded value
  kStack,          // the called node's stack trace, itself
  kSource,         // a list with the record of the called node
  kValue,          // the node's value, made for it
  kSequence,       // the number that torch gives nodes now
  kCounted,        // the last function called, with its count
};

struct MetaItem {
  Ref key;
  MetaKind kind;
  Ref value;  // what `kind` needs
};

enum class ValueType : uint8_t { kConstant, kTensor, kList, kTuple };

// A node's value: a tensor, a list or tuple of values, or a constant.
struct ValueSpec {
  ValueType type = ValueType::kConstant;
  Ref constant;                               // of kConstant
  Ref shape, strides, dtype, device, offset;  // of kTensor
  Py_ssize_t storage = 0;                     // its place among the stamp's storages
  bool is_whole = false;                      // a new tensor of these sizes has such a storage
  Ref pattern;                                // a tensor of these sizes, if they are symbolic
  std::vector<ValueSpec> parts;               // of a list or tuple
};

struct RecipeNode {
  Ref target;
  Ref original;               // the node of the recorded trace, for its arguments
  core::StringId candidate;   // what its name is made from
  bool is_impure;             // whether it stays though nobody uses it
  std::vector<int32_t> uses;  // values: -1, -2… inputs, 0, 1… nodes
  std::vector<MetaItem> meta;
  ValueSpec value;
  int32_t number;  // the expression of a number; kNoNumber: the node is no number
  bool is_needed;  // whether it stands for a number that another node computes
  int32_t parts;   // how many nodes before it compute the number unless one did so before
  int32_t read;    // the value that the trace read such a number from; kNothing: none
};

inline constexpr int32_t kNoNumber = -1;
inline constexpr int32_t kNothing = INT32_MAX;

// Reads a `fxpress._graphs.decompose.template.Template`, by the names of its fields.
class Recipe {
 public:
  Recipe(PyObject* source, fx::NameWriter& names);

  const std::vector<RecipeNode>& nodes() const { return nodes_; }
  // The value that a node of the recorded trace stands for.
  int32_t number_of(PyObject* original) const;
  bool counts() const { return counts_; }

 private:
  std::vector<RecipeNode> nodes_;
  core::FlatMap numbers_;  // address of a recorded node -> its place in values_
  std::vector<int32_t> values_;
  bool counts_ = false;  // whether a node tells how often a function was called
};

}  // namespace fxpress::decompose
