#include "unflatten/write.h"

#include "fx/attributes.h"
#include "fx/descriptors.h"
#include "fx/symbols.h"
#include "fx/writer.h"
#include "py/instance_dict.h"

namespace fxpress::unflatten {

namespace {

class ModuleWriter {
 public:
  ModuleWriter(const UnflattenPlan& plan, PyObject* root)
      : plan_(plan),
        root_(root),
        names_(fx::NameWriter::Forbidden::kForNodes),
        frames_(plan, names_) {
    result_.modules.resize(plan.tree.size());
    result_.call_nodes.resize(plan.outline.frames.size());
    children_.resize(plan.tree.size());  // there are no more tables of children than modules
    for (const Dispatcher& dispatcher : plan.dispatchers) {
      dispatcher_of_.emplace(dispatcher.module.value(), &dispatcher);
      for (ModuleId call : dispatcher.calls) {
        dispatched_by_.emplace(call.value(), dispatcher.module.value());
      }
      dispatched_by_.emplace(dispatcher.module.value(), dispatcher.module.value());
    }
  }

  WrittenModules run() {
    result_.modules[plan_.outline.root.value()] = Ref::borrow(root_);
    for (auto& [module, object] : plan_.existing) {
      result_.modules[module.value()] = Ref::borrow(object.get());
    }
    fill(plan_.outline.root);
    while (!open_.empty()) {
      const ModuleId module = open_.back();
      open_.pop_back();
      fill(module);
    }
    return std::move(result_);
  }

 private:
  PyObject* object(ModuleId module) const { return result_.modules[module.value()].get(); }

  // Returns the module's object; the first call creates it.
  PyObject* make(ModuleId module) {
    Ref& known = result_.modules[module.value()];
    if (known) return known.get();
    PyObject* type = fx::symbols.module_type;
    if (dispatcher_of_.contains(module.value())) {
      type = plan_.classes.dispatcher;
    } else if (plan_.outline.is_outlined(module)) {
      type = plan_.classes.interpreter;
    }
    known = fx::new_module(as_type(type));
    open_.push_back(module);
    return known.get();
  }

  void fill(ModuleId module) {
    const Ref dict = instance_dict(object(module));
    const bool is_root = module == plan_.outline.root;
    if (const auto it = dispatcher_of_.find(module.value()); it != dispatcher_of_.end()) {
      fill_dispatcher(dict.get(), *it->second);
    } else if (plan_.outline.is_outlined(module)) {
      fill_interpreter(module, dict.get(), is_root);
    }
    add_children(module, dict.get());
    const auto dispatcher = dispatcher_of_.find(module.value());
    const ModuleId holder =
        dispatcher == dispatcher_of_.end() ? module : dispatcher->second->calls.front();
    if (holder.value() < plan_.state.size()) add_states(module, holder, dict.get());
  }

  void fill_interpreter(ModuleId module, PyObject* dict, bool is_root) {
    const FrameId frame = plan_.outline.frame_of(module);
    Ref graph;
    if (is_root) graph = get_attr(root_, fx::names.graph);
    if (!frame.valid()) {
      if (!graph) graph = fx::new_graph();
    } else {
      graph = frames_.write(frame, std::move(graph), result_.call_nodes);
    }
    if (!is_root) {
      check(PyDict_SetItem(dict, fx::names.graph, graph.get()));
      set_type(dict, module);
      check(PyDict_SetItem(dict, fx::names.run_with_interpreter,
                           plan_.run_with_interpreter ? Py_True : Py_False));
      check(PyObject_SetAttr(graph.get(), fx::names.owning_module, object(module)));
    }
    if (!frame.valid()) return;
    if (!is_root) {
      const std::vector<Ref>& known = frames_.argument_names();
      const Ref arguments =
          make_list(known.size(), [&](size_t i) { return Ref::borrow(known[i].get()); });
      check(PyDict_SetItem(dict, fx::names.arg_names, arguments.get()));
    }
    const auto& specs = plan_.outline.frames[frame.value()].specs;
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto& [signature, of_outputs] = specs[i];
      const auto& objects = of_outputs ? plan_.signatures.out_specs : plan_.signatures.in_specs;
      const Ref name = Ref::steal(PyUnicode_FromFormat("_spec_%zu", i));
      check(PyDict_SetItem(dict, name.get(), objects[signature].get()));
    }
  }

  // Stores the class of the original module, or None, in the __dict__ of a module.
  void set_type(PyObject* dict, ModuleId module) {
    const uint32_t type = plan_.outline.module_type[module.value()];
    const bool is_known = type != ModuleCall::kNoType;
    check(PyDict_SetItem(dict, fx::names.ty, is_known ? plan_.program.types[type].get() : Py_None));
  }

  void fill_dispatcher(PyObject* dict, const Dispatcher& dispatcher) {
    const Ref calls = make_list(dispatcher.calls.size(),
                                [&](size_t i) { return Ref::borrow(make(dispatcher.calls[i])); });
    set_type(dict, dispatcher.calls.front());
    check(PyDict_SetItem(dict, fx::names.call_modules, calls.get()));
    const Ref zero = Ref::steal(PyLong_FromLong(0));
    check(PyDict_SetItem(dict, fx::names.num_calls, zero.get()));
  }

  // Adds the dict of children. Modules that share a table of children in the tree share one dict.
  void add_children(ModuleId module, PyObject* dict) {
    PyObject* children = dict_get(dict, fx::names.module_dict_modules);
    Ref& known = children_[plan_.tree.table_of(module)];
    if (!known) {
      known = Ref::borrow(children);
      const Ref mine = Ref::borrow(children);
      for (const auto& [name, child] : plan_.tree.children(module)) {
        PyObject* key = plan_.program.string(name);
        check_free(module, dict, key);
        check(PyDict_SetItem(mine.get(), key, make(child)));
      }
    } else {
      if (is_first_call(module)) {
        for (const auto& [name, child] : plan_.tree.children(module)) {
          check_free(module, dict, plan_.program.string(name));
        }
      }
      check(PyDict_SetItem(dict, fx::names.module_dict_modules, known.get()));
    }
  }

  // Checks a child's name like nn.Module.add_module. The module has no parameters or buffers yet.
  void check_free(ModuleId module, PyObject* dict, PyObject* name) {
    if (is_free(module, dict, name)) return;
    raise(PyExc_KeyError,
          "attribute '%U' already exists: module '%s', a %s, cannot have a submodule of that name",
          name, path_of(module).c_str(), Py_TYPE(object(module))->tp_name);
  }

  // Whether the module is the first call of a dispatcher. The calls share the dispatcher's tables,
  // but not its class, so the names in the tables may be attributes of the calls' class. They are
  // therefore checked again, but only for the first call.
  bool is_first_call(ModuleId module) const {
    const auto found = dispatched_by_.find(module.value());
    return found != dispatched_by_.end() &&
           dispatcher_of_.at(found->second)->calls.front() == module;
  }

  bool is_free(ModuleId module, PyObject* dict, PyObject* name) const {
    return dict_get(dict, name) == nullptr && !fx::is_taken_by_class(Py_TYPE(object(module)), name);
  }

  // The calls of a module are separate modules with one table of buffers, so that moving or
  // replacing a buffer affects all of them. The calls of a dispatcher are not registered as
  // children, so they share its table of parameters too.
  void add_states(ModuleId module, ModuleId holder, PyObject* dict) {
    const auto dispatched = dispatched_by_.find(module.value());
    uint32_t group = plan_.state_group.find(holder.value());
    if (group == core::FlatMap::kAbsent && dispatched != dispatched_by_.end()) {
      group = holder.value();
    }
    const bool has_buffers = group != core::FlatMap::kAbsent &&
                             share(buffers_, group, dict, fx::names.module_dict_buffers);
    if (group != core::FlatMap::kAbsent) {
      share(transient_, group, dict, fx::names.non_persistent_buffers);
    }
    const bool has_parameters =
        dispatched != dispatched_by_.end() &&
        share(parameters_, dispatched->second, dict, fx::names.module_dict_parameters);
    const bool checks_shared = is_first_call(module);
    for (const ModuleState& state : plan_.state[holder.value()]) {
      const bool is_buffer =
          state.role == StateRole::kBuffer || state.role == StateRole::kTransientBuffer;
      const bool is_shared =
          (is_buffer && has_buffers) || (state.role == StateRole::kParameter && has_parameters);
      if (is_shared && !checks_shared) continue;
      try {
        PyObject* name = plan_.program.string(state.name);
        if (!is_shared) {
          add_state(object(module), state);
        } else if (!is_free(module, dict, name)) {
          raise(PyExc_KeyError, "attribute '%U' already exists", name);
        }
      } catch (pybind11::error_already_set& error) {
        if (!error.matches(PyExc_KeyError)) throw;
        const Ref arguments = get_attr(error.value().ptr(), fx::names.args);
        raise(PyExc_KeyError, "%S: state of module '%s', a %s",
              PyTuple_GET_ITEM(arguments.get(), 0), path_of(module).c_str(),
              Py_TYPE(object(module))->tp_name);
      }
    }
  }

  // Returns the path of a module in the tree, for error messages.
  std::string path_of(ModuleId id) const {
    const auto dispatched = dispatched_by_.find(id.value());  // the tree lacks dispatched calls
    const ModuleId wanted = dispatched == dispatched_by_.end() ? id : ModuleId(dispatched->second);
    std::vector<std::pair<std::string, ModuleId>> open{{"", plan_.outline.root}};
    std::vector<uint8_t> seen(plan_.tree.size(), 0);
    while (!open.empty()) {
      const auto [path, module] = std::move(open.back());
      open.pop_back();
      if (module == wanted) return path;
      if (std::exchange(seen[module.value()], 1) != 0) continue;
      for (const auto& [name, child] : plan_.tree.children(module)) {
        const std::string prefix = path.empty() ? "" : path + '.';
        open.emplace_back(prefix + std::string(plan_.program.strings.text(name)), child);
      }
    }
    return "";
  }

  // If a group of modules has a dict `name`, such as _buffers, replaces the module's dict by it and
  // returns true. Otherwise the module's dict becomes the group's dict; returns false.
  static bool share(std::unordered_map<uint32_t, Ref>& tables, uint32_t group, PyObject* dict,
                    PyObject* name) {
    const auto [it, added] = tables.try_emplace(group);
    if (added) {
      it->second = Ref::borrow(dict_get(dict, name));
      return false;
    }
    check(PyDict_SetItem(dict, name, it->second.get()));
    return true;
  }

  void add_state(PyObject* module, const ModuleState& state) {
    PyObject* name = plan_.program.string(state.name);
    switch (state.role) {
      case StateRole::kParameter:
        fx::register_parameter(module, name, state.value);
        return;
      case StateRole::kBuffer:
      case StateRole::kTransientBuffer:
        fx::register_buffer(module, name, state.value, state.role == StateRole::kBuffer);
        return;
      case StateRole::kConstant:
        check(PyObject_SetAttr(module, name, state.value));
        return;
    }
  }

  const UnflattenPlan& plan_;
  PyObject* root_;
  fx::NameWriter names_;
  FrameWriter frames_;
  WrittenModules result_;
  std::vector<ModuleId> open_;  // modules that are created, but not filled
  std::vector<Ref> children_;   // by table of children: the dict _modules
  std::unordered_map<uint32_t, const Dispatcher*> dispatcher_of_;  // by id of its module
  std::unordered_map<uint32_t, uint32_t> dispatched_by_;  // call or dispatcher -> dispatcher
  std::unordered_map<uint32_t, Ref> buffers_;             // group of modules -> its dict _buffers
  std::unordered_map<uint32_t, Ref> transient_;  // group -> its _non_persistent_buffers_set
  std::unordered_map<uint32_t, Ref> parameters_;
};

}  // namespace

WrittenModules write_modules(const UnflattenPlan& plan, PyObject* root) {
  return ModuleWriter(plan, root).run();
}

}  // namespace fxpress::unflatten
