// Lists the names by which an argument refers to values of its graph.
#pragma once

#include <string_view>
#include <vector>

#include "schema/document.h"

namespace fxpress::schema {

// Returns the name in a TensorArgument, SymIntArgument or similar value; empty if it has none.
inline std::string_view name_of(const Document& document, const Value& value) {
  if (value.kind == ValueKind::kRecord) {
    switch (static_cast<Type>(value.type)) {
      case Type::TensorArgument:
        return document.text(document.field(value, Field::TensorArgument_name));
      case Type::CustomObjArgument:
        return document.text(document.field(value, Field::CustomObjArgument_name));
      case Type::TokenArgument:
        return document.text(document.field(value, Field::TokenArgument_name));
      default:
        return {};
    }
  }
  if (value.kind != ValueKind::kUnion) return {};
  switch (document.tag(value)) {
    case Field::SymIntArgument_as_name:
    case Field::SymFloatArgument_as_name:
    case Field::SymBoolArgument_as_name:
      return document.text(document.content(value));
    case Field::OptionalTensorArgument_as_tensor:
      return name_of(document, document.content(value));
    default:
      return {};
  }
}

// Appends the names in an argument. For a list: one text per item (for a list of lists, per inner
// item), which is empty if the item has no name. For a dict: the names in its values, or an empty
// text if there are none. For any other argument: its name, or an empty text if it has none.
inline void append_names(const Document& document, const Value& argument,
                         std::vector<std::string_view>& names) {
  const Value& content = document.content(argument);
  switch (document.tag(argument)) {
    case Field::Argument_as_tensors:
    case Field::Argument_as_sym_ints:
    case Field::Argument_as_sym_floats:
    case Field::Argument_as_sym_bools:
    case Field::Argument_as_optional_tensors:
      for (const Value& item : document.children(content)) names.push_back(name_of(document, item));
      return;
    case Field::Argument_as_nested_tensors:
      for (const Value& list : document.children(content)) {
        for (const Value& item : document.children(list)) {
          names.push_back(name_of(document, item));
        }
      }
      return;
    case Field::Argument_as_string_to_argument: {
      std::vector<std::string_view> inside;
      const auto entries = document.children(content);
      for (size_t i = 1; i < entries.size(); i += 2) append_names(document, entries[i], inside);
      std::erase(inside, std::string_view());
      if (inside.empty()) inside.emplace_back();
      names.insert(names.end(), inside.begin(), inside.end());
      return;
    }
    default:
      names.push_back(name_of(document, content));
  }
}

}  // namespace fxpress::schema
