// Interns strings. Equal strings have one id, ids count from 0, and the pool owns the characters.
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
    uint32_t id;    // id of the text; kFree if the slot is free
    uint32_t hash;  // the low bits of the hash of the text
  };
  void grow();
  std::string_view store(std::string_view text);

  std::vector<std::string_view> texts_;          // index: id; views of blocks_
  std::vector<Slot> slots_;                      // hash table with open addressing
  std::vector<std::unique_ptr<char[]>> blocks_;  // the characters of the texts
  size_t block_used_ = 0;                        // used bytes of the last block
  size_t block_size_ = 0;                        // size of the last block in bytes
};

}  // namespace fxpress::core
