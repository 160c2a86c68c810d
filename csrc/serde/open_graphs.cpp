#include "serde/open_graphs.h"

#include "core/check.h"
#include "fx/symbols.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

OpenGraph::OpenGraph(uint64_t scope)
    : scope_(scope),
      names_(fx::NameWriter::Forbidden::kForNodes),
      writer_(names_),
      root_(Ref::steal(PyObject_CallNoArgs(fx::symbols.module_type))) {}

Defined& OpenGraph::defined(std::string_view name) {
  const size_t id = pool_.intern(name).value();
  if (id >= defined_.size()) defined_.resize(id + 1);
  return defined_[id];
}

Defined* OpenGraph::find(std::string_view name) {
  const size_t id = pool_.intern(name).value();
  return id < defined_.size() ? &defined_[id] : nullptr;
}

PyObject* OpenGraph::node_named(std::string_view name) {
  PyObject* node = defined(name).node.get();
  if (node == nullptr) {
    raise(symbols.serialize_error, "no value of the graph is named %R", new_text(name).get());
  }
  return node;
}

core::StringId OpenGraph::candidate(std::string_view name) {
  for (const char c : name) {
    if ((static_cast<unsigned char>(c) & 0x80u) != 0) {
      return names_.candidate(new_text(name).get());
    }
  }
  return names_.intern(name);
}

Ref OpenGraph::nodes() const {
  Ref result = Ref::steal(PyDict_New());
  for (uint32_t i = 0; i < defined_.size(); ++i) {
    PyObject* node = defined_[i].node.get();
    if (node == nullptr) continue;
    check(PyDict_SetItem(result.get(), new_text(pool_.text(core::StringId(i))).get(), node));
  }
  return result;
}

Ref OpenGraph::value_names() const {
  Ref result = Ref::steal(PyList_New(0));
  for (uint32_t i = 0; i < defined_.size(); ++i) {
    if (defined_[i].meta == nullptr) continue;
    check(PyList_Append(result.get(), new_text(pool_.text(core::StringId(i))).get()));
  }
  return result;
}

void OpenGraphs::open() {
  Ref::steal(PyObject_CallMethodNoArgs(values_, names.begin_graph));
  current_ = &graphs_.emplace_back(++scopes_);
}

void OpenGraphs::close() {
  FXPRESS_CHECK(graphs_.size() > 1, "no graph within another is open");
  leave();
  current_ = &graphs_.back();
}

void OpenGraphs::clear() {
  while (!graphs_.empty()) leave();
  open();
}

// leave() also runs while an error is on its way.
void OpenGraphs::leave() noexcept {
  graphs_.pop_back();
  PyObject* none = PyObject_CallMethodNoArgs(values_, names.leave_graph);
  if (none == nullptr) PyErr_WriteUnraisable(values_);
  Py_XDECREF(none);
}

OpenGraph& OpenGraphs::of(uint64_t scope) {
  for (OpenGraph& graph : graphs_) {
    if (graph.scope() == scope) return graph;
  }
  raise(symbols.serialize_error, "the graph is not open any more");
}

}  // namespace fxpress::serde
