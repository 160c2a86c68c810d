#include "engine/dict_version.h"

#include "py/interpreter.h"

namespace fxpress::engine {

namespace {

int watcher = -1;
uint64_t changes = 0;  // 0: there is no watcher

}  // namespace

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

}  // namespace fxpress::engine
