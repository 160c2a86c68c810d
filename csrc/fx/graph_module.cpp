#include "fx/graph_module.h"

#include <algorithm>
#include <string_view>

#include "core/text_hash.h"
#include "fx/attributes.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

namespace {

// Creates a class. Each GraphModule needs a separate class, because `forward` is set on the class.
Ref make_class(PyObject* base, PyObject* namespace_of_class, const char* class_name) {
  const Ref body = Ref::steal(PyDict_Copy(namespace_of_class));
  const Ref bases = Ref::steal(PyTuple_Pack(1, base));
  const Ref name = Ref::steal(PyUnicode_FromString(class_name));
  return call(reinterpret_cast<PyObject*>(Py_TYPE(base)), name, bases, body);
}

Ref make_torch_lazy_class(const char* class_name) {
  return make_class(symbols.lazy_graph_module_type, symbols.lazy_graph_module_body, class_name);
}

// Sorts targets by their number of dots, so that assigning "a" does not remove "a.b". Like a dict,
// lists each target once, with its last value.
ModuleAttributes assignment_order(const ModuleAttributes& attributes) {
  ModuleAttributes result;
  core::TextViewMap<size_t> position;
  for (const auto& attribute : attributes) {
    const auto [it, added] = position.emplace(utf8(attribute.first), result.size());
    if (added) {
      result.push_back(attribute);
    } else {
      result[it->second].second = attribute.second;
    }
  }
  const auto dots = [](PyObject* target) {
    const std::string_view text = utf8(target);
    return std::count(text.begin(), text.end(), '.');
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const auto& a, const auto& b) { return dots(a.first) < dots(b.first); });
  return result;
}

// Sets the graph of a module, and the attributes that GraphModule.__init__ sets after the graph.
void adopt_graph(PyObject* module, PyObject* graph) {
  const Ref dict = instance_dict(module);
  check(PyDict_SetItem(dict.get(), symbols.own_graph, graph));
  fill_fresh(dict.get(), symbols.graph_module_init_tail);
  check(PyObject_SetAttr(graph, names.owning_module, module));
}

// Creates a GraphModule of class `type`. `fill(paths)` sets the attributes that the graph uses.
template <class Fill>
Ref new_graph_module(const Ref& type, PyObject* graph, Fill fill) {
  Ref module = new_module(as_type(type.get()));
  AttributePaths paths(module.get());
  fill(paths);
  adopt_graph(module.get(), graph);
  return module;
}

template <class Fill>
Ref new_deferred_module(PyObject* base, PyObject* graph, Fill fill) {
  const Ref type = make_class(base, symbols.deferred_body, "GraphModule");
  Ref module = new_graph_module(type, graph, fill);
  const Ref weak = Ref::steal(PyWeakref_NewRef(module.get(), nullptr));
  check(PyObject_SetAttr(type.get(), symbols.pending, weak.get()));
  return module;
}

}  // namespace

Ref make_graph_module(const ModuleAttributes& attributes, PyObject* graph, CodeMode mode) {
  const auto fill = [&](AttributePaths& paths) {
    for (const auto& [target, value] : assignment_order(attributes)) paths.assign(target, value);
  };
  return mode == CodeMode::kDeferred
             ? new_deferred_module(symbols.graph_module_type, graph, fill)
             : new_graph_module(make_torch_lazy_class("GraphModule"), graph, fill);
}

// Copies attributes in the order of the nodes. Skips attributes of a module that `root` and the
// result share.
Ref make_graph_module_of(PyObject* root, PyObject* graph, const GraphModuleOptions& options) {
  AttributePaths from(root);
  PyObject* base = options.base == nullptr ? symbols.graph_module_type : options.base;
  const auto listed = [](PyObject* table, const Ref& target) {
    return table == nullptr ? nullptr : dict_get(table, target.get());
  };
  Ref module = new_deferred_module(base, graph, [&](AttributePaths& paths) {
    std::vector<std::pair<Ref, PyObject*>> later;  // (target in the graph, target in the root)
    for (const Ref& node : list_nodes(graph)) {
      const core::Op op = parse_op(node_field(node.get(), symbols.node_op).get());
      if (op != core::Op::kGetAttr && op != core::Op::kCallModule) continue;
      Ref target = node_field(node.get(), symbols.node_target);
      if (PyObject* value = listed(options.values, target)) {
        paths.assign(target.get(), value);
        continue;
      }
      if (PyObject* original = listed(options.renamed, target)) {
        later.emplace_back(std::move(target), original);
        continue;
      }
      const Ref value = from.resolve(target.get());
      if (!paths.shares_owner(root, target.get())) paths.assign(target.get(), value.get());
    }
    for (const auto& [target, original] : later) {
      paths.assign(target.get(), from.resolve(original).get());
    }
  });
  const Ref training = find_attr(root, names.training);
  if (training) check(PyObject_SetAttr(module.get(), names.training, training.get()));
  return module;
}

void list_children_with_code(PyObject* module, std::vector<Ref>& result) {
  const Ref dict = instance_dict(module);
  PyObject* children = dict_get(dict.get(), names.module_dict_modules);
  if (children == nullptr) return;
  for (const auto& [_, child] : DictRange(children)) {
    if (!is_a(child, symbols.graph_module_type)) continue;
    if (_PyType_Lookup(Py_TYPE(child), symbols.pending) != nullptr) continue;
    result.push_back(Ref::borrow(child));
  }
}

Ref make_lite_graph_module(PyObject* graph, PyObject* modules) {
  const Ref type = make_torch_lazy_class("GraphModuleImpl");
  Ref module = new_module(as_type(type.get()));
  const Ref dict = instance_dict(module.get());
  check(PyDict_SetItem(dict.get(), names.training, Py_False));
  if (modules != Py_None) {
    check(PyDict_SetItem(dict.get(), names.module_dict_modules, modules));
  }
  adopt_graph(module.get(), graph);
  return module;
}

}  // namespace fxpress::fx
