// Interns strings: equal texts have one id, ids count from 0, and the pool owns the texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/ids.h"

namespace fxpress::core {

class StringPool {
 public:
  StringPool();
  StringPool(const StringPool&) = delete;
  StringPool& operator=(const StringPool&) = delete;

  StringId intern(std::string_view text);
  std::string_view text(StringId id) const { return texts_[id.value()]; }
  size_t size() const { return texts_.size(); }

 private:
  struct Slot {
    uint32_t id;    // or kFree
    uint32_t hash;  // the low bits of the hash of the text
  };
  void grow();
  std::string_view store(std::string_view text);

  std::vector<std::string_view> texts_;          // by id, into blocks_
  std::vector<Slot> slots_;                      // open addressing
  std::vector<std::unique_ptr<char[]>> blocks_;  // arenas that own the text
  size_t block_used_ = 0;                        // bytes used of the last block
  size_t block_size_ = 0;                        // bytes of the last block
};

}  // namespace fxpress::core
