// Paths of modules as users write them.
#pragma once

#include <string>
#include <string_view>

namespace fxpress::tracking {

// The path with every `._modules['k']`, `._parameters['k']` and `._buffers['k']` written `.k`, in
// either kind of quotes. Keys that contain a quote or `]` stay as they are.
std::string without_tables(std::string_view path);

}  // namespace fxpress::tracking
