// Defines the structures of a zip file (PKWARE APPNOTE 6.3) that fxpress writes and reads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fxpress::archive {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDataDescriptor = 0x08074b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr uint32_t kEnd = 0x06054b50;

constexpr size_t kLocalHeaderSize = 30;
constexpr size_t kCentralHeaderSize = 46;
constexpr size_t kEnd64Size = 56;
constexpr size_t kEnd64LocatorSize = 20;
constexpr size_t kEndSize = 22;

constexpr uint16_t kIsEncrypted = 1;
constexpr uint16_t kHasDescriptor = 1U << 3;  // flag: checksum and sizes follow the data
constexpr uint16_t kNameIsUtf8 = 1U << 11;

constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;

// A field with this value has its number in the extra field or in the 64-bit end record instead.
constexpr uint32_t kElsewhere32 = 0xFFFFFFFF;
constexpr uint16_t kElsewhere16 = 0xFFFF;
constexpr uint16_t kExtra64 = 1;  // tag of the extra field for 64-bit numbers

}  // namespace fxpress::archive
