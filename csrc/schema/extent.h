// Checks that the size of a tensor in bytes fits into 64 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "schema/document.h"

namespace fxpress::schema {

// Whether the tensor of a TensorMeta has a size in bytes that fits into 64 bits. Symbolic sizes,
// strides and offsets are ignored. torch does not check the size of a meta tensor. If the size
// overflowed, torch would allocate too little memory for a copy of the tensor on another device.
inline bool is_countable(const Document& document, const Value& meta) {
  constexpr int64_t kMostBytes = 16;  // maximum size of an element
  constexpr auto kMost = std::numeric_limits<int64_t>::max() / kMostBytes;
  const auto known = [&](const Value& number, int64_t otherwise) {
    const Value& content = document.content(number);
    return content.kind == ValueKind::kInt ? content.integer : otherwise;
  };
  const auto sizes = document.children(document.field(meta, Field::TensorMeta_sizes));
  const auto strides = document.children(document.field(meta, Field::TensorMeta_strides));
  int64_t last = known(document.field(meta, Field::TensorMeta_storage_offset), 0);
  int64_t elements = 1;
  if (last > kMost) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = std::max<int64_t>(known(sizes[i], 1), 1);
    const int64_t stride = i < strides.size() ? known(strides[i], 0) : 0;
    if (__builtin_mul_overflow(elements, size, &elements) || elements > kMost) return false;
    int64_t reach = 0;
    if (__builtin_mul_overflow(size - 1, stride, &reach) ||
        __builtin_add_overflow(last, reach, &last) || last > kMost) {
      return false;
    }
  }
  return true;
}

}  // namespace fxpress::schema
