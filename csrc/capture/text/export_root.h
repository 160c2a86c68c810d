// Names of objects that were captured below the module that wraps them while they are traced.
#pragma once

#include <string>
#include <string_view>

namespace fxpress::capture {

// The name as it would be without that module, which is the attribute `_export_root` of `self`:
// attribute names ("L__self____export_root_x"), sources ("L['self']._export_root.x") and qualified
// names ("_export_root.x"). What the user called alike stays as it is.
std::string without_export_root(std::string_view name);

// Whether a name can be one of those; to be asked first.
bool mentions_export_root(std::string_view name);

}  // namespace fxpress::capture
