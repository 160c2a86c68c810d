#include <string>

#include "capture/rewrite.h"
#include "capture/text/export_root.h"
#include "fx/reader.h"
#include "fx/symbols.h"
#include "py/containers.h"
#include "py/gc_pause.h"
#include "py/object_table.h"
#include "py/text.h"

namespace fxpress::capture {

namespace {

constexpr std::string_view kRootEntry = "L__self____export_root";
constexpr std::string_view kSelf = "L['self']";

// Removes the module that Dynamo wraps around the callable from the stacks in the meta of nodes.
// Nodes of one module share the entries of their stacks, so cleaned entries are cached.
class StackCleaner {
 public:
  explicit StackCleaner(bool drop_self) : drop_self_(drop_self) {}

  // Returns a clean copy of an nn_module_stack.
  Ref module_stack(PyObject* stack) {
    Ref result = Ref::steal(PyDict_New());
    const Ref items = pairs_of(stack);
    for (PyObject* item : items_of(items.get())) {
      PyObject* key = PyTuple_GET_ITEM(item, 0);
      if (PyUnicode_Check(key) && utf8(key) == kRootEntry) continue;
      PyObject* entry = cleaned(PyTuple_GET_ITEM(item, 1), [&](PyObject* value) {
        const Ref pair = Ref::steal(PySequence_Tuple(value));
        if (PyTuple_GET_SIZE(pair.get()) != 2) {
          raise(PyExc_ValueError, "expected pairs as entries of nn_module_stack, found %R", value);
        }
        return with_clean_name(pair.get());
      });
      const Ref name = clean_name(key);
      if (drop_self_ && utf8(PyTuple_GET_ITEM(entry, 0)) == kSelf) continue;
      check(PyDict_SetItem(result.get(), name.get(), entry));
    }
    return result;
  }

  // Returns a clean copy of a source_fn_stack.
  Ref function_stack(PyObject* stack) {
    Ref result = Ref::steal(PySequence_List(stack));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result.get()); ++i) {
      PyObject* item = PyList_GET_ITEM(result.get(), i);
      if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) continue;
      if (!PyUnicode_Check(PyTuple_GET_ITEM(item, 0))) continue;
      PyObject* entry = cleaned(item, with_clean_name);
      check(PyList_SetItem(result.get(), i, Ref::borrow(entry).release()));
    }
    return result;
  }

 private:
  static Ref with_clean_name(PyObject* pair) {
    const Ref name = clean_name(PyTuple_GET_ITEM(pair, 0));
    return Ref::steal(PyTuple_Pack(2, name.get(), PyTuple_GET_ITEM(pair, 1)));
  }

  // Returns clean(value), borrowed. Calls clean() once per value, and caches the result.
  template <class Clean>
  PyObject* cleaned(PyObject* value, Clean clean) {
    return entries_.get(value, [&] { return clean(value); }).get();
  }

  bool drop_self_;
  ObjectMap<Ref> entries_;  // from an entry of a stack to its clean copy
};

}  // namespace

Ref clean_name(PyObject* name) {
  if (!PyUnicode_Check(name)) {
    raise(PyExc_AttributeError, "expected a str as a name, got %s", Py_TYPE(name)->tp_name);
  }
  const Text text(name);
  if (!mentions_export_root(text.view())) return Ref::borrow(name);
  const std::string cleaned = without_export_root(text.view());
  return cleaned == text.view() ? Ref::borrow(name) : new_text(cleaned);
}

void clean_stacks(PyObject* graph, bool drop_self) {
  const GcPause pause;
  StackCleaner cleaner(drop_self);
  for (const Ref& node : fx::list_nodes(graph)) {
    const Ref meta = dict_of_meta(node.get());
    if (const Ref stack = Ref::borrow(dict_get(meta.get(), fx::names.nn_module_stack))) {
      const Ref cleaned = cleaner.module_stack(stack.get());
      check(PyDict_SetItem(meta.get(), fx::names.nn_module_stack, cleaned.get()));
    }
    if (!is_set(meta.get(), fx::names.source_fn_stack)) continue;
    const Ref functions = Ref::borrow(dict_get(meta.get(), fx::names.source_fn_stack));
    if (!functions) fx::raise_edited();
    const Ref cleaned = cleaner.function_stack(functions.get());
    check(PyDict_SetItem(meta.get(), fx::names.source_fn_stack, cleaned.get()));
  }
}

}  // namespace fxpress::capture
