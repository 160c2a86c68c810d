// Values of a JSON text as Python sees them: made only when somebody asks.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/budget.h"
#include "py/object.h"
#include "schema/json_index.h"

namespace fxpress::view {

// A text, and where its values are.
struct JsonText {
  Ref bytes;
  schema::JsonIndex index;
};

class JsonValue {
 public:
  // Reads a text of JSON, which is charged to the budget: ValueError where it is none.
  JsonValue(const pybind11::bytes& text, core::Budget& budget);
  JsonValue(std::shared_ptr<const JsonText> text, uint32_t number)
      : text_(std::move(text)), number_(number) {}

  const std::shared_ptr<const JsonText>& text() const { return text_; }
  const schema::JsonIndex& index() const { return text_->index; }
  uint32_t number() const { return number_; }

  // The value of an object with this key: TypeError when this is no object, KeyError when there is
  // no such value.
  JsonValue field(std::string_view key) const;
  // What json.loads makes of it, and an estimate of the bytes that this takes.
  Ref load() const;
  uint64_t cost() const;

 private:
  std::shared_ptr<const JsonText> text_;
  uint32_t number_;  // in the index
};

// TypeError, unless the value is of the kind.
void expect_object(const schema::JsonIndex& index, uint32_t value);
void expect_list(const schema::JsonIndex& index, uint32_t value);
void expect_text(const schema::JsonIndex& index, uint32_t value);
// The value of an object with this key; TypeError or KeyError as above.
uint32_t field_of(const schema::JsonIndex& index, uint32_t object, std::string_view key);
// What json.loads makes of JSON, and an estimate of the bytes that this takes for a value.
Ref load_json(std::string_view text);
uint64_t cost_of(const schema::JsonIndex& index, uint32_t value);

}  // namespace fxpress::view
