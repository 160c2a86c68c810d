#include "tracking/module_path.h"

#include <array>
#include <optional>

namespace fxpress::tracking {

namespace {

constexpr std::array<std::string_view, 3> kTables = {"._modules[", "._parameters[", "._buffers["};

struct Subscript {
  std::string_view key;
  size_t end = 0;  // behind the bracket, in the path
};

// The subscript of a table that begins at `begin`.
std::optional<Subscript> subscript_at(std::string_view path, size_t begin) {
  for (const std::string_view table : kTables) {
    if (path.compare(begin, table.size(), table) != 0) continue;
    const size_t quote = begin + table.size();
    if (quote >= path.size() || (path[quote] != '\'' && path[quote] != '"')) return std::nullopt;
    const size_t close = path.find_first_of("'\"]", quote + 1);
    if (close == std::string_view::npos || close == quote + 1) return std::nullopt;
    if (path[close] != path[quote] || close + 1 >= path.size() || path[close + 1] != ']') {
      return std::nullopt;
    }
    return Subscript{path.substr(quote + 1, close - quote - 1), close + 2};
  }
  return std::nullopt;
}

}  // namespace

std::string without_tables(std::string_view path) {
  std::string result;
  result.reserve(path.size());
  size_t done = 0;
  for (size_t at = path.find("._"); at != std::string_view::npos; at = path.find("._", at)) {
    const std::optional<Subscript> found = subscript_at(path, at);
    if (!found) {
      ++at;
      continue;
    }
    result.append(path, done, at - done).append(1, '.').append(found->key);
    done = at = found->end;
  }
  return result.append(path, done);
}

}  // namespace fxpress::tracking
