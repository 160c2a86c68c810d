#include "schema/document.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/text_hash.h"

namespace fxpress::schema {

void DocumentBuilder::reserve(size_t values, size_t text) {
  document_.values_.reserve(values);
  document_.text_.reserve(text);
}

Document DocumentBuilder::finish() {
  FXPRESS_CHECK(levels_.empty() && pending_.size() == 1, "a document is not complete");
  document_.root_ = pending_[0];
  return std::move(document_);
}

void DocumentBuilder::add(const Value& value) {
  if (levels_.empty() || levels_.back().kind < ValueKind::kRecord) {
    pending_.push_back(value);
    return;
  }
  const Level& level = levels_.back();
  const size_t field = level.kind == ValueKind::kUnion ? 0 : level.field;
  document_.values_[level.start + field] = value;
}

// Opens a record or a union. The number of its values is known, so they are allocated at once.
void DocumentBuilder::open(ValueKind kind, const TypeInfo& type, uint32_t field, size_t size) {
  const auto position = static_cast<uint16_t>(&type - &document_.schema_->type(uint16_t{0}));
  levels_.push_back({kind, position, field, document_.values_.size()});
  document_.values_.append(Value{.kind = kUnset, .integer = 0}, size);
}

void DocumentBuilder::close(uint32_t count) {
  const Level level = levels_.back();
  levels_.pop_back();
  add({.kind = level.kind, .type = level.type, .count = count, .place = level.start});
}

// Opens a list or a map. Its values stay in pending_ until close() moves them to the document.
void DocumentBuilder::open(ValueKind kind) {
  levels_.push_back({kind, 0, 0, pending_.size()});
}

void DocumentBuilder::close() {
  const auto values = std::span<const Value>(pending_).subspan(levels_.back().start);
  const size_t count = values.size();
  FXPRESS_CHECK(count <= std::numeric_limits<uint32_t>::max(), "a list is too long");
  levels_.back().start = document_.values_.size();
  document_.values_.append(values);
  pending_.resize(pending_.size() - count);
  close(static_cast<uint32_t>(count));
}

bool DocumentBuilder::has_field(size_t position) const {
  return document_.values_[levels_.back().start + position].kind != kUnset;
}

Value DocumentBuilder::make_text(ValueKind kind, std::string_view text) {
  FXPRESS_CHECK(text.size() <= std::numeric_limits<uint32_t>::max(), "a text is too long");
  const Value value{
      .kind = kind, .count = static_cast<uint32_t>(text.size()), .place = document_.text_.size()};
  document_.text_.append(std::span<const char>(text));
  return value;
}

void DocumentBuilder::end_record() {
  const TypeInfo& type = document_.schema_->type(levels_.back().type);
  close(static_cast<uint32_t>(type.fields.size()));
}

namespace {

void collect_targets(const Document& document, const Value& value, core::TextViewSet& targets);

void collect_graph_targets(const Document& document, const Value& graph,
                           core::TextViewSet& targets) {
  for (const Value& node : document.children(document.field(graph, Field::Graph_nodes))) {
    targets.insert(document.text(document.field(node, Field::Node_target)));
    for (const Value& input : document.children(document.field(node, Field::Node_inputs))) {
      collect_targets(document, document.field(input, Field::NamedArgument_arg), targets);
    }
  }
}

void collect_targets(const Document& document, const Value& value, core::TextViewSet& targets) {
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
  core::TextViewSet targets;
  const Value& module = program.field(program.root(), Field::ExportedProgram_graph_module);
  collect_graph_targets(program, program.field(module, Field::GraphModule_graph), targets);
  std::vector<std::string_view> sorted(targets.begin(), targets.end());
  std::ranges::sort(sorted);
  return sorted;
}

}  // namespace fxpress::schema
