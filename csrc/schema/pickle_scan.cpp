#include "schema/pickle_scan.h"

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fxpress::schema {

namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max() / 4;  // maximum element count
// The bytes that are charged to the budget.
constexpr uint64_t kOpcodeBytes = 96;     // for an opcode: a Python object and an Item
constexpr uint64_t kCallBytes = 800;      // for a call, in addition to its opcode
constexpr uint64_t kStorageBytes = 1600;  // for a storage, in addition to its opcode
constexpr uint64_t kItemBytes = 64;       // for each item in a copy of a container

// The maximum number of keys whose hashes a file can choose. If these hashes are equal, building a
// dict or set takes quadratic time.
constexpr size_t kMostChosen = 2000;

enum class ValueType : uint8_t { kOther, kNumber, kLargeNumber, kText, kGlobal, kContainer };

constexpr uint32_t kNone32 = std::numeric_limits<uint32_t>::max();

struct Item {
  ValueType kind = ValueType::kOther;
  std::string_view text;  // a text; for a global or the result of its call: module, newline, name
  uint32_t first = kNone32;  // the contents: a linked list in Scanner::inside_
  uint32_t last = kNone32;
  uint32_t count = 0;  // number of contents
  // If a call created this item: the items and bytes that the call copied from its arguments.
  uint64_t copied_items = 0;
  uint64_t copied_bytes = 0;

  uint64_t items() const { return count + copied_items; }
  uint64_t bytes() const { return copied_bytes + (kind == ValueType::kText ? text.size() : 0); }
};

struct Inside {
  uint32_t item;
  uint32_t next = kNone32;
};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> known) {
  return std::ranges::find(known, text) != known.end();
}

// Whether a global (module, newline, name) is a function or class of torch that creates a tensor.
bool makes_tensor(std::string_view global) {
  const size_t end = global.find('\n');
  const std::string_view module = global.substr(0, end);
  const std::string_view name = global.substr(end + 1);
  return (module == "torch" || module.starts_with("torch.")) &&
         (name.starts_with("_rebuild") || name.ends_with("Tensor") || name.ends_with("Parameter"));
}

// The `text` of an Item for a storage. torch does not have a global of this name.
constexpr std::string_view kStorageGlobal = "torch.storage\nstorage";

// Whether a call of the class `name` copies the elements of its arguments.
bool is_sequence(std::string_view name) {
  return is_one_of(name, {"Size", "list", "tuple"});
}
// Whether a call of the class `name` copies and hashes the elements of its arguments.
bool is_hashed(std::string_view name) {
  return is_one_of(name, {"Counter", "OrderedDict", "defaultdict", "dict", "frozenset", "set"});
}

// Whether the scan knows how many elements an item has. It does not know this for a tensor or a
// storage, because a few bytes of a pickle can create one with many elements.
bool has_counted_elements(const Item& item) {
  if (item.kind != ValueType::kContainer || item.text.empty()) return true;
  const std::string_view name = item.text.substr(item.text.find('\n') + 1);
  return is_sequence(name) || is_hashed(name) || name == "bytearray" || name == "encode";
}

// The opcodes that torch's weights-only unpickler accepts, and the opcodes of protocol 4. torch
// uses protocol 4 for the metadata of checkpoints.
enum Opcode : unsigned char {
  kProto = 0x80,
  kStop = '.',
  kGlobal = 'c',
  kNewObject = 0x81,
  kReduce = 'R',
  kBuild = 'b',
  kAppend = 'a',
  kAppends = 'e',
  kSetItem = 's',
  kSetItems = 'u',
  kMark = '(',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNone = 'N',
  kFalse = 0x89,
  kTrue = 0x88,
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kEmptySet = 0x8f,
  kInt4 = 'J',
  kInt1 = 'K',
  kInt2 = 'M',
  kFloat = 'G',
  kUnicode = 'X',
  kShortString = 'U',
  kPersistent = 'Q',
  kGet = 'h',
  kLongGet = 'j',
  kPut = 'q',
  kLongPut = 'r',
  kLong1 = 0x8a,
  kFrame = 0x95,
  kShortUnicode = 0x8c,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kAddItems = 0x90
};

class Scanner {
 public:
  Scanner(std::string_view bytes, core::Budget& budget) : bytes_(bytes), budget_(budget) {}

  PickleFacts scan() {
    while (true) {
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == kStop) break;
      budget_.charge(kOpcodeBytes);
      step(opcode);
    }
    return measure(pop());
  }

 private:
  [[noreturn]] static void fail(const std::string& why) { throw PickleError(why); }

  std::string_view take(size_t count) {
    if (count > bytes_.size() - at_) fail("it ends too early");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  uint32_t number(size_t bytes) {
    uint32_t value = 0;
    const std::string_view taken = take(bytes);
    for (size_t i = bytes; i-- > 0;) value = (value << 8u) | static_cast<unsigned char>(taken[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("it ends too early");
    const std::string_view taken = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return taken;
  }

  uint32_t make(ValueType kind, std::string_view text = {}) {
    items_.push_back({kind, text});
    return static_cast<uint32_t>(items_.size() - 1);
  }
  void push(ValueType kind, std::string_view text = {}) { stack_.push_back(make(kind, text)); }
  // Throws unless at least `count` values are above the last mark of the stack.
  void need(size_t count) const {
    const size_t bottom = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - bottom < count) fail("its stack is empty");
  }
  uint32_t pop() {
    need(1);
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  uint32_t top() {
    const uint32_t found = pop();
    stack_.push_back(found);
    return found;
  }
  void contain(uint32_t container, uint32_t item) {
    budget_.charge(4 * sizeof(Inside));
    const auto place = static_cast<uint32_t>(inside_.size());
    inside_.push_back({item});
    Item& to = items_[container];
    (to.first == kNone32 ? to.first : inside_[to.last].next) = place;
    to.last = place;
    ++to.count;
  }
  // Moves the last `count` values of the stack into a container.
  void move_last(size_t count, uint32_t container) {
    const size_t from = stack_.size() - count;
    for (size_t i = from; i < stack_.size(); ++i) contain(container, stack_[i]);
    stack_.resize(from);
  }
  void collect(size_t count) {
    need(count);
    const uint32_t made = make(ValueType::kContainer);
    move_last(count, made);
    stack_.push_back(made);
  }
  void add_last(size_t count) {
    need(count + 1);
    move_last(count, stack_[stack_.size() - count - 1]);
  }
  // Removes the last mark; returns the number of values above it.
  size_t above_mark() {
    if (marks_.empty()) fail("it removes a mark that it has not set");
    const size_t count = stack_.size() - marks_.back();  // pop() and need() stop at a mark
    marks_.pop_back();
    return count;
  }
  void put(size_t place) {
    // Large gaps between indices would waste memory in Python's memo, which is an array. They would
    // also let a file choose indices with equal hashes in memo_, which is a hash map.
    constexpr size_t kGap = 255;
    if (place > memo_.size() + kGap) fail("it leaves a gap in its memo");
    memo_.insert_or_assign(place, top());
  }
  void get(uint32_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) fail("it uses an object that it has not created");
    stack_.push_back(found->second);
  }

  // Counts `key` if a file can choose its hash. Texts do not count, because their hashes depend on
  // a secret of the process. Small numbers do not count, because few 64-bit numbers share a hash.
  void hash(uint32_t key) {
    const ValueType kind = items_[key].kind;
    if (kind != ValueType::kContainer && kind != ValueType::kLargeNumber) return;
    if (++chosen_ > kMostChosen) fail("it has too many keys that are neither texts nor numbers");
  }

  void charge_copy(const Item& copied) {
    constexpr uint64_t kCharacterBytes = 4;
    budget_.charge(copied.items(), kItemBytes);
    budget_.charge(copied.bytes(), kCharacterBytes);
  }

  void step(unsigned char opcode);
  void call();
  void build();
  void check_call(uint32_t function, uint32_t arguments, Item& result);
  // Returns an item of a container, or null past its end.
  const Item* item(const Item& container, size_t position) const;
  PickleFacts measure(uint32_t root);

  std::string_view bytes_;
  core::Budget& budget_;
  size_t at_ = 0;
  std::vector<Item> items_;
  std::vector<Inside> inside_;
  std::deque<std::string> globals_;  // the texts of globals that kStackGlobal pushes
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // sizes of the stack when the marks were set
  std::unordered_map<size_t, uint32_t> memo_;
  size_t chosen_ = 0;  // see hash()
};

void Scanner::step(unsigned char opcode) {
  switch (opcode) {
    case kProto:
      take(1);
      return;
    case kGlobal: {
      const size_t start = at_;
      const size_t size = line().size() + 1 + line().size();
      return push(ValueType::kGlobal, bytes_.substr(start, size));
    }
    case kStackGlobal: {
      const std::string_view name = items_[pop()].text;
      const std::string_view module = items_[pop()].text;
      budget_.charge(module.size() + name.size());
      return push(ValueType::kGlobal,
                  globals_.emplace_back(std::string(module) + '\n' + std::string(name)));
    }
    case kFrame:
      take(8);
      return;
    case kNewObject:
    case kReduce:
      return call();
    case kBuild:
      return build();
    case kAppend:
      return add_last(1);
    case kAppends:
      return add_last(above_mark());
    case kAddItems:
    case kSetItem:
    case kSetItems: {
      const size_t count = opcode == kSetItem ? 2 : above_mark();
      const size_t step = opcode == kAddItems ? 1 : 2;  // from one key to the next
      need(count + 1);
      for (size_t i = stack_.size() - count; i < stack_.size(); i += step) hash(stack_[i]);
      return add_last(count);
    }
    case kMark:
      return marks_.push_back(stack_.size());
    case kTuple:
      return collect(above_mark());
    case kTuple1:
    case kTuple2:
    case kTuple3:
      return collect(opcode - kTuple1 + size_t{1});
    case kNone:
    case kFalse:
    case kTrue:
      return push(ValueType::kOther);
    case kEmptyTuple:
    case kEmptyList:
    case kEmptyDict:
    case kEmptySet:
      return push(ValueType::kContainer);
    case kInt1:
    case kInt2:
    case kInt4:
      take(opcode == kInt1 ? 1 : opcode == kInt2 ? 2 : 4);
      return push(ValueType::kNumber);
    case kLong1: {
      const size_t size = take(number(1)).size();
      return push(size > 8 ? ValueType::kLargeNumber : ValueType::kNumber);
    }
    case kFloat:
      take(8);
      return push(ValueType::kOther);
    case kUnicode:
      return push(ValueType::kText, take(number(4)));
    case kShortUnicode:
    case kShortString:
      return push(ValueType::kText, take(number(1)));
    case kPersistent: {
      const Item* key = item(items_[pop()], 2);  // torch's key of a storage
      if (key != nullptr && key->kind != ValueType::kText)
        fail("the key of a storage is not a text");
      budget_.charge(kStorageBytes);
      return push(ValueType::kContainer, kStorageGlobal);
    }
    case kGet:
      return get(number(1));
    case kLongGet:
      return get(number(4));
    case kPut:
      return put(number(1));
    case kLongPut:
      return put(number(4));
    case kMemoize:
      return put(memo_.size());
    default:
      fail("it has the opcode " + std::to_string(opcode));
  }
}

void Scanner::call() {
  const uint32_t arguments = pop();
  const uint32_t function = pop();
  budget_.charge(kCallBytes);
  Item result{ValueType::kContainer, items_[function].text};
  check_call(function, arguments, result);
  items_.push_back(result);
  const auto made = static_cast<uint32_t>(items_.size() - 1);
  contain(made, arguments);
  stack_.push_back(made);
}

// Handles the opcode BUILD. Rejects BUILD on a tensor, because it would call Tensor.set_(), which
// enlarges a storage that is too small.
void Scanner::build() {
  const uint32_t state = pop();
  const Item& built = items_[top()];
  if (built.kind == ValueType::kContainer && makes_tensor(built.text)) {
    fail("it changes a tensor that it has created");
  }
  charge_copy(items_[state]);
  contain(top(), state);
}

const Item* Scanner::item(const Item& container, size_t position) const {
  if (position >= container.count) return nullptr;
  uint32_t at = container.first;
  while (position-- > 0) at = inside_[at].next;
  return &items_[inside_[at].item];
}

// Rejects calls that would allocate as much memory as a number in the file requests. For other
// calls, charges the budget for the copies that they make of their arguments.
void Scanner::check_call(uint32_t function, uint32_t arguments, Item& result) {
  constexpr uint64_t kArgumentBytes = 16;  // per argument, because many calls may share one tuple
  const Item* called = &items_[function];
  const Item* passed = &items_[arguments];
  while (called->kind == ValueType::kGlobal) {
    const size_t end = called->text.find('\n');
    const std::string_view module = called->text.substr(0, end);
    const std::string_view name = called->text.substr(end + 1);
    // pickle writes a tuple of arguments. If a call made the tuple, `passed` may lack some items.
    if (passed->kind != ValueType::kContainer || !passed->text.empty()) {
      fail("it calls a function with arguments that are not a tuple");
    }
    budget_.charge(passed->count, kArgumentBytes);
    const bool hashes = is_hashed(name);
    const bool iterates = hashes || is_sequence(name);
    for (uint32_t at = passed->first; at != kNone32; at = inside_[at].next) {
      const Item& argument = items_[inside_[at].item];
      charge_copy(argument);
      if ((iterates || name == "bytearray") && !has_counted_elements(argument)) {
        fail("it makes a " + std::string(name) + " of a tensor or a storage");
      }
      if (iterates) {
        budget_.charge(argument.bytes(), kItemBytes);
        result.copied_items += argument.items() + argument.bytes();
      } else {
        result.copied_bytes += argument.items() + argument.bytes();
      }
      if (!hashes) continue;
      for (uint32_t in = argument.first; in != kNone32; in = inside_[in].next) {
        hash(inside_[in].item);
      }
    }
    const Item* first = item(*passed, 0);
    const bool of_torch = module == "torch" || module.starts_with("torch.");
    const bool is_class = name.ends_with("Tensor") || name.ends_with("Storage");
    if (of_torch && is_class && first != nullptr) fail("it creates a tensor from sizes");
    if (name == "bytearray" && first != nullptr && first->kind != ValueType::kText &&
        first->kind != ValueType::kContainer) {
      fail("it creates a bytearray from a size");
    }
    if (name == "encode" && passed->count > 1 &&
        (passed->count > 2 ||
         !is_one_of(item(*passed, 1)->text, {"latin1", "latin-1", "utf-8", "utf8", "ascii"}))) {
      fail("it has a text in an unknown encoding");
    }
    if (name != "_rebuild_from_type_v2" || passed->count < 3) return;
    called = first;  // _rebuild_from_type_v2(function, type, arguments, state) calls `function`
    passed = item(*passed, 2);
  }
}

// Measures the value `root` as a tree, bottom-up, with an explicit stack.
PickleFacts Scanner::measure(uint32_t root) {
  struct Found {
    uint64_t elements = 0;  // 0: not known yet
    size_t depth = 0;
    bool is_open = false;
  };
  std::vector<Found> found(items_.size());
  std::vector<std::pair<uint32_t, uint32_t>> open;  // item, and its next content in inside_
  PickleFacts facts;
  const auto enter = [&](uint32_t item) {
    found[item] = {1 + items_[item].copied_items, 1, true};
    open.emplace_back(item, items_[item].first);
  };
  const auto add = [&](Found inner) {
    if (open.empty()) return;
    Found& outer = found[open.back().first];
    outer.elements = std::min(kMost, outer.elements + inner.elements);
    outer.depth = std::max(outer.depth, inner.depth + 1);
  };
  enter(root);
  while (!open.empty()) {
    auto& [at, next] = open.back();
    if (next == kNone32) {
      Found& done = found[at];
      done.is_open = false;
      open.pop_back();
      add(done);
      continue;
    }
    const uint32_t child = inside_[next].item;
    next = inside_[next].next;
    if (found[child].elements == 0) {
      enter(child);
    } else if (found[child].is_open) {
      facts.contains_itself = true;
    } else {
      add(found[child]);
    }
  }
  facts.elements = found[root].elements;
  facts.depth = found[root].depth;
  return facts;
}

}  // namespace

PickleFacts scan_pickle(std::string_view bytes, core::Budget& budget) {
  return Scanner(bytes, budget).scan();
}

}  // namespace fxpress::schema
