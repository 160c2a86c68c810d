#include "schema/schema.h"

#include <algorithm>

namespace fxpress::schema {

namespace {

constexpr size_t kTypes = static_cast<size_t>(Type::kCount);

constexpr std::array<std::string_view, kTypes> kTypeNames = {
#define FXPRESS_TYPE(name) #name,
#define FXPRESS_FIELD(type, name, rule)
#include "schema/schema.def"
#undef FXPRESS_FIELD
#undef FXPRESS_TYPE
};

struct KnownField {
  Type type;
  std::string_view name;
  Rule rule;
};
constexpr std::array<KnownField, kFields> kKnownFields = {{
#define FXPRESS_TYPE(name)
#define FXPRESS_FIELD(type, name, rule) {Type::type, #name, Rule::rule},
#include "schema/schema.def"
#undef FXPRESS_FIELD
#undef FXPRESS_TYPE
}};

Field known_field(size_t type, std::string_view name) {
  for (size_t i = 0; i < kFields; ++i) {
    if (static_cast<size_t>(kKnownFields[i].type) == type && kKnownFields[i].name == name) {
      return static_cast<Field>(i);
    }
  }
  return Field::kUnknown;
}

// Fields that are not in schema.def need a rule too, because schema objects contain their texts.
Rule rule_of(Field field) {
  return field == Field::kUnknown ? Rule::kLine : kKnownFields[static_cast<size_t>(field)].rule;
}

}  // namespace

int TypeInfo::find(std::string_view field) const {
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name == field) return static_cast<int>(i);
  }
  return -1;
}

Type Schema::owner(Field field) {
  return kKnownFields[static_cast<size_t>(field)].type;
}

Schema::Schema(std::span<const NewType> types) {
  places_.fill(-1);
  types_.resize(kTypes);
  for (size_t i = 0; i < kTypes; ++i) by_name_.emplace(kTypeNames[i], static_cast<uint16_t>(i));
  for (const NewType& type : types) {
    if (by_name_.emplace(type.name, static_cast<uint16_t>(types_.size())).second) {
      types_.emplace_back();
    }
    TypeInfo& info = types_[by_name_.at(type.name)];
    info.name = type.name;
    info.is_union = type.is_union;
  }
  for (const TypeInfo& info : types_) {
    if (info.name.empty()) {
      const auto missing = static_cast<size_t>(&info - types_.data());
      throw SchemaError("torch's schema does not define the type " +
                        std::string(kTypeNames[missing]));
    }
  }
  for (const NewType& type : types) {
    const uint16_t position = by_name_.at(type.name);
    for (const NewField& field : type.fields) {
      const Field id = known_field(position, field.name);
      std::vector<FieldInfo>& fields = types_[position].fields;
      if (id != Field::kUnknown) {
        places_[static_cast<size_t>(id)] = static_cast<int>(fields.size());
      }
      fields.push_back({id, parse_shape(field.shape), field.required, rule_of(id), false,
                        field.name, '"' + field.name + "\": ", field.default_value});
    }
  }
  compare();
  find_texts();
  check_rules();
}

// Sets has_text. A type may contain itself, so the search repeats until nothing changes.
void Schema::find_texts() {
  has_text_.assign(shapes_.size(), false);
  const auto has = [&](Shape shape) {
    switch (shape.kind) {
      case Kind::kString:
      case Kind::kMap:
        return true;
      case Kind::kOptional:
      case Kind::kList:
        return static_cast<bool>(has_text_[shape.of]);
      case Kind::kRecord:
      case Kind::kUnion:
        return std::ranges::any_of(types_[shape.of].fields, [&](const FieldInfo& field) {
          return static_cast<bool>(has_text_[field.shape]);
        });
      default:
        return false;
    }
  };
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      if (has_text_[i] || !has(shapes_[i])) continue;
      has_text_[i] = is_new = true;
    }
  }
  for (TypeInfo& info : types_) {
    for (FieldInfo& field : info.fields) field.has_text = has_text_[field.shape];
  }
}

bool Schema::is_text(uint16_t shape) const {
  const Shape known = shapes_[shape];
  if (known.kind == Kind::kOptional || known.kind == Kind::kList) return is_text(known.of);
  return known.kind == Kind::kString || known.kind == Kind::kMap;
}

void Schema::check_rules() const {
  for (const TypeInfo& info : types_) {
    for (const FieldInfo& field : info.fields) {
      if (!is_text(field.shape) || field.rule != Rule::kNone) continue;
      throw SchemaError("the strings of " + info.name + "." + field.name + " do not have a rule");
    }
  }
}

void Schema::compare() {
  for (size_t i = 0; i < kTypes; ++i) {
    if (types_[i].is_union) continue;
    for (const FieldInfo& field : types_[i].fields) {
      if (field.id == Field::kUnknown) difference_ = types_[i].name + "." + field.name;
    }
  }
  for (size_t i = 0; i < kFields; ++i) {
    const TypeInfo& owner = type(kKnownFields[i].type);
    if (places_[i] < 0 && !owner.is_union) {
      difference_ = owner.name + "." + std::string(kKnownFields[i].name);
    }
  }
}

int Schema::find(std::string_view type) const {
  const auto found = by_name_.find(std::string(type));
  return found == by_name_.end() ? -1 : found->second;
}

uint16_t Schema::parse_shape(std::string_view text) {
  const size_t space = text.find(' ');
  const std::string_view head = text.substr(0, space);
  if (space != std::string_view::npos) {
    const uint16_t of = parse_shape(text.substr(space + 1));
    if (head == "optional") return add_shape({Kind::kOptional, of});
    if (head == "list") return add_shape({Kind::kList, of});
    if (head == "map") return add_shape({Kind::kMap, of});
  } else {
    if (head == "bool") return add_shape({Kind::kBool, 0});
    if (head == "int") return add_shape({Kind::kInt, 0});
    if (head == "float") return add_shape({Kind::kFloat, 0});
    if (head == "str") return add_shape({Kind::kString, 0});
    if (const int type = find(head); type >= 0) {
      const auto of = static_cast<uint16_t>(type);
      return add_shape({types_[of].is_union ? Kind::kUnion : Kind::kRecord, of});
    }
  }
  throw SchemaError("torch's schema has a field of an unknown shape: " + std::string(text));
}

uint16_t Schema::add_shape(Shape shape) {
  const auto found = std::ranges::find_if(shapes_, [&](const Shape& other) {
    return other.kind == shape.kind && other.of == shape.of;
  });
  const auto position = static_cast<uint16_t>(found - shapes_.begin());
  if (found == shapes_.end()) shapes_.push_back(shape);
  return position;
}

}  // namespace fxpress::schema
