#include "unflatten/state.h"

#include "fx/symbols.h"
#include "py/calls.h"

namespace fxpress::unflatten {

using core::StringId;

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Returns table[name]. Adds entries with the value `missing` as needed.
template <class T>
T& entry(std::vector<T>& table, StringId name, T missing) {
  if (table.size() <= name.value()) table.resize(name.value() + 1, missing);
  return table[name.value()];
}

bool holds(const std::vector<uint8_t>& table, StringId name) {
  return name.value() < table.size() && table[name.value()] != 0;
}

}  // namespace

ProgramState::ProgramState(const HeldState& held) : values_(Ref::borrow(held.values)) {
  const auto count = static_cast<size_t>(PyList_GET_SIZE(held.values));
  for (size_t i = 0; i < count; ++i) {
    PyObject* name = PyList_GET_ITEM(held.names, static_cast<Py_ssize_t>(i));
    value_names_.push_back(strings_.intern(utf8(name)));
    auto& table = i < held.constants_begin ? in_state_dict_ : in_constants_;
    entry(table, value_names_.back(), kNone) = static_cast<uint32_t>(i);
  }
  read_specs(held.specs);
  plan(held);
  plan_targets(held);
}

void ProgramState::read_specs(PyObject* specs) {
  const Ref list = Ref::steal(PySequence_Fast(specs, "expected a sequence as input_specs"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    read_spec(PySequence_Fast_GET_ITEM(list.get(), i));
  }
}

void ProgramState::read_spec(PyObject* spec) {
  const Ref kind = get_attr(spec, fx::names.kind);
  StateRole role = StateRole::kConstant;
  if (kind.get() == fx::symbols.input_is_parameter) {
    role = StateRole::kParameter;
  } else if (kind.get() == fx::symbols.input_is_buffer) {
    role = is_true(get_attr(spec, fx::names.persistent).get()) ? StateRole::kBuffer
                                                               : StateRole::kTransientBuffer;
  } else if (kind.get() != fx::symbols.input_is_constant &&
             kind.get() != fx::symbols.input_is_object) {
    return;
  }
  const Ref argument = get_attr(spec, fx::names.arg);
  const Ref placeholder = find_attr(argument.get(), fx::names.name);
  if (!placeholder || !PyUnicode_Check(placeholder.get())) {
    raise(PyExc_AssertionError, "expected s.arg to have 'name' attribute for kind %S, got %R",
          kind.get(), reinterpret_cast<PyObject*>(Py_TYPE(argument.get())));
  }
  const Ref target = get_attr(spec, fx::names.target);
  if (!PyUnicode_Check(target.get())) {
    raise(PyExc_AssertionError, "expected s.target to be str for kind %S, got %R", kind.get(),
          reinterpret_cast<PyObject*>(Py_TYPE(target.get())));
  }
  inputs_.push_back(
      {role, strings_.intern(utf8(target.get())), strings_.intern(utf8(placeholder.get()))});
}

uint32_t ProgramState::find(const std::vector<uint32_t>& table, StringId name,
                            const char* what) const {
  if (name.value() < table.size() && table[name.value()] != kNone) return table[name.value()];
  raise(PyExc_KeyError,
        "the signature of the program names the %s %R, which its state does not have", what,
        new_string(strings_.text(name)).get());
}

void ProgramState::copy(StringId name, StateRole role, uint32_t value, uint32_t group) {
  const bool is_parameter = role == StateRole::kParameter;
  uint32_t& known = copy_of_[is_parameter ? 1 : 0][group];
  if (known == kNone) {
    known = static_cast<uint32_t>(wanted_.size());
    wanted_.push_back(PyList_GET_ITEM(values_.get(), static_cast<Py_ssize_t>(value)));
    are_parameters_.push_back(is_parameter ? 1 : 0);
  }
  entries_.push_back({name, role, true, known});
  if (role != StateRole::kConstant) entry<uint8_t>(is_assigned_, name, 0) = 1;
}

// Also assigns parameters and buffers that the graph does not use. Copies them only if they are
// second names of tensors that the graph uses, or if HeldState::copies_unused is set.
void ProgramState::plan(const HeldState& held) {
  for (auto& table : copy_of_) table.assign(held.groups.size(), kNone);
  std::vector<uint8_t> is_used[2];  // by group: whether it is used as a buffer [0] or parameter [1]
  for (auto& table : is_used) table.assign(held.groups.size(), 0);
  for (const Input& input : inputs_) {
    if (input.role != StateRole::kParameter) continue;
    const uint32_t value = find(in_state_dict_, input.name, "parameter");
    is_used[1][held.groups[value]] = 1;
    copy(input.name, input.role, value, held.groups[value]);
  }
  for (const Input& input : inputs_) {
    if (input.role != StateRole::kBuffer && input.role != StateRole::kTransientBuffer) continue;
    const bool is_kept = input.role == StateRole::kBuffer;
    const uint32_t value = find(is_kept ? in_state_dict_ : in_constants_, input.name, "buffer");
    is_used[0][held.groups[value]] = 1;
    copy(input.name, input.role, value, held.groups[value]);
  }
  for (uint32_t i = 0; i < held.constants_begin; ++i) {
    const StringId name = value_names_[i];
    if (holds(is_assigned_, name)) continue;
    PyObject* value = PyList_GET_ITEM(values_.get(), static_cast<Py_ssize_t>(i));
    const uint32_t group = held.groups[i];
    const bool is_parameter = is_instance(value, fx::symbols.parameter_type);
    const bool is_buffer = is_used[0][group] != 0 || !is_parameter;
    const StateRole role = is_buffer ? StateRole::kBuffer : StateRole::kParameter;
    if (held.copies_unused || is_used[is_buffer ? 0 : 1][group] != 0) {
      copy(name, role, i, group);
    } else {
      entries_.push_back({name, role, false, i});
      entry<uint8_t>(is_assigned_, name, 0) = 1;
    }
  }
  for (auto i = static_cast<uint32_t>(held.constants_begin); i < value_names_.size(); ++i) {
    if (holds(is_assigned_, value_names_[i])) continue;
    const auto at = static_cast<Py_ssize_t>(i);
    Ref::steal(PyObject_CallFunctionObjArgs(held.check_constant, PyList_GET_ITEM(held.names, at),
                                            PyList_GET_ITEM(values_.get(), at), nullptr));
    copy(value_names_[i], StateRole::kConstant, i, held.groups[i]);
  }
}

// Collects all names of each placeholder's value, beginning with its names in the input specs.
void ProgramState::plan_targets(const HeldState& held) {
  group_names_.resize(held.groups.size());
  std::vector<uint8_t> is_known;  // by name: whether an input spec has it
  for (const Input& input : inputs_) {
    const bool is_kept = input.role == StateRole::kParameter || input.role == StateRole::kBuffer;
    const uint32_t value = find(is_kept ? in_state_dict_ : in_constants_, input.name, "state");
    group_names_[held.groups[value]].push_back(input.name);
    placeholders_.emplace_back(input.placeholder, held.groups[value]);
    entry<uint8_t>(is_known, input.name, 0) = 1;
  }
  const auto add = [&](size_t value) {
    std::vector<StringId>& known = group_names_[held.groups[value]];
    if (!known.empty()) known.push_back(value_names_[value]);
    return !known.empty();
  };
  for (size_t i = held.constants_begin; i < value_names_.size(); ++i) {
    if (holds(is_known, value_names_[i]) || add(i)) continue;
    raise(PyExc_AssertionError, "constant %R id not found in consts_map",
          PyList_GET_ITEM(held.names, static_cast<Py_ssize_t>(i)));
  }
  // add() omits values that share nothing with an input, because no placeholder passes them.
  for (size_t i = 0; i < held.constants_begin; ++i) {
    if (!holds(is_known, value_names_[i])) add(i);
  }
}

void ProgramState::fill(PyObject* copies) {
  if (!PyList_Check(copies) || static_cast<size_t>(PyList_GET_SIZE(copies)) != wanted_.size()) {
    raise(PyExc_ValueError, "expected a list of %zu copies", wanted_.size());
  }
  copies_ = Ref::borrow(copies);
}

std::vector<NamedState> ProgramState::assigned() const {
  std::vector<NamedState> result;
  result.reserve(entries_.size());
  for (const AssignedState& entry : entries_) {
    PyObject* list = entry.is_copy ? copies_.get() : values_.get();
    result.push_back(
        {entry.name, entry.role, PyList_GET_ITEM(list, static_cast<Py_ssize_t>(entry.index))});
  }
  return result;
}

}  // namespace fxpress::unflatten
