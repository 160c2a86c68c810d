// Reads a template into arrays. A template is the list of nodes that replaces a decomposed call.
#pragma once

#include <cstdint>
#include <vector>

#include "core/flat_map.h"
#include "fx/names.h"
#include "py/object.h"

namespace fxpress::decompose {

// How a new node gets an item of its meta. "The call" is the old node that the template replaces.
enum class MetaKind : uint8_t {
  kCopied,         // a shallow copy of the item in the call's meta
  kLiteral,        // MetaItem::value
  kCopiedLiteral,  // a shallow copy of MetaItem::value
  kStack,          // the call's stack trace, not copied
  kSource,         // a list with the provenance record of the call
  kValue,          // the node's value, created from RecipeNode::value
  kSequence,       // torch's current sequence number
  kCounted,        // `torch_fn`: the last called torch function, and how often it was called
};

struct MetaItem {
  Ref key;
  MetaKind kind;
  Ref value;  // the recorded value of a literal, the function of kCounted
};

enum class ValueType : uint8_t { kConstant, kTensor, kList, kTuple };

// A node's value: a tensor, a list or tuple of values, or a constant.
struct ValueSpec {
  ValueType type = ValueType::kConstant;
  Ref constant;                               // the value of kConstant
  Ref shape, strides, dtype, device, offset;  // metadata of kTensor
  Py_ssize_t storage = 0;                     // index of the tensor's storage in Instance::storages
  bool is_whole = false;  // whether empty_strided() of these sizes would create the same storage
  Ref pattern;            // a tensor with these sizes if they are symbolic, else None
  std::vector<ValueSpec> parts;  // items of kList or kTuple
};

struct RecipeNode {
  Ref target;
  Ref original;               // the node of the recorded trace, which has the arguments
  core::StringId candidate;   // the proposed name
  bool is_impure;             // whether the node is kept if it has no users
  std::vector<int32_t> uses;  // values that the node uses: -1, -2... inputs, 0, 1... nodes
  std::vector<MetaItem> meta;
  ValueSpec value;
  int32_t number;  // number of the expression that the node computes; kNoNumber: none
  bool is_needed;  // whether another node of the program computes this expression
  int32_t parts;   // how many nodes just before this one compute it, if no earlier node does
  int32_t read;    // if the node reads a tensor's size: the tensor, as in `uses`; else kNothing
};

inline constexpr int32_t kNoNumber = -1;
inline constexpr int32_t kNothing = INT32_MAX;

// The fields of a Python `fxpress._graphs.decompose.template.Template`.
class Recipe {
 public:
  Recipe(PyObject* source, fx::NameWriter& names);

  const std::vector<RecipeNode>& nodes() const { return nodes_; }
  // Returns the number, as in RecipeNode::uses, of a node of the recorded trace.
  int32_t number_of(PyObject* original) const;
  bool counts() const { return counts_; }

 private:
  std::vector<RecipeNode> nodes_;
  core::FlatMap numbers_;  // address of a recorded node -> index in values_
  std::vector<int32_t> values_;
  bool counts_ = false;  // whether a node has a MetaItem of type kCounted
};

}  // namespace fxpress::decompose
