#include "install/installation.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "py/calls.h"
#include "py/text.h"

namespace fxpress::install {

namespace py = pybind11;

namespace {

// From objects to the objects that replace them in namespaces; borrowed.
using Replacements = std::unordered_map<PyObject*, PyObject*>;

bool is_ours(PyObject* name) {
  if (name == nullptr || !PyUnicode_Check(name)) return false;
  const Text text(name);
  return text.view() == "fxpress" || text.view().starts_with("fxpress.");
}

// Returns the namespace of a value of sys.modules. Returns an empty Ref if the value is not a
// module, or is a module of fxpress.
Ref namespace_of(PyObject* key, PyObject* module) {
  // The type is tested, because an object may override __class__.
  if (PyType_IsSubtype(Py_TYPE(module), &PyModule_Type) == 0) return {};
  // Unlike the attribute __dict__, PyModule_GetDict() does not run the loader of a lazy module.
  PyObject* found = PyModule_GetDict(module);
  if (found == nullptr || !PyDict_CheckExact(found) || is_ours(key)) return {};
  Ref names = Ref::borrow(found);
  // `python -m fxpress.cli` names its module __main__, so __package__ is tested too.
  for (const char* role : {"__name__", "__package__"}) {
    if (is_ours(PyDict_GetItemString(found, role))) return {};
  }
  return names;
}

// A name in a namespace, and its new value.
struct Change {
  Ref names;
  Ref name;
  PyObject* value;
};

void find_changes(const Ref& names, const Replacements& replacements, std::vector<Change>& found) {
  for (const auto& [name, value] : DictRange(names.get())) {
    const auto replacement = replacements.find(value);
    // Ordinary code cannot look up a name that is not exactly a str.
    if (replacement == replacements.end() || !PyUnicode_CheckExact(name)) continue;
    found.push_back({Ref::borrow(names.get()), Ref::borrow(name), replacement->second});
  }
}

// Replaces keys of a dict. The keys are functions and classes, which are equal only to themselves.
void replace_keys(PyObject* table, const Replacements& replacements) {
  for (const auto& [old_key, new_key] : replacements) {
    const Ref value = Ref::borrow(PyDict_GetItemWithError(table, old_key));
    if (!value) continue;
    check(PyDict_SetItem(table, new_key, value.get()));
    check(PyDict_DelItem(table, old_key));
  }
}

// Replaces objects in the namespaces of all modules in sys.modules, except modules of fxpress, and
// in the keys of the dicts `tables`. Runs no Python code, so that other threads, signal handlers
// and forked children observe all changes or none. The caller must own references to the objects.
void rebind(const Replacements& replacements, const std::vector<Ref>& tables) {
  if (replacements.empty()) return;
  std::vector<Change> changes;
  const Ref modules = Ref::steal(PyDict_Copy(PyImport_GetModuleDict()));
  for (const auto& [key, module] : DictRange(modules.get())) {
    if (const Ref names = namespace_of(key, module)) find_changes(names, replacements, changes);
  }
  // The old values are not freed here, because the caller owns references to them.
  for (const Change& change : changes) {
    check(PyDict_SetItem(change.names.get(), change.name.get(), change.value));
  }
  for (const Ref& table : tables) replace_keys(table.get(), replacements);
}

bool have_one_in_common(PyObject* tuple, PyObject* parts) {
  const auto items = items_of(tuple);
  return std::ranges::find_first_of(items, items_of(parts)) != items.end();
}

Replacements stand_ins(const Patches& patches) {
  Replacements made;
  for (const Patch& patch : patches.patches) made[patch.original.get()] = patch.stand_in.get();
  return made;
}

Replacements originals(const Patches& patches) {
  Replacements made;
  for (const Patch& patch : patches.patches) made[patch.stand_in.get()] = patch.original.get();
  return made;
}

void call_all(const std::vector<Ref>& callbacks) {
  for (const Ref& callback : callbacks) {
    Py_XDECREF(PyObject_CallNoArgs(callback.get()));
    PyErr_Clear();  // errors are ignored, because the names have changed already
  }
}

Ref ref(const py::handle& object) {
  return Ref::borrow(object.ptr());
}

}  // namespace

void forget_keys(const py::dict& dict, const py::tuple& parts) {
  const Ref keys = Ref::steal(PyDict_Keys(dict.ptr()));
  for (PyObject* key : items_of(keys.get())) {
    if (!PyTuple_Check(key) || !have_one_in_common(key, parts.ptr())) continue;
    if (PyDict_DelItem(dict.ptr(), key) != 0)
      PyErr_Clear();  // another thread may have removed the key
  }
}

const Lease* Installation::acquire(const Prepared& prepared, bool scoped) {
  auto made = std::make_unique<Lease>(Lease{ref(std::get<0>(prepared)), scoped});
  const Lease* const result = made.get();
  leases_.reserve(leases_.size() + 1);
  if (leases_.empty()) put_in_place(prepared);
  leases_.push_back(std::move(made));
  if (leases_.size() == 1) call_all(active_.callbacks);
  return result;
}

void Installation::release(const Lease* lease) {
  const auto found = std::find_if(leases_.begin(), leases_.end(),
                                  [&](const auto& each) { return each.get() == lease; });
  if (found == leases_.end()) return;
  const auto gone = std::move(*found);  // freed when the function returns
  leases_.erase(found);
  if (leases_.empty()) restore();
}

void Installation::release_newest() {
  const auto found = std::find_if(leases_.rbegin(), leases_.rend(),
                                  [](const auto& each) { return !each->is_scoped; });
  if (found == leases_.rend()) {
    raise(PyExc_RuntimeError,
          "fxpress.uninstall() was called without a matching fxpress.install()");
  }
  release(found->get());
}

Ref Installation::policy() const {
  if (leases_.empty() || active_.patches.empty()) return {};
  return Ref::borrow(leases_.back()->policy.get());
}

void Installation::put_in_place(const Prepared& prepared) {
  const auto& [policy, pairs, tables, callbacks] = prepared;
  Patches patches;
  for (const auto& [original, stand_in] : pairs) {
    patches.patches.push_back({ref(original), ref(stand_in)});
  }
  for (const py::handle& table : tables) patches.tables.push_back(ref(table));
  for (const py::handle& callback : callbacks) patches.callbacks.push_back(ref(callback));
  try {
    rebind(stand_ins(patches), patches.tables);
  } catch (...) {
    const pybind11::error_scope error;
    rebind(originals(patches), patches.tables);
    throw;
  }
  active_ = std::move(patches);
}

void Installation::restore() {
  const Patches gone = std::exchange(active_, {});
  rebind(originals(gone), gone.tables);
  call_all(gone.callbacks);
}

InstalledBlock::InstalledBlock(py::object installation, py::object prepare, py::object decorate)
    : owner_(std::move(installation)),
      installation_(&owner_.cast<Installation&>()),
      prepare_(std::move(prepare)),
      decorate_(std::move(decorate)) {}

void InstalledBlock::enter() {
  if (lease_ != nullptr)
    raise(PyExc_RuntimeError,
          "this fxpress.installed() block is already active: create another one");
  lease_ = installation_->acquire(prepare_().cast<Prepared>(), true);
}

void InstalledBlock::exit(const py::args&) {
  installation_->release(std::exchange(lease_, nullptr));
}

}  // namespace fxpress::install
