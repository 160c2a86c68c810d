#include "serde/document.h"

#include <limits>

#include "core/check.h"

namespace fxpress::serde {

void Document::write(const Value& value, Sink& sink) const {
  const std::span<const Value> inside =
      value.kind >= ValueKind::kList ? children(value) : std::span<const Value>();
  switch (value.kind) {
    case ValueKind::kNull:
      return sink.null();
    case ValueKind::kBool:
      return sink.boolean(value.integer != 0);
    case ValueKind::kInt:
      return sink.integer(value.integer);
    case ValueKind::kBigInt:
      return sink.big_integer(text(value));
    case ValueKind::kReal:
      return sink.real(value.real);
    case ValueKind::kString:
      return sink.string(text(value));
    case ValueKind::kList:
      sink.begin_list();
      for (const Value& item : inside) write(item, sink);
      return sink.end_list();
    case ValueKind::kMap:
      sink.begin_map();
      for (size_t i = 0; i < inside.size(); i += 2) {
        sink.key(text(inside[i]));
        write(inside[i + 1], sink);
      }
      return sink.end_map();
    case ValueKind::kRecord:
      sink.begin_record(schema_->type(value.type));
      for (size_t i = 0; i < inside.size(); ++i) {
        sink.field(i);
        write(inside[i], sink);
      }
      return sink.end_record();
    case ValueKind::kUnion:
      sink.begin_union(schema_->type(value.type), value.count);
      write(inside[0], sink);
      return sink.end_union();
  }
}

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
  if (!levels_.empty() && levels_.back().kind == ValueKind::kRecord) {
    pending_[levels_.back().start + levels_.back().field] = value;
    return;
  }
  pending_.push_back(value);
}

void DocumentBuilder::open(ValueKind kind, const TypeInfo* type, uint32_t field, size_t reserve) {
  const auto position = type == nullptr
                            ? uint16_t{0}
                            : static_cast<uint16_t>(type - &document_.schema_->type(uint16_t{0}));
  levels_.push_back({kind, position, field, static_cast<uint32_t>(pending_.size())});
  Value unset;
  unset.kind = kUnset;
  pending_.resize(pending_.size() + reserve, unset);
}

void DocumentBuilder::close() {
  const Level level = levels_.back();
  levels_.pop_back();
  const size_t count = pending_.size() - level.start;
  FXPRESS_CHECK(count <= std::numeric_limits<uint32_t>::max(), "a list is too long");
  Value value;
  value.kind = level.kind;
  value.type = level.type;
  value.count = level.kind == ValueKind::kUnion ? level.field : static_cast<uint32_t>(count);
  value.place = document_.values_.size();
  document_.values_.insert(document_.values_.end(), pending_.begin() + level.start, pending_.end());
  pending_.resize(level.start);
  add(value);
}

bool DocumentBuilder::has_field(size_t position) const {
  return pending_[levels_.back().start + position].kind != kUnset;
}

Value DocumentBuilder::make_text(ValueKind kind, std::string_view text) {
  FXPRESS_CHECK(text.size() <= std::numeric_limits<uint32_t>::max(), "a text is too long");
  Value value;
  value.kind = kind;
  value.count = static_cast<uint32_t>(text.size());
  value.place = document_.text_.size();
  document_.text_.append(text);
  return value;
}

void DocumentBuilder::begin_record(const TypeInfo& type) {
  open(ValueKind::kRecord, &type, 0, type.fields.size());
}

void DocumentBuilder::field(size_t position) {
  levels_.back().field = static_cast<uint32_t>(position);
}

void DocumentBuilder::end_record() {
  close();
}

void DocumentBuilder::begin_union(const TypeInfo& type, size_t position) {
  open(ValueKind::kUnion, &type, static_cast<uint32_t>(position), 0);
}

void DocumentBuilder::end_union() {
  close();
}

void DocumentBuilder::begin_list() {
  open(ValueKind::kList, nullptr, 0, 0);
}

void DocumentBuilder::end_list() {
  close();
}

void DocumentBuilder::begin_map() {
  open(ValueKind::kMap, nullptr, 0, 0);
}

void DocumentBuilder::key(std::string_view key) {
  add(make_text(ValueKind::kString, key));
}

void DocumentBuilder::end_map() {
  close();
}

void DocumentBuilder::string(std::string_view text) {
  add(make_text(ValueKind::kString, text));
}

void DocumentBuilder::big_integer(std::string_view digits) {
  add(make_text(ValueKind::kBigInt, digits));
}

void DocumentBuilder::integer(int64_t value) {
  Value made;
  made.kind = ValueKind::kInt;
  made.integer = value;
  add(made);
}

void DocumentBuilder::real(double value) {
  Value made;
  made.kind = ValueKind::kReal;
  made.real = value;
  add(made);
}

void DocumentBuilder::boolean(bool value) {
  Value made;
  made.kind = ValueKind::kBool;
  made.integer = value ? 1 : 0;
  add(made);
}

void DocumentBuilder::null() {
  add(Value());
}

}  // namespace fxpress::serde
