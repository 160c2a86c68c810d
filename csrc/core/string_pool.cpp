#include "core/string_pool.h"

#include <algorithm>
#include <cstring>

#include "core/text_hash.h"

namespace fxpress::core {

namespace {
constexpr uint32_t kFree = 0xffffffffu;
constexpr size_t kBlock = size_t{1} << 14;
}  // namespace

StringPool::StringPool() : slots_(64, Slot{kFree, 0}) {}

StringId StringPool::intern(std::string_view text) {
  if (2 * (texts_.size() + 1) > slots_.size()) grow();
  const auto code = static_cast<uint32_t>(TextHash()(text));
  const size_t mask = slots_.size() - 1;
  size_t slot = code & mask;
  for (; slots_[slot].id != kFree; slot = (slot + 1) & mask) {
    if (slots_[slot].hash == code && texts_[slots_[slot].id] == text) {
      return StringId(slots_[slot].id);
    }
  }
  const auto id = static_cast<uint32_t>(texts_.size());
  texts_.push_back(store(text));
  slots_[slot] = {id, code};
  return StringId(id);
}

void StringPool::grow() {
  std::vector<Slot> old(slots_.size() * 4, Slot{kFree, 0});
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& entry : old) {
    if (entry.id == kFree) continue;
    size_t slot = entry.hash & mask;
    while (slots_[slot].id != kFree) slot = (slot + 1) & mask;
    slots_[slot] = entry;
  }
}

std::string_view StringPool::store(std::string_view text) {
  if (blocks_.empty() || block_used_ + text.size() > block_size_) {
    block_size_ = std::max(kBlock, text.size());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(block_size_));
    block_used_ = 0;
  }
  char* place = blocks_.back().get() + block_used_;
  if (!text.empty()) std::memcpy(place, text.data(), text.size());
  block_used_ += text.size();
  return {place, text.size()};
}

}  // namespace fxpress::core
