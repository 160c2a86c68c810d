// Removes the module that Dynamo wraps around the callable from names of captured objects.
#pragma once

#include <string>
#include <string_view>

namespace fxpress::capture {

// Returns the name without the wrapping module, which is the attribute `_export_root` of `self`.
// Cleans attribute names ("L__self____export_root_x"), sources ("L['self']._export_root.x") and
// qualified names ("_export_root.x"). Keeps "_export_root" in other positions, where it belongs to
// the user.
std::string without_export_root(std::string_view name);

// Returns false if without_export_root(name) certainly equals `name`. This test is cheap.
bool mentions_export_root(std::string_view name);

}  // namespace fxpress::capture
