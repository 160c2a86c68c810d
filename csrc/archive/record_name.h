// Defines and checks names of records in an archive.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace fxpress::archive {

// The records that describe the archive itself. ZipWriter::finish() adds them.
inline constexpr const char* kVersionRecord = ".data/version";
inline constexpr const char* kByteOrderRecord = "byteorder";
inline constexpr const char* kSerializationIdRecord = ".data/serialization_id";
inline constexpr std::array kRecordsOfWriter = {kVersionRecord, kByteOrderRecord,
                                                kSerializationIdRecord};

// Returns null if `path` can be the name of a record. Otherwise returns the reason why it cannot:
// it is not a file's path, or leads out of the archive.
inline const char* problem_of_name(std::string_view path) {
  if (path.empty()) return "is empty";
  bool has_control = false;  // without an early exit, the loop over all characters is faster
  for (const char c : path) has_control |= (c >= 0 && c < ' ') || c == 0x7f;
  if (has_control) {
    const bool has_zero = path.find('\0') != std::string_view::npos;
    return has_zero ? "contains a zero byte" : "contains a control character";
  }
  if (path.front() == '/' || path.find('\\') != std::string_view::npos) {
    return "begins with / or contains a backslash";
  }
  for (size_t at = 0; at <= path.size();) {
    const size_t next = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, next - at);
    if (part == ".." || part == ".") return "leads to another folder";
    at = next + 1;
  }
  return path.back() == '/' ? "is the path of a folder" : nullptr;
}

}  // namespace fxpress::archive
