#include "capture/text/export_root.h"

#include "core/characters.h"

namespace fxpress::capture {

namespace {

constexpr std::string_view kRoot = "_export_root";
constexpr std::string_view kOwner = "L['self'].";
constexpr std::string_view kFlatOwner = "self___";

bool ends_with_owner(std::string_view text) {
  return text.ends_with(kOwner) && (text.size() == kOwner.size() ||
                                    !core::is_name_part(text[text.size() - kOwner.size() - 1]));
}

// Returns whether `text` ends with a name that Dynamo made from "L['self']." or, for objects in
// containers, from "self'].". A prefix may precede it: "dict_type_L__self____export_root_x".
bool ends_with_flat_owner(std::string_view text) {
  return text.ends_with(kFlatOwner) &&
         (text.size() == kFlatOwner.size() || text[text.size() - kFlatOwner.size() - 1] == '_');
}

}  // namespace

bool mentions_export_root(std::string_view name) {
  return name.find(kRoot) != std::string_view::npos;
}

std::string without_export_root(std::string_view name) {
  std::string result;
  size_t done = 0;  // number of characters of `name` that are processed
  for (size_t at = name.find(kRoot); at != std::string_view::npos; at = name.find(kRoot, done)) {
    const std::string_view before = name.substr(0, at);
    const size_t end = at + kRoot.size();
    const char next = end < name.size() ? name[end] : '\0';
    const bool is_attribute = next == '_' && ends_with_flat_owner(before);
    const bool is_qualified = next == '.' && at == 0;
    const bool is_source = !core::is_name_part(next) && ends_with_owner(before);
    const bool is_ours = is_attribute || is_qualified || is_source;
    result += name.substr(done, (is_ours ? at : end) - done);
    if (is_source && at != 0) result.pop_back();  // removes the dot before the module
    done = end + (is_attribute || is_qualified ? 1 : 0);
  }
  return result += name.substr(done);
}

}  // namespace fxpress::capture
