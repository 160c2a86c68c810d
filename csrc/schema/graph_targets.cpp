#include "schema/graph_targets.h"

#include <unordered_set>

namespace fxpress::schema {

namespace {

void collect_targets(const Document& document, const Value& value,
                     std::unordered_set<std::string_view>& targets);

void collect_graph_targets(const Document& document, const Value& graph,
                           std::unordered_set<std::string_view>& targets) {
  for (const Value& node : document.children(document.field(graph, Field::Graph_nodes))) {
    targets.insert(document.text(document.field(node, Field::Node_target)));
    for (const Value& input : document.children(document.field(node, Field::Node_inputs))) {
      collect_targets(document, document.field(input, Field::NamedArgument_arg), targets);
    }
  }
}

void collect_targets(const Document& document, const Value& value,
                     std::unordered_set<std::string_view>& targets) {
  const Value& content = document.content(value);
  if (document.tag(value) == Field::Argument_as_graph) {
    return collect_graph_targets(document, document.field(content, Field::GraphArgument_graph),
                                 targets);
  }
  if (document.tag(value) != Field::Argument_as_string_to_argument) return;
  const auto entries = document.children(content);
  for (size_t i = 1; i < entries.size(); i += 2) collect_targets(document, entries[i], targets);
}

}  // namespace

std::vector<std::string_view> targets_of(const Document& program) {
  std::unordered_set<std::string_view> targets;
  const Value& module = program.field(program.root(), Field::ExportedProgram_graph_module);
  collect_graph_targets(program, program.field(module, Field::GraphModule_graph), targets);
  return {targets.begin(), targets.end()};
}

}  // namespace fxpress::schema
