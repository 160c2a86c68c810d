// Which names records of an archive may have.
#pragma once

#include <algorithm>
#include <string_view>

namespace fxpress::archive {

// What is wrong with a path in an archive: it is no file, or leads out of it. Null when nothing is.
inline const char* problem_of_name(std::string_view path) {
  if (path.empty()) return "is empty";
  const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; };
  if (path.find('\0') != std::string_view::npos) return "has a zero byte";
  if (std::any_of(path.begin(), path.end(), is_control)) return "has a control character";
  if (path.front() == '/' || path.find('\\') != std::string_view::npos) {
    return "is not a path in the archive";
  }
  for (size_t at = 0; at <= path.size();) {
    const size_t next = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, next - at);
    if (part == ".." || part == ".") return "leads to another folder";
    at = next + 1;
  }
  return path.back() == '/' ? "is that of a folder" : nullptr;
}

}  // namespace fxpress::archive
