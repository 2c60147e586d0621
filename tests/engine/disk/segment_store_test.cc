#include "engine/disk/segment_store.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

#include "tests/engine/disk/faulty_disk.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

using files::StateDirectory;
using testing::HealsDisk;

constexpr int32_t kBlockSize = 4;
constexpr int64_t kBlockBytes = 1000;
// Four segments of 13 blocks.
constexpr int64_t kMaxBytes = 256 << 10;
constexpr SegmentShape kShape{
    .block_size = kBlockSize, .block_bytes = kBlockBytes, .num_slots = 13};

class SegmentStoreTest : public ::testing::Test {
 protected:
  SegmentStoreTest() : directory_(*StateDirectory::Open(temp_.path())) { EXPECT_TRUE(Open().ok()); }

  static SegmentStoreConfig Config() {
    return {.contents = "of a test",
            .block_size = kBlockSize,
            .block_bytes = kBlockBytes,
            .max_bytes = kMaxBytes};
  }
  absl::Status Open(const SegmentStoreConfig& config = Config()) {
    store_.reset();
    absl::StatusOr<std::unique_ptr<SegmentStore>> store = SegmentStore::Open(*directory_, config);
    if (store.ok()) store_ = *std::move(store);
    return store.status();
  }

  // Block i, after the root.
  static std::vector<int32_t> TokensOf(int i) { return {i, i + 1, 7, -1}; }
  static BlockKey Root() { return RootBlockKey({}, "root"); }
  static BlockKey KeyOf(int i) { return ChildBlockKey(Root(), TokensOf(i)); }
  static std::vector<std::byte> PayloadOf(int i) {
    std::vector<std::byte> payload(kBlockBytes);
    for (size_t k = 0; k < payload.size(); ++k) payload[k] = static_cast<std::byte>(i * 31 + k);
    return payload;
  }
  absl::Status Put(int i) {
    std::ranges::copy(PayloadOf(i), store_->payload().begin());
    return store_->Put(KeyOf(i), Root(), TokensOf(i));
  }
  // Returns true if the block is there, whose bytes must then be right.
  bool Get(int i) {
    std::vector<std::byte> record(static_cast<size_t>(store_->record_bytes()));
    const absl::StatusOr<bool> got = store_->Get(KeyOf(i), Root(), TokensOf(i), record);
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok() || !*got) return false;
    EXPECT_TRUE(std::ranges::equal(store_->PayloadOf(record), PayloadOf(i))) << "block " << i;
    return true;
  }
  std::vector<std::string> Segments() const {
    std::vector<std::string> names;
    const std::vector<std::string> all = *directory_->List();
    for (const std::string& name : all) {
      if (SegmentFile::IdOf(name) != 0) names.push_back(temp_.path() + "/" + name);
    }
    std::ranges::sort(names);
    return names;
  }
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void SetBytes(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  HealsDisk heals_;
  testing::TempDirectory temp_;
  std::unique_ptr<StateDirectory> directory_;
  std::unique_ptr<SegmentStore> store_;
};

TEST_F(SegmentStoreTest, ABlockIsThereAlsoAfterReopening) {
  EXPECT_FALSE(store_->Has(KeyOf(1)));
  EXPECT_FALSE(Get(1));
  ASSERT_TRUE(Put(1).ok());
  ASSERT_TRUE(Put(2).ok());
  EXPECT_TRUE(Get(1));
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(store_->Has(KeyOf(1)));
  EXPECT_TRUE(Get(1));
  EXPECT_TRUE(Get(2));
  EXPECT_FALSE(Get(3));
  EXPECT_EQ(store_->num_blocks(), 2);
  ASSERT_TRUE(Put(3).ok());  // goes on in the same segment
  EXPECT_EQ(Segments().size(), 1u);
  ASSERT_TRUE(Open().ok());
  for (const int i : {1, 2, 3}) EXPECT_TRUE(Get(i)) << i;
}

TEST_F(SegmentStoreTest, FilesAreOfTheirOwnerAlone) {
  ASSERT_TRUE(Put(1).ok());
  for (const std::string& path : Segments()) {
    EXPECT_EQ(std::filesystem::status(path).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
}

TEST_F(SegmentStoreTest, TheOldestGoAndThoseThatWereReadStay) {
  for (int i = 0; i < 3 * kShape.num_slots; ++i) {
    ASSERT_TRUE(Put(i).ok());
    EXPECT_LE(store_->bytes(), kMaxBytes);
  }
  EXPECT_TRUE(Get(2));
  EXPECT_TRUE(Get(7));
  for (int i = 3 * kShape.num_slots; i < 6 * kShape.num_slots; ++i) ASSERT_TRUE(Put(i).ok());
  EXPECT_TRUE(Get(2));
  EXPECT_TRUE(Get(7));
  EXPECT_FALSE(Get(3)) << "it was not read";
  EXPECT_TRUE(Get(6 * kShape.num_slots - 1));
  EXPECT_LE(Segments().size(), 4u);
  int64_t bytes = 0;
  for (const std::string& path : Segments()) bytes += std::filesystem::file_size(path);
  EXPECT_LE(bytes, kMaxBytes);
  EXPECT_LE(store_->num_blocks(), 4 * kShape.num_slots);
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(Get(2));
}

TEST_F(SegmentStoreTest, BlocksOfNamedPrefixesStay) {
  store_->set_named([] { return std::vector<BlockKey>{KeyOf(4), KeyOf(1000)}; });
  for (int i = 0; i < 12 * kShape.num_slots; ++i) ASSERT_TRUE(Put(i).ok());
  EXPECT_TRUE(Get(4));
  EXPECT_FALSE(Get(5));
}

TEST_F(SegmentStoreTest, NoMoreThanAQuarterStays) {
  for (int i = 0; i < kShape.num_slots; ++i) ASSERT_TRUE(Put(i).ok());
  for (int i = 0; i < kShape.num_slots; ++i) EXPECT_TRUE(Get(i));
  // One more segment than there may be removes the first one.
  int next = kShape.num_slots;
  while (store_->num_blocks() == next) ASSERT_TRUE(Put(next++).ok());
  int num_left = 0;
  for (int i = 0; i < kShape.num_slots; ++i) num_left += store_->Has(KeyOf(i)) ? 1 : 0;
  EXPECT_EQ(num_left, kShape.num_slots / 4);
}

TEST_F(SegmentStoreTest, ReopenedItHasAllSegmentsThatThereMayBeAndNoMore) {
  ASSERT_TRUE(Put(0).ok());
  const std::string oldest = Segments()[0], bytes = Bytes(oldest);
  int next = 1;
  while (store_->num_blocks() == next) ASSERT_TRUE(Put(next++).ok());
  EXPECT_FALSE(std::filesystem::exists(oldest));
  const std::vector<std::string> all = Segments();
  const int64_t num_blocks = store_->num_blocks();
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(Segments(), all);
  EXPECT_EQ(store_->num_blocks(), num_blocks);
  // It was killed after it began the newest, and before it removed the oldest.
  store_.reset();
  SetBytes(oldest, bytes);
  std::filesystem::permissions(
      oldest, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(Segments(), all);
  EXPECT_EQ(store_->num_blocks(), num_blocks);
  EXPECT_FALSE(store_->Has(KeyOf(0)));
}

TEST_F(SegmentStoreTest, WhatWasForgottenDoesNotComeBack) {
  ASSERT_TRUE(Put(1).ok());
  const std::string segment = Segments()[0], bytes = Bytes(segment);
  ASSERT_TRUE(store_->SetEpoch(7).ok());
  EXPECT_FALSE(Get(1));
  EXPECT_EQ(store_->bytes(), 0);
  EXPECT_TRUE(Segments().empty());
  ASSERT_TRUE(Put(2).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(store_->epoch(), 7u);
  EXPECT_FALSE(Get(1));
  EXPECT_TRUE(Get(2));
}

TEST_F(SegmentStoreTest, AnErasedBlockDoesNotComeBack) {
  ASSERT_TRUE(Put(1).ok());
  ASSERT_TRUE(Put(2).ok());
  ASSERT_TRUE(store_->Erase(KeyOf(1)).ok());
  ASSERT_TRUE(store_->Erase(KeyOf(3)).ok());
  EXPECT_FALSE(Get(1));
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(Get(1));
  EXPECT_TRUE(Get(2));
  ASSERT_TRUE(Put(3).ok());
  EXPECT_TRUE(Get(2)) << "the slot of the other is not taken";
}

TEST_F(SegmentStoreTest, ForeignSegmentsAreRemoved) {
  const std::vector<SegmentStoreConfig> others = [] {
    std::vector<SegmentStoreConfig> all(3, Config());
    all[0].contents = "of another model";
    all[1].block_size = 8;
    all[2].block_bytes = 1001;
    return all;
  }();
  for (const SegmentStoreConfig& other : others) {
    ASSERT_TRUE(Open().ok());
    ASSERT_TRUE(Put(1).ok());
    ASSERT_TRUE(Open(other).ok());
    EXPECT_FALSE(store_->Has(KeyOf(1)));
    EXPECT_TRUE(Segments().empty());
  }
}

TEST_F(SegmentStoreTest, ASegmentOfAnotherStoreIsForeign) {
  ASSERT_TRUE(Put(1).ok());
  std::filesystem::remove(temp_.path() + "/kv.store");  // with its secret
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(Get(1));
}

TEST_F(SegmentStoreTest, ASegmentUnderAnotherNumberIsForeign) {
  ASSERT_TRUE(Put(1).ok());
  store_.reset();
  std::filesystem::rename(Segments()[0], temp_.path() + "/" + SegmentFile::NameOf(12));
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(Get(1));
  ASSERT_TRUE(Put(2).ok());
  EXPECT_EQ(Segments()[0], temp_.path() + "/" + SegmentFile::NameOf(13)) << "no number comes twice";
}

TEST_F(SegmentStoreTest, AnyFlippedByteIsAMiss) {
  ASSERT_TRUE(Put(1).ok());
  ASSERT_TRUE(Put(2).ok());
  const std::string path = Segments()[0], whole = Bytes(path);
  const int64_t second = kShape.slots_begin() + kShape.slot_bytes();
  ASSERT_EQ(std::ssize(whole), second + kShape.record_bytes());
  const auto flip = [&](int64_t i) {
    std::string bytes = whole;
    bytes[static_cast<size_t>(i)] = static_cast<char>(bytes[static_cast<size_t>(i)] ^ 0x10);
    SetBytes(path, bytes);
    ASSERT_TRUE(Open().ok());
  };
  for (int64_t i = 0; i < 96; ++i) {
    flip(i);
    EXPECT_FALSE(Get(1)) << "byte " << i << " of the header";
    EXPECT_TRUE(Segments().empty());
  }
  // An entry has the magic, the size of the key, the key, two numbers and their checksum.
  for (int64_t i = 0; i < 72; ++i) {
    flip(SegmentShape::kPage + SegmentShape::kEntryBytes + i);
    EXPECT_FALSE(Get(2)) << "byte " << i << " of the entry";
    EXPECT_TRUE(Get(1));
  }
  for (int64_t i = 0; i < kShape.record_bytes(); ++i) {
    flip(second + i);
    EXPECT_FALSE(Get(2)) << "byte " << i << " of the record";
    EXPECT_EQ(store_->num_damaged(), 1);
    EXPECT_FALSE(store_->Has(KeyOf(2)));
    EXPECT_TRUE(Get(1));
  }
}

TEST_F(SegmentStoreTest, AnyPartOfAFileIsReadAsFarAsItIsWhole) {
  ASSERT_TRUE(Put(1).ok());
  ASSERT_TRUE(Put(2).ok());
  const std::string path = Segments()[0], whole = Bytes(path);
  const int64_t end_of_first = kShape.slots_begin() + kShape.record_bytes();
  for (int64_t size = 0; size <= std::ssize(whole); size += size + 1 < 200 ? 1 : 97) {
    SetBytes(path, std::string_view(whole).substr(0, static_cast<size_t>(size)));
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(Get(1), size >= end_of_first) << size;
    EXPECT_FALSE(Get(2) && size < std::ssize(whole)) << size;
    // What is there is no obstacle for more.
    ASSERT_TRUE(Put(3).ok());
    EXPECT_TRUE(Get(3));
  }
}

TEST_F(SegmentStoreTest, ARecordAtAnotherPlaceIsNone) {
  for (const int i : {1, 2}) ASSERT_TRUE(Put(i).ok());
  const std::string path = Segments()[0];
  std::string bytes = Bytes(path);
  const auto copy = [&](int64_t from, int64_t to, int64_t size) {
    std::copy_n(bytes.begin() + from, size, bytes.begin() + to);
  };
  copy(kShape.slots_begin(), kShape.slots_begin() + kShape.slot_bytes(), kShape.record_bytes());
  copy(SegmentShape::kPage, SegmentShape::kPage + SegmentShape::kEntryBytes,
       SegmentShape::kEntryBytes);
  std::fill_n(bytes.begin() + SegmentShape::kPage, SegmentShape::kEntryBytes, '\0');
  SetBytes(path, bytes);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(store_->num_blocks(), 0);
  EXPECT_FALSE(Get(1));
}

TEST_F(SegmentStoreTest, TokensAndParentAreCompared) {
  ASSERT_TRUE(Put(1).ok());
  std::vector<std::byte> record(static_cast<size_t>(store_->record_bytes()));
  EXPECT_FALSE(*store_->Get(KeyOf(1), Root(), TokensOf(2), record));
  ASSERT_TRUE(Put(1).ok());
  EXPECT_FALSE(*store_->Get(KeyOf(1), KeyOf(1), TokensOf(1), record));
}

TEST_F(SegmentStoreTest, AFullDiskIsAnErrorAndHarmsNothing) {
  ASSERT_TRUE(Put(1).ok());
  testing::Disk().write_error = ENOSPC;
  EXPECT_EQ(Put(2).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(store_->Has(KeyOf(2)));
  EXPECT_TRUE(Get(1));
  testing::Disk().write_error = 0;
  ASSERT_TRUE(Put(2).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(Get(1));
  EXPECT_TRUE(Get(2));
}

TEST_F(SegmentStoreTest, ADiskThatCannotBeReadIsAnError) {
  ASSERT_TRUE(Put(1).ok());
  testing::Disk().read_error = EIO;
  std::vector<std::byte> record(static_cast<size_t>(store_->record_bytes()));
  EXPECT_FALSE(store_->Get(KeyOf(1), Root(), TokensOf(1), record).ok());
  testing::Disk().read_error = 0;
  EXPECT_TRUE(Get(1)) << "it may be readable later";
}

TEST_F(SegmentStoreTest, AnEpochThatCannotBeWrittenIsAnError) {
  ASSERT_TRUE(Put(1).ok());
  testing::Disk().sync_error = EIO;
  EXPECT_FALSE(store_->SetEpoch(3).ok());
  EXPECT_FALSE(Get(1));
  testing::Disk().sync_error = 0;
  EXPECT_TRUE(store_->SetEpoch(3).ok());
}

TEST_F(SegmentStoreTest, WhatIsNoSegmentIsLeftAlone) {
  const std::string name = SegmentFile::NameOf(5);
  temp_.Write("kv-5.segment", "x");
  temp_.Write("kv-zzzzzzzzzzzzzzzz.segment", "x");
  std::filesystem::create_symlink("/etc/passwd", temp_.path() + "/" + name);
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(temp_.path() + "/" + name));
  ASSERT_TRUE(Put(1).ok());
  EXPECT_TRUE(std::filesystem::exists(temp_.path() + "/" + SegmentFile::NameOf(6)));
  EXPECT_TRUE(std::filesystem::exists(temp_.path() + "/kv-5.segment"));
}

TEST_F(SegmentStoreTest, TooLittleSpaceIsRefusedWithTheLeast) {
  SegmentStoreConfig config = Config();
  config.block_bytes = 1 << 20;
  config.max_bytes = 3 << 20;
  const absl::Status status = Open(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("want at least 5"), std::string::npos) << status;
  config.max_bytes = 5 << 20;
  EXPECT_TRUE(Open(config).ok());
  EXPECT_TRUE(store_->Put({}, {}, TokensOf(1)).ok());
}

// What a naive map says of a block.
struct Model {
  std::map<int, int> put_at;  // by block: the number of puts before it
  int num_puts = 0;
};

RC_GTEST_FIXTURE_PROP(SegmentStoreTest, HasWhatANaiveMapHas, ()) {
  for (const std::string& path : Segments()) ::unlink(path.c_str());
  RC_ASSERT(Open().ok());
  Model model;
  const int num_steps = *rc::gen::inRange(1, 200);
  for (int step = 0; step < num_steps; ++step) {
    const int i = *rc::gen::inRange(0, 100);
    const int kind = *rc::gen::inRange(0, 40);
    if (kind == 0) {
      RC_ASSERT(Open().ok());
    } else if (kind == 1) {
      RC_ASSERT(store_->SetEpoch(store_->epoch() + 1).ok());
      model.put_at.clear();
    } else if (kind < 4) {
      RC_ASSERT(store_->Erase(KeyOf(i)).ok());
      model.put_at.erase(i);
    } else if (kind < 25) {
      const bool is_new = !store_->Has(KeyOf(i));
      RC_ASSERT(Put(i).ok());
      if (is_new) model.put_at[i] = model.num_puts++;
    } else {
      const auto known = model.put_at.find(i);
      const bool got = Get(i);
      if (known == model.put_at.end()) RC_ASSERT(!got);
      // What stays of older segments is written between the puts, up to a quarter.
      if (known != model.put_at.end() && model.num_puts - known->second <= 2 * kShape.num_slots) {
        RC_ASSERT(got);
      }
    }
    RC_ASSERT(store_->bytes() <= kMaxBytes);
  }
}

}  // namespace
}  // namespace quire::engine
