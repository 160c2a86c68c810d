#include "engine/modules.h"

#include <array>

#include "py/instance_dict.h"
#include "py/interpreter.h"

namespace fxpress::engine {

namespace {

// The functions that register_forward() has registered. They are never released.
std::unordered_map<PyObject*, Forward>& forwards() {
  static auto* table = new std::unordered_map<PyObject*, Forward>;
  return *table;
}

void refresh_type(ModuleRef& ref) {
  PyTypeObject* type = Py_TYPE(ref.module.get());
  if (type == ref.type && ref.type_version != 0 && type_version(type) == ref.type_version) return;
  const auto is = [type](PyObject* name, PyObject* expected) {
    return _PyType_Lookup(type, name) == expected;
  };
  ref.type = type;
  ref.plain_attributes = is(names.dunder_getattr, fx::symbols.module_getattr) &&
                         is(names.dunder_getattribute, fx::symbols.object_getattribute);
  PyObject* compiled = _PyType_Lookup(type, names.compiled_call);
  ref.plain_call = is(names.dunder_call, symbols.module_call) &&
                   is(names.call_impl, symbols.module_call_impl) &&
                   is(names.wrapped_call, symbols.module_wrapped_call) &&
                   (compiled == nullptr || compiled == Py_None);
  ref.forward = forward_of(type);
  ref.type_version = type_version(type);
}

void refresh_dict(ModuleRef& ref) {
  PyObject* dict = borrowed_instance_dict(ref.module.get());
  if (dict == ref.dict && is_version(dict, ref.dict_version)) return;
  if (ref.dict != nullptr && dict != ref.dict) forget_dicts();
  ref.dict = dict;
  ref.dict_version = 0;
  ref.unhooked = 0;
  if (dict == nullptr) {
    ref.plain_attributes = ref.plain_dict = false;
    return;
  }
  // A dispatcher's __dict__ is not cached, because it contains a counter that each run changes.
  if (!is_dispatcher(ref.forward)) ref.dict_version = dict_version(dict);
  ref.parameters = readable_table(dict, names.module_dict_parameters);
  ref.buffers = readable_table(dict, names.module_dict_buffers);
  ref.modules = readable_table(dict, names.module_dict_modules);
  ref.graph = dict_get(dict, names.graph);
  const auto lacks = [dict](PyObject* name) { return dict_get(dict, name) == nullptr; };
  PyObject* compiled = dict_get(dict, names.compiled_call);
  ref.plain_dict = lacks(names.forward) && lacks(names.positional) && lacks(names.call_impl) &&
                   lacks(names.wrapped_call) && (compiled == nullptr || compiled == Py_None);
  const PyObject* hooks[] = {names.forward_pre_hooks, names.forward_hooks, names.backward_pre_hooks,
                             names.backward_hooks};
  for (size_t i = 0; i < std::size(hooks); ++i) {
    ref.hooks[i] = readable_table(dict, const_cast<PyObject*>(hooks[i]));
    ref.plain_dict = ref.plain_dict && ref.hooks[i] != nullptr;
  }
  // InterpreterModule.finalize() sets arg_names last. graph_module is created on first use, and may
  // therefore be missing.
  ref.interprets = !lacks(names.arg_names) && dict_get(dict, names.graph_module) != Py_None &&
                   dict_get(dict, names.run_with_interpreter) == Py_True;
}

// Returns the child of `parent` with the name or index of `ref`, borrowed. Returns null if it does
// not exist or only Python can find it.
PyObject* find_child(ModuleRef& ref, const ModuleRef& parent) {
  if (ref.item != kNone) {
    PyObject* dict = borrowed_instance_dict(parent.module.get());
    PyObject* calls = dict == nullptr ? nullptr : dict_get(dict, names.call_modules);
    if (calls == nullptr || !PyList_CheckExact(calls)) return nullptr;
    return ref.item < static_cast<size_t>(PyList_GET_SIZE(calls)) ? PyList_GET_ITEM(calls, ref.item)
                                                                  : nullptr;
  }
  if (parent.type_version != 0 && parent.type_version == ref.name_type_version &&
      parent.dict_version != 0 && parent.dict_version == ref.name_dict_version &&
      is_version(parent.modules, ref.holder_version) &&
      is_version(parent.parameters, ref.name_parameters_version) &&
      is_version(parent.buffers, ref.name_buffers_version)) {
    return ref.module.get();
  }
  PyObject* children = plain_children(parent, ref.name.get());
  PyObject* child = children == nullptr ? nullptr : dict_get(children, ref.name.get());
  if (child == ref.module.get()) {  // then the parent has all three tables
    ref.name_type_version = parent.type_version;
    ref.name_dict_version = parent.dict_version;
    ref.holder_version = dict_version(parent.modules);
    ref.name_parameters_version = dict_version(parent.parameters);
    ref.name_buffers_version = dict_version(parent.buffers);
  }
  return child;
}

// Returns whether each table exists and has its version in `versions`.
bool are_versions(const std::array<PyObject*, 3>& tables, const uint64_t (&versions)[3]) {
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i] == nullptr || !is_version(tables[i], versions[i])) return false;
  }
  return true;
}

// Returns whether the root node of the callee's graph is the recorded enter.root.
bool has_root(Enter& enter) {
  PyObject* dict = borrowed_instance_dict(enter.graph.get());
  if (dict == enter.dict && is_version(dict, enter.dict_version)) return true;
  if (graph_root(enter.graph.get()) != enter.root) return false;
  enter.dict = dict;
  enter.dict_version = dict_version(dict);
  return true;
}

int watcher = -1;
uint64_t changes = 0;  // 0 if dicts are not watched

thread_local CallCounters* current_counters = nullptr;  // the runs of this thread own it

}  // namespace

void register_forward(PyObject* function, Forward kind) {
  if (forwards().emplace(function, kind).second) Py_INCREF(function);
}

Forward forward_of(PyTypeObject* type) {
  const auto found = forwards().find(_PyType_Lookup(type, names.forward));
  if (found == forwards().end()) return Forward::kUnknown;
  // A subclass that inherits forward() may override the method that binds arguments.
  for (PyObject* base : items_of(type->tp_mro)) {
    PyObject* dict = as_type(base)->tp_dict;
    if (dict == nullptr) continue;  // a builtin type
    if (dict_get(dict, names.forward) != nullptr) break;
    if (dict_get(dict, names.positional) != nullptr) return Forward::kUnknown;
  }
  return found->second;
}

unsigned int current_version(PyTypeObject* type) {
  if (type_version(type) == 0) _PyType_Lookup(type, names.forward);
  return type_version(type);
}

void refresh(ModuleRef& ref) {
  refresh_type(ref);
  refresh_dict(ref);
}

PyObject* plain_children(const ModuleRef& ref, PyObject* name) {
  if (!ref.plain_attributes || ref.modules == nullptr) return nullptr;
  if (_PyType_Lookup(ref.type, name) != nullptr) return nullptr;
  PyObject* dict = borrowed_instance_dict(ref.module.get());
  if (dict == nullptr || dict_get(dict, name) != nullptr) return nullptr;
  return all_lack(std::array{ref.parameters, ref.buffers}, name) ? ref.modules : nullptr;
}

bool in_place(Plan& plan, uint32_t index) {
  ModuleRef& ref = plan.modules[index];
  if (ref.checked == plan.walk) return ref.in_place;
  // Recurses once per dot of a target at most, because the modules of callers are already checked.
  const bool found =
      ref.parent == kNone ||
      (in_place(plan, ref.parent) && find_child(ref, plan.modules[ref.parent]) == ref.module.get());
  ref.checked = plan.walk;
  ref.in_place = found;
  if (found) {
    refresh(ref);
  } else {
    plan.stale = true;
  }
  return found;
}

bool calls_forward(ModuleRef& ref) {
  if (!ref.plain_call || !ref.plain_attributes || !ref.plain_dict) return false;
  if (ref.unhooked != 0 && ref.unhooked == dict_changes()) return true;
  bool versions = true;
  for (PyObject* hooks : ref.hooks) {
    if (PyDict_GET_SIZE(hooks) != 0) return false;
    versions = dict_version(hooks) != 0 && versions;
  }
  ref.unhooked = versions ? dict_changes() : 0;
  return true;
}

bool same_nodes(const Plan& plan, PyObject* root, uint32_t begin, uint32_t end) {
  const fx::Symbols& fields = fx::symbols;
  PyObject* first = begin == end ? root : plan.nodes[begin].node.get();
  if (node_field(root, fields.node_next) != first) return false;
  for (uint32_t i = begin; i < end; ++i) {
    const NodeGuard& guard = plan.nodes[i];
    PyObject* node = guard.node.get();
    if (node_field(node, fields.node_next) != guard.next ||
        node_field(node, fields.node_target) != guard.target.get() ||
        node_field(node, fields.node_args) != guard.args.get() ||
        node_field(node, fields.node_kwargs) != guard.kwargs.get() ||
        node_field(node, fields.node_op) != guard.op.get()) {
      return false;
    }
  }
  return true;
}

PyObject* graph_root(PyObject* graph) {
  PyObject* dict = borrowed_instance_dict(graph);
  PyObject* root = dict == nullptr ? nullptr : dict_get(dict, names.root);
  return root != nullptr && is_node(root) ? root : nullptr;
}

PyObject* plain_attribute(Plan& plan, Load& load) {
  if (load.owner == kNone || !in_place(plan, load.owner)) return nullptr;
  const ModuleRef& ref = plan.modules[load.owner];
  PyObject* name = load.name.get();
  const std::array tables{ref.parameters, ref.buffers, ref.modules};
  if (ref.type_version != 0 && ref.type_version == load.type_version && ref.dict_version != 0 &&
      ref.dict_version == load.dict_version && are_versions(tables, load.tables)) {
    return load.value;
  }
  if (!ref.plain_attributes) return nullptr;
  if (ref.type_version == 0 || ref.type_version != load.type_version) {
    if (_PyType_Lookup(ref.type, name) != nullptr) return nullptr;
    load.type_version = ref.type_version;
  }
  if (ref.dict_version == 0 || ref.dict_version != load.dict_version) {
    PyObject* own = dict_get(borrowed_instance_dict(ref.module.get()), name);
    if (own != nullptr) return own;
    load.dict_version = ref.dict_version;
  }
  load.value = find_in_tables(tables, name);
  for (size_t i = 0; i < tables.size(); ++i) {
    const bool known = load.value != nullptr && tables[i] != nullptr;
    load.tables[i] = known ? dict_version(tables[i]) : 0;
  }
  return load.value;
}

bool may_enter(Plan& plan, Enter& enter, CallCounters& scope, CallsAhead& ahead) {
  if (!in_place(plan, enter.module)) return false;
  ModuleRef& callee = plan.modules[enter.module];
  if (callee.forward != Forward::kModule || !calls_forward(callee) || !callee.interprets) {
    return false;
  }
  if (callee.graph != enter.graph.get() || !has_root(enter) ||
      !same_nodes(plan, enter.root, enter.nodes_begin, enter.nodes_end) ||
      (enter.arg_names && dict_get(borrowed_instance_dict(callee.module.get()), names.arg_names) !=
                              enter.arg_names.get())) {
    plan.stale = true;
    return false;
  }
  if (enter.dispatcher == kNone) return true;
  ModuleRef& dispatcher = plan.modules[enter.dispatcher];
  if (!is_dispatcher(dispatcher.forward) || !calls_forward(dispatcher)) return false;
  PyObject* object = dispatcher.module.get();
  PyObject* calls = dict_get(borrowed_instance_dict(object), names.call_modules);
  if (PyList_GET_SIZE(calls) != static_cast<Py_ssize_t>(enter.call_count)) {
    plan.stale = true;
    return false;
  }
  const auto found = ahead.find(object);
  const int64_t next = found == ahead.end() ? scope.next(object) : found->second;
  if (next != static_cast<int64_t>(enter.call_index)) return false;
  ahead[object] = (next + 1) % enter.call_count;
  return true;
}

void watch_dicts() {
  watcher = cpython::watch_changes([] { ++changes; });
  if (watcher >= 0) changes = 1;
}

uint64_t dict_changes() {
  return changes;
}

uint64_t dict_version(PyObject* dict) {
  if constexpr (cpython::kDictsCount) return cpython::own_dict_version(dict);
  return cpython::watch_dict(watcher, dict) ? changes : 0;
}

bool is_version(PyObject* dict, uint64_t version) {
  if (version == 0) return false;
  if constexpr (cpython::kDictsCount) return cpython::own_dict_version(dict) == version;
  return version == changes;
}

void forget_dicts() {
  if (watcher >= 0) ++changes;
}

CallCounters::OfRun CallCounters::begin() {
  if (current_counters == nullptr) current_counters = new CallCounters;
  ++current_counters->runs_;
  return OfRun(current_counters);
}

void CallCounters::end() {
  if (--runs_ != 0) return;
  current_counters = nullptr;
  if (!counters_.empty()) write_back();
  delete this;
}

void CallCounters::write_back() {
  const pybind11::error_scope kept;
  for (const auto& [dispatcher, counter] : counters_) {
    if (counter.index == counter.stored) continue;
    try {
      store_call(dispatcher, counter.index);
    } catch (const pybind11::error_already_set&) {
      PyErr_Clear();
    }
  }
}

CallCounters* CallCounters::current() {
  return current_counters;
}

int64_t CallCounters::next(PyObject* dispatcher) {
  const auto found = counters_.find(dispatcher);
  if (found != counters_.end()) return found->second.index;
  const int64_t stored = stored_call(dispatcher);
  if (stored < 0) return -1;
  counters_.emplace(dispatcher, Counter{Ref::borrow(dispatcher), stored, stored});
  return stored;
}

void CallCounters::set(PyObject* dispatcher, int64_t index) {
  const auto found = counters_.find(dispatcher);
  if (found != counters_.end()) found->second.index = index;
}

int64_t stored_call(PyObject* dispatcher) {
  const Ref dict = instance_dict(dispatcher);
  PyObject* number = dict_get(dict.get(), names.num_calls);
  if (number == nullptr || !PyLong_CheckExact(number)) return -1;
  const int64_t index = PyLong_AsLongLong(number);
  if (index == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  return index;
}

void store_call(PyObject* dispatcher, int64_t index) {
  const Ref dict = instance_dict(dispatcher);
  const Ref number = Ref::steal(PyLong_FromLongLong(index));
  check(PyDict_SetItem(dict.get(), names.num_calls, number.get()));
}

}  // namespace fxpress::engine
