// Archives that are written and read again, and damaged ones.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "archive/directory.h"
#include "archive/file.h"
#include "archive/transfer.h"
#include "archive/zip_writer.h"
#include "support.h"

using namespace fxpress::archive;
using fxpress::core::testing::Random;

namespace {

class MemorySink final : public ByteSink {
 public:
  void write(Bytes more) override { bytes.insert(bytes.end(), more.begin(), more.end()); }
  std::vector<std::byte> bytes;
};

Bytes bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

using Records = std::map<std::string, std::string>;

std::vector<std::byte> archive_of(const Records& records) {
  MemorySink sink;
  ZipWriter writer(sink, "root", nullptr);
  for (const auto& [name, text] : records) {
    writer.begin(name, text.size());
    writer.append(bytes_of(text));
    writer.end();
  }
  writer.finish();
  return sink.bytes;
}

std::string text_of(const Source& source, const Record& record) {
  std::string text(record.size, '\0');
  source.read(record.offset, std::as_writable_bytes(std::span(text)));
  return text;
}

Transfer all_of(const Record* record, std::byte* to = nullptr) {
  return {record, 0, record->size, to};
}

const Records kSome = {{"empty", ""}, {"folder/one", "1"}, {"large", std::string(300'000, 'x')}};

}  // namespace

TEST_CASE("what is written is read again") {
  const std::vector<std::byte> bytes = archive_of(kSome);
  const MemorySource source(bytes);
  const Directory directory(source);
  CHECK(directory.root() == "root");
  CHECK(directory.records().size() == kSome.size() + 3);
  for (const auto& [name, text] : kSome) {
    const Record* record = directory.find(name);
    REQUIRE(record != nullptr);
    CHECK(record->offset % 64 == 0);
    CHECK(text_of(source, *record) == text);
    CHECK(record->crc == crc32(0, bytes_of(text)));
  }
  CHECK(text_of(source, *directory.find(".data/version")) == "6\n");
  CHECK(text_of(source, *directory.find(".data/serialization_id")).size() == 40);
  CHECK(directory.find("missing") == nullptr);
}

TEST_CASE("a writer refuses what makes no archive") {
  MemorySink sink;
  ZipWriter writer(sink, "root", nullptr);
  CHECK_THROWS_AS(writer.append(bytes_of("x")), ArchiveError);
  CHECK_THROWS_AS(writer.end(), ArchiveError);
  writer.begin("a", 2);
  CHECK_THROWS_AS(writer.begin("b", 0), ArchiveError);
  CHECK_THROWS_AS(writer.append(bytes_of("xyz")), ArchiveError);
  writer.append(bytes_of("x"));
  CHECK_THROWS_AS(writer.end(), ArchiveError);
  writer.append(bytes_of("y"));
  writer.end();
  CHECK_THROWS_AS(writer.begin("a", 0), ArchiveError);
  CHECK_THROWS_AS(writer.begin("", 0), ArchiveError);
  CHECK_THROWS_AS(writer.begin(std::string("a\0b", 3), 0), ArchiveError);
  writer.finish();
  CHECK_THROWS_AS(writer.begin("c", 0), ArchiveError);
}

TEST_CASE("every cut and every flipped byte of an archive is an error or changes nothing read") {
  const Records records = {{"a", "some text"}, {"b/c", "more"}};
  const std::vector<std::byte> whole = archive_of(records);
  for (size_t size = 0; size < whole.size(); ++size) {
    const MemorySource source(Bytes(whole).first(size));
    CHECK_THROWS_AS(Directory{source}, ArchiveError);
  }
  Random random(1);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::vector<std::byte> damaged = whole;
    damaged[at] ^= static_cast<std::byte>(1 + random.below(255));
    const MemorySource source(damaged);
    try {
      const Directory directory(source);
      for (const Record& record : directory.records()) {
        CHECK(record.offset + record.stored <= damaged.size());
        Progress progress(nullptr);
        if (record.is_deflated) continue;
        if (transfer(source, {all_of(&record)}, {}, progress).front() != record.crc) continue;
        const auto expected = records.find(record.name);
        if (expected != records.end()) CHECK(text_of(source, record) == expected->second);
      }
    } catch (const ArchiveError&) {
      continue;
    }
  }
}

TEST_CASE("names that lead out of the archive are refused") {
  for (const std::string name : {"../x", "a/..", "./xx", "a\\bc", "/abc", "a//."}) {
    MemorySink sink;
    ZipWriter writer(sink, "root", nullptr);
    if (name != "/abc") CHECK_THROWS_AS(writer.begin(name, 0), ArchiveError);
    std::vector<std::byte> bytes = archive_of({{"abcd", "x"}});
    const std::string written = "root/abcd";
    const std::string other = name == "/abc" ? "/root/abc" : "root/" + name;
    const auto same = [](std::byte a, char b) { return a == static_cast<std::byte>(b); };
    for (auto at = bytes.begin();;) {
      at = std::search(at, bytes.end(), written.begin(), written.end(), same);
      if (at == bytes.end()) break;
      std::ranges::transform(other, at, [](char c) { return static_cast<std::byte>(c); });
    }
    const MemorySource source(bytes);
    CHECK_THROWS_AS(Directory{source}, ArchiveError);
  }
}

TEST_CASE("records that share bytes are refused") {
  std::vector<std::byte> bytes = archive_of({{"aa", "x"}, {"bb", "x"}});
  // The directory's entry of bb is the entry of aa.
  const std::string path = "root/bb";
  const auto found =
      std::search(bytes.rbegin(), bytes.rend(), path.rbegin(), path.rend(),
                  [](std::byte a, char b) { return a == static_cast<std::byte>(b); });
  REQUIRE(found != bytes.rend());
  auto entry = found.base() - static_cast<std::ptrdiff_t>(path.size());
  std::fill_n(entry - 4, 4, std::byte{0});  // where its header is
  const MemorySource source(bytes);
  CHECK_THROWS_WITH_AS(Directory{source}, doctest::Contains("root/bb"), ArchiveError);
}

TEST_CASE("data that a local header moves into the next record is refused") {
  std::vector<std::byte> bytes = archive_of({{"a", std::string(300, 'x')}, {"b", "y"}});
  bytes[28] = std::byte{200};  // the size of the padding between the header and the data
  const MemorySource source(bytes);
  CHECK_THROWS_WITH_AS(Directory{source}, doctest::Contains("root/a"), ArchiveError);
}

TEST_CASE("records are read by several threads, and damaged ones are named") {
  Records records;
  Random random(2);
  for (int i = 0; i < 40; ++i) {
    std::string text(random.below(3) == 0 ? random.below(100) : 1'000'000 + random.below(9'000'000),
                     static_cast<char>('a' + i % 26));
    records.emplace("record" + std::to_string(i), std::move(text));
  }
  std::vector<std::byte> bytes = archive_of(records);
  const MemorySource source(bytes);
  const Directory directory(source);
  std::vector<std::string> read;
  std::vector<Transfer> transfers;
  for (const auto& [name, text] : records) read.emplace_back(text.size(), '\0');
  size_t i = 0;
  for (const auto& [name, text] : records) {
    auto* to = reinterpret_cast<std::byte*>(read[i++].data());
    transfers.push_back(all_of(directory.find(name), to));
  }
  std::vector<uint32_t> expected;
  for (const Transfer& each : transfers) expected.push_back(each.record->crc);
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    for (std::string& text : read) std::ranges::fill(text, '\0');
    Progress progress(nullptr);
    CHECK(transfer(source, transfers, {true, threads}, progress) == expected);
    i = 0;
    for (const auto& [name, text] : records) CHECK(read[i++] == text);
  }
  const size_t damaged = 17;
  bytes[transfers[damaged].record->offset + transfers[damaged].record->size / 2] ^= std::byte{1};
  Progress progress(nullptr);
  const std::vector<uint32_t> found = transfer(source, transfers, {true, 4}, progress);
  for (i = 0; i < found.size(); ++i) CHECK((found[i] == expected[i]) == (i != damaged));
  CHECK(transfer(source, transfers, {false, 4}, progress).empty());
}

TEST_CASE("records are read in parts") {
  std::string text(9'000'000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 % 251);
  const std::vector<std::byte> bytes = archive_of({{"large", text}, {"small", "small"}});
  const MemorySource source(bytes);
  const Directory directory(source);
  const Record* large = directory.find("large");
  const Record* small = directory.find("small");
  std::string read(text.size(), '\0');
  auto* to = reinterpret_cast<std::byte*>(read.data());
  const uint64_t half = 4'999'999;
  Progress progress(nullptr);
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    std::ranges::fill(read, '\0');
    const std::vector<uint32_t> crcs = transfer(source,
                                                {{large, 0, half, to},
                                                 {small, 2, 0, nullptr},
                                                 {large, half, large->size - half, to + half}},
                                                {true, threads}, progress);
    CHECK(read == text);
    CHECK(crcs[1] == 0);
    CHECK(crc32_of_both(crcs[0], crcs[2], large->size - half) == large->crc);
  }
}

TEST_CASE("a sink that fails in the middle of a large record") {
  class FullSink final : public ByteSink {
   public:
    void write(Bytes bytes) override {
      if (bytes.size() > component_) throw std::runtime_error("full");
      component_ -= bytes.size();
    }

   private:
    size_t component_ = 10'000'000;
  };
  const std::string text(50'000'000, 'x');
  FullSink sink;
  ZipWriter writer(sink, "root", nullptr);
  writer.begin("large", text.size());
  CHECK_THROWS_WITH(writer.append(bytes_of(text)), "full");
  CHECK_THROWS_AS(writer.append(bytes_of(text)), ArchiveError);
}

TEST_CASE("all bytes are reported") {
  uint64_t reported = 0;
  const auto report = [&](uint64_t bytes) { reported += bytes; };
  MemorySink sink;
  ZipWriter writer(sink, "root", report);
  const std::string text(9'000'000, 'x');
  writer.begin("large", text.size());
  writer.append(bytes_of(text));
  writer.end();
  writer.finish();
  CHECK(reported >= text.size());
  const MemorySource source(sink.bytes);
  const Directory directory(source);
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    reported = 0;
    Progress progress(report);
    transfer(source, {all_of(directory.find("large"))}, {true, threads}, progress);
    CHECK(reported == text.size());
  }
}

TEST_CASE("an interrupt ends a transfer") {
  const std::vector<std::byte> bytes = archive_of({{"large", std::string(50'000'000, 'x')}});
  const MemorySource source(bytes);
  const Directory directory(source);
  const std::vector<Transfer> transfers(200, all_of(directory.find("large")));
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    Progress progress([](uint64_t) { throw std::runtime_error("interrupted"); });
    CHECK_THROWS_WITH(transfer(source, transfers, {true, threads}, progress), "interrupted");
  }
}
