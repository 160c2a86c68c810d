// Assigns the values of a program's state to names, and decides which values are copied.
#pragma once

#include <vector>

#include "core/string_pool.h"
#include "py/object.h"

namespace fxpress::unflatten {

// A value's role in its module. A transient buffer has persistent=False.
enum class StateRole : uint8_t { kParameter, kBuffer, kTransientBuffer, kConstant };

// A name of the program's state, and its value.
struct NamedState {
  core::StringId name;  // dotted, from the root
  StateRole role;
  PyObject* value;  // borrowed
};

// A program's state dict and constants. Values of one group are the same object, or tensors with
// the same storage and view. Groups are numbered from 0 over state dict and constants together.
struct HeldState {
  PyObject* names;               // list of str: names in the state dict, then in the constants
  PyObject* values;              // list: the values of `names`
  size_t constants_begin;        // position of the first constant
  std::vector<uint32_t> groups;  // by position in `names`: group of the value
  PyObject* specs;               // the input specs of the signature
  PyObject* check_constant;      // (name, value) -> None: raises for values that graphs cannot hold
  bool copies_unused;            // whether to copy values that share nothing with an input
};

// Assigns values to names in torch's order. The values of a group have one copy, or two copies if
// the group is used both as a parameter and in another role.
class ProgramState {
 public:
  // Raises KeyError if a spec refers to state that the program does not have. Raises AssertionError
  // for specs and constants that torch.export never writes.
  explicit ProgramState(const HeldState& held);

  // The values to copy, and which of the copies are parameters.
  const std::vector<PyObject*>& wanted() const { return wanted_; }
  const std::vector<uint8_t>& are_parameters() const { return are_parameters_; }

  // Sets the copies, in the order of `wanted`.
  void fill(PyObject* copies);

  const core::StringPool& strings() const { return strings_; }
  std::vector<NamedState> assigned() const;

  // The placeholders that pass state, each with its group (see names_of).
  const std::vector<std::pair<core::StringId, uint32_t>>& placeholders() const {
    return placeholders_;
  }
  const std::vector<core::StringId>& names_of(uint32_t group) const { return group_names_[group]; }

 private:
  // The state that an input of the graph passes.
  struct Input {
    StateRole role;
    core::StringId name;
    core::StringId placeholder;
  };
  struct AssignedState {
    core::StringId name;
    StateRole role;
    bool is_copy;
    uint32_t index;  // index in copies_ if it is a copy, else in values_
  };

  void read_specs(PyObject* specs);
  void read_spec(PyObject* spec);
  void plan(const HeldState& held);
  void plan_targets(const HeldState& held);
  uint32_t find(const std::vector<uint32_t>& table, core::StringId name, const char* what) const;
  void copy(core::StringId name, StateRole role, uint32_t value, uint32_t group);

  Ref values_;                               // HeldState::values
  Ref copies_;                               // list passed to `fill`
  core::StringPool strings_;                 // names of state and of placeholders
  std::vector<core::StringId> value_names_;  // by value: its name in HeldState::names
  std::vector<uint32_t> in_state_dict_;      // name -> value in the state dict, or kNone
  std::vector<uint32_t> in_constants_;       // name -> value in the constants, or kNone
  std::vector<Input> inputs_;                // inputs that pass state
  std::vector<AssignedState> entries_;       // assigned values, in order
  std::vector<uint8_t> is_assigned_;         // by name: whether it has a value
  std::vector<uint32_t> copy_of_[2];         // [is parameter][group]: index of the copy, or kNone
  std::vector<PyObject*> wanted_;            // borrowed from values_
  std::vector<uint8_t> are_parameters_;      // by copy: whether it is a parameter
  std::vector<std::pair<core::StringId, uint32_t>> placeholders_;
  std::vector<std::vector<core::StringId>> group_names_;  // by group: names, if an input passes it
};

}  // namespace fxpress::unflatten
