// Removes the module that wraps the callable during tracing from names of captured objects.
#pragma once

#include <string>
#include <string_view>

namespace fxpress::capture {

// Returns the name without the wrapping module, which is the attribute `_export_root` of `self`, in
// attribute names ("L__self____export_root_x"), sources ("L['self']._export_root.x") and qualified
// names ("_export_root.x"). Does not change a user's name that contains "_export_root" elsewhere.
std::string without_export_root(std::string_view name);

// Whether without_export_root() may change the name; a cheap test to call first.
bool mentions_export_root(std::string_view name);

}  // namespace fxpress::capture
