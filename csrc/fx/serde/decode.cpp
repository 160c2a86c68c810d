#include "fx/serde/decode.h"

#include <algorithm>

#include "fx/serde/errors.h"

namespace fxpress::fx::serde {

bool is_surely_valid(const ProgramCheck& check) {
  OperatorTable operators;
  try {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(check.graph_modules); ++i) {
      PyObject* module = PyList_GET_ITEM(check.graph_modules, i);
      const bool is_root = i == 0;
      const GraphValues graph(module, operators, {true, check.functional, is_root});
      if (!graph.is_surely_valid()) return false;
      const auto is_duplicate = [](const NodeEntry& entry) {
        return entry.duplicate_of != core::PositionTable::kAbsent;
      };
      if (std::any_of(graph.entries.begin(), graph.entries.end(), is_duplicate)) return false;
      if (is_root && !check.is_surely_valid(graph)) return false;
    }
  } catch (const Doubtful&) {
    return false;
  }
  return true;
}

}  // namespace fxpress::fx::serde
