#include "core/string_pool.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace fxpress::core {

namespace {
constexpr uint32_t kFree = 0xffffffffu;
constexpr size_t kBlock = size_t{1} << 14;

size_t hash(std::string_view text) {
  return std::hash<std::string_view>{}(text);
}
}  // namespace

StringPool::StringPool() : slots_(64, kFree) {}

StringId StringPool::intern(std::string_view text) {
  if (2 * (texts_.size() + 1) > slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  size_t slot = hash(text) & mask;
  while (slots_[slot] != kFree) {
    if (texts_[slots_[slot]] == text) return StringId(slots_[slot]);
    slot = (slot + 1) & mask;
  }
  const auto id = static_cast<uint32_t>(texts_.size());
  texts_.push_back(store(text));
  slots_[slot] = id;
  return StringId(id);
}

void StringPool::grow() {
  slots_.assign(slots_.size() * 2, kFree);
  const size_t mask = slots_.size() - 1;
  for (uint32_t id = 0; id < texts_.size(); ++id) {
    size_t slot = hash(texts_[id]) & mask;
    while (slots_[slot] != kFree) slot = (slot + 1) & mask;
    slots_[slot] = id;
  }
}

std::string_view StringPool::store(std::string_view text) {
  if (blocks_.empty() || block_used_ + text.size() > block_size_) {
    block_size_ = std::max(kBlock, text.size());
    blocks_.push_back(std::make_unique<char[]>(block_size_));
    block_used_ = 0;
  }
  char* place = blocks_.back().get() + block_used_;
  if (!text.empty()) std::memcpy(place, text.data(), text.size());
  block_used_ += text.size();
  return {place, text.size()};
}

}  // namespace fxpress::core
