#include "core/verify.h"

namespace fxpress::core {

namespace {

std::string at(uint32_t node, const char* what) {
  return "node " + std::to_string(node) + ": " + what;
}

std::string verify_ranges(const std::vector<uint32_t>& begin, size_t nodes, size_t items,
                          const char* what) {
  if (begin.size() != nodes + 1) return std::string(what) + ": one range per node expected";
  if (begin.front() != 0 || begin.back() != items) {
    return std::string(what) + ": ranges do not cover the array";
  }
  for (uint32_t i = 0; i < nodes; ++i) {
    if (begin[i] > begin[i + 1]) return at(i, what) + " range runs backwards";
  }
  return "";
}

std::string verify_users(const Graph& graph) {
  if (auto error = verify_ranges(graph.user_begin, graph.size(), graph.users.size(), "users");
      !error.empty()) {
    return error;
  }
  Graph again;
  again.ops = graph.ops;
  again.input_begin = graph.input_begin;
  again.inputs = graph.inputs;
  again.link_users();
  if (again.user_begin != graph.user_begin || again.users != graph.users) {
    return "users are not the inverse of the inputs";
  }
  return "";
}

}  // namespace

std::string verify(const Graph& graph) {
  const size_t n = graph.size();
  if (graph.targets.size() != n) return "one target per node expected";
  if (auto error = verify_ranges(graph.input_begin, n, graph.inputs.size(), "inputs");
      !error.empty()) {
    return error;
  }
  for (uint32_t i = 0; i < n; ++i) {
    for (NodeId input : graph.inputs_of(NodeId(i))) {
      if (!input.valid() || input.value() >= n) return at(i, "input outside the graph");
    }
  }
  const bool linked = !graph.user_begin.empty() || !graph.users.empty();
  return linked ? verify_users(graph) : "";
}

}  // namespace fxpress::core
