#include "files/record_log.h"

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>
#include <xxhash.h>

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

#include "files/byte_codec.h"
#include "files/state_directory.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"

namespace quire::files {
namespace {

using Records = std::vector<std::string>;

class RecordLogTest : public ::testing::Test {
 protected:
  RecordLogTest() : directory_(*StateDirectory::Open(temp_.path())) {}

  std::string Path() const { return temp_.path() + "/log"; }
  std::string Bytes() const { return testing::ReadFile(Path()); }
  void SetBytes(std::string_view bytes) const { temp_.Write("log", bytes); }
  absl::StatusOr<std::unique_ptr<RecordLog>> Open(Records* records,
                                                  const std::string& identity = "of a test") {
    if (records != nullptr) records->clear();
    return RecordLog::Open(*directory_, "log", identity, /*room=*/0,
                           [&](const RecordLog::Record& record) {
                             if (records != nullptr) records->push_back(Shown(record));
                             return absl::OkStatus();
                           });
  }
  // A record's body, or what is known of a damaged one.
  static std::string Shown(const RecordLog::Record& record) {
    using State = RecordLog::Record::State;
    if (record.state == State::kLost) return "lost";
    if (record.state == State::kWhole) return std::string(record.body);
    EXPECT_EQ(record.body, "");
    return absl::StrCat("damaged ", record.kind, " ", record.key);
  }
  Records Read() {
    Records records;
    const auto log = Open(&records);
    EXPECT_TRUE(log.ok()) << log.status();
    return records;
  }
  void Write(const Records& records) {
    auto log = *Open(nullptr);
    for (const std::string& record : records) ASSERT_TRUE(log->Append({.body = record}).ok());
    ASSERT_TRUE(log->Sync().ok());
    EXPECT_EQ(log->bytes(), std::ssize(Bytes()));
  }
  static absl::Status ReplaceBy(RecordLog& log, const Records& records) {
    size_t i = 0;
    return log.Replace([&](RecordLog::Record& record) {
      if (i == records.size()) return false;
      record = {.body = records[i++]};
      return true;
    });
  }

  testing::TempDirectory temp_;
  std::unique_ptr<StateDirectory> directory_;
};

RC_GTEST_FIXTURE_PROP(RecordLogTest, HasWhatWasAppendedAndReplaced, ()) {
  ::unlink(Path().c_str());
  Records model;
  for (int opening = 0; opening < 3; ++opening) {
    Records records;
    auto log = Open(&records);
    RC_ASSERT(log.ok());
    RC_ASSERT(records == model);
    const auto more = *rc::gen::arbitrary<Records>();
    if (*rc::gen::arbitrary<bool>()) {
      RC_ASSERT(ReplaceBy(**log, more).ok());
      model = more;
    } else {
      for (const std::string& record : more) {
        RC_ASSERT((*log)->Append({.body = record}).ok());
        model.push_back(record);
      }
    }
  }
}

TEST_F(RecordLogTest, TheRecordsBeforeATornOneHold) {
  const Records records = {"one", "", "three"};
  Write(records);
  const std::string whole = Bytes();
  const size_t last = whole.size() - RecordLog::BytesOf(5);
  for (size_t size = last; size < whole.size(); ++size) {
    SetBytes(whole.substr(0, size));
    EXPECT_EQ(Read(), (Records{"one", ""})) << size;
    Write({"four"});  // is read, though the torn record was there
    EXPECT_EQ(Read(), (Records{"one", "", "four"})) << size;
  }
}

TEST_F(RecordLogTest, AFlippedByteCostsOneRecord) {
  auto log = *Open(nullptr);
  const int64_t begin = log->bytes();
  const Records bodies = {"one", "two", "three"};
  for (size_t i = 0; i < bodies.size(); ++i) {
    ASSERT_TRUE(log->Append({.kind = 7, .key = i, .body = bodies[i]}).ok());
  }
  const std::string whole = Bytes();
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    SetBytes(bytes);
    Records read;
    const auto opened = Open(&read);
    EXPECT_EQ(Bytes(), bytes) << "nothing is changed before it is replaced";
    if (static_cast<int64_t>(i) < begin) {
      EXPECT_FALSE(opened.ok()) << i;
      continue;
    }
    ASSERT_TRUE(opened.ok()) << i << opened.status();
    EXPECT_EQ((*opened)->num_damaged(), 1) << i;
    EXPECT_TRUE((*opened)->is_broken()) << i;
    Records want = bodies;
    int64_t end = begin;
    for (size_t k = 0; k < want.size(); ++k) {
      const int64_t head_end = end + RecordLog::BytesOf(0);
      if (static_cast<int64_t>(i) >= end && static_cast<int64_t>(i) < head_end) want[k] = "lost";
      end += RecordLog::BytesOf(bodies[k].size());
      if (static_cast<int64_t>(i) >= head_end && static_cast<int64_t>(i) < end) {
        want[k] = absl::StrCat("damaged 7 ", k);
      }
    }
    EXPECT_EQ(read, want) << i;
    ASSERT_TRUE(ReplaceBy(**opened, {"new"}).ok()) << i;
    EXPECT_EQ(Read(), Records{"new"}) << i;
    EXPECT_EQ(testing::ReadFile(Path() + ".damaged"), bytes) << i;
  }
}

TEST_F(RecordLogTest, BytesBehindTheLastRecordAreDamageUnlessTheyAreZero) {
  Write({"one"});
  const std::string whole = Bytes();
  SetBytes(whole + std::string(5000, '\0'));
  EXPECT_EQ(Read(), Records{"one"});
  EXPECT_EQ(Bytes(), whole) << "what was never written is cut off";
  SetBytes(whole + std::string(5000, 'x'));
  EXPECT_EQ(Read(), (Records{"one", "lost"}));
}

TEST_F(RecordLogTest, ARecordAtAnotherPlaceIsNone) {
  Write({"aaaa", "bbbb"});
  std::string bytes = Bytes();
  const size_t size = RecordLog::BytesOf(4);
  bytes.erase(bytes.size() - 2 * size, size);
  SetBytes(bytes);
  EXPECT_EQ(Read(), Records{"lost"});
}

// Even if a client knew the format, it would not know the mark.
TEST_F(RecordLogTest, NoBodyIsTakenForARecord) {
  // The same bytes at the same place, but of another log.
  Write({std::string(RecordLog::BytesOf(1), 'f'), "one"});
  const std::string other = Bytes();
  ::unlink(Path().c_str());
  Write({"x", other.substr(other.size() - RecordLog::BytesOf(3))});
  std::string bytes = Bytes();
  const size_t at = bytes.size() - RecordLog::BytesOf(RecordLog::BytesOf(3));
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  SetBytes(bytes);
  EXPECT_EQ(Read(), (Records{"x", "lost"}));
}

// A log of version 1: see the header.
std::string OldLog(const Records& records) {
  const auto sum = [](std::string_view bytes, size_t place) {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size(), place);
  };
  const std::string identity = "of a test";
  ByteWriter header;
  header.Add(1);
  header.Add(sum(identity, 0));
  header.AddSized(identity);
  std::string log = "quirelog" + header.Take();
  for (const std::string& record : records) {
    ByteWriter head;
    head.Add(record.size());
    head.Add(sum(record, log.size()));
    log += head.Take() + record;
  }
  return log;
}

TEST_F(RecordLogTest, ALogOfVersion1IsReadAndReplaced) {
  const Records records = {"one", "", "three"};
  SetBytes(OldLog(records));
  Records read;
  auto log = *Open(&read);
  EXPECT_EQ(read, records);
  EXPECT_EQ(log->num_damaged(), 0);
  EXPECT_FALSE(log->Append({.body = "four"}).ok()) << "which would be of another version";
  ASSERT_TRUE(ReplaceBy(*log, read).ok());
  ASSERT_TRUE(log->Append({.body = "four"}).ok());
  EXPECT_EQ(Read(), (Records{"one", "", "three", "four"}));
  EXPECT_FALSE(std::filesystem::exists(Path() + ".damaged"));
}

TEST_F(RecordLogTest, AFlippedByteOfVersion1CostsOneRecordUnlessItIsOfASize) {
  const Records records = {"one", "two", "three"};
  const std::string whole = OldLog(records);
  size_t begin = OldLog({}).size();
  for (size_t k = 0; k < records.size(); ++k) {
    const size_t end = begin + 16 + records[k].size();
    for (size_t i = begin; i < end; ++i) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
      SetBytes(bytes);
      Records want(records.begin(), records.begin() + k);
      want.push_back("lost");
      if (i >= begin + 8) want.insert(want.end(), records.begin() + k + 1, records.end());
      EXPECT_EQ(Read(), want) << i;
    }
    begin = end;
  }
}

TEST_F(RecordLogTest, ANewerLogIsRefusedByNameAndLeftAsItIs) {
  Write({"one"});
  std::string bytes = Bytes();
  bytes[8] = 3;
  SetBytes(bytes);
  const absl::Status status = Open(nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            "log: want a log of version 1 or 2, got one of version 3: start the server that wrote "
            "it, or move the file away");
  EXPECT_EQ(Bytes(), bytes);
}

TEST_F(RecordLogTest, ALogThatLostItsNameIsWrittenAgain) {
  auto log = *Open(nullptr);
  for (const bool is_replaced : {false, true}) {
    ASSERT_TRUE(log->Append({.body = "one"}).ok());
    ASSERT_TRUE(log->Sync().ok());
    ::unlink(Path().c_str());
    if (is_replaced) SetBytes("something else");
    EXPECT_FALSE(log->Sync().ok());
    EXPECT_FALSE(log->Append({.body = "two"}).ok());
    ASSERT_TRUE(ReplaceBy(*log, {"one"}).ok());
    EXPECT_EQ(Read(), Records{"one"});
  }
}

TEST_F(RecordLogTest, ALinkInThePlaceOfTheNewFileIsNotFollowed) {
  auto log = *Open(nullptr);
  temp_.Write("precious", "precious");
  ASSERT_EQ(::link((temp_.path() + "/precious").c_str(), (Path() + ".new").c_str()), 0);
  ASSERT_TRUE(ReplaceBy(*log, {"one"}).ok());
  EXPECT_EQ(testing::ReadFile(temp_.path() + "/precious"), "precious");
  EXPECT_EQ(Read(), Records{"one"});
}

TEST_F(RecordLogTest, AnotherIdentityIsRefused) {
  Write({"one"});
  const auto other = Open(nullptr, "of another");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Read(), Records{"one"});
}

// A limit on the size of files stands for a full disk.
TEST_F(RecordLogTest, AfterAFailedWriteItIsBrokenUntilItIsReplaced) {
  auto log = *Open(nullptr);
  ASSERT_TRUE(log->Append({.body = "one"}).ok());
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  rlimit all = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &all), 0);
  const rlimit few = {.rlim_cur = static_cast<rlim_t>(log->bytes() + 20), .rlim_max = all.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &few), 0);
  const absl::Status status = log->Append({.body = "a longer record"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &all), 0);
  std::signal(SIGXFSZ, old);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(log->is_broken());
  EXPECT_FALSE(log->Append({.body = "two"}).ok());
  EXPECT_FALSE(log->Sync().ok());
  EXPECT_TRUE(ReplaceBy(*log, {"one"}).ok());
  EXPECT_TRUE(log->Append({.body = "two"}).ok());
  EXPECT_EQ(Read(), (Records{"one", "two"}));
}

TEST(ByteCodecTest, WhatIsReadBeyondTheEndIsEmpty) {
  ByteWriter writer;
  writer.Add(7);
  writer.AddSized("seven");
  writer.Add(1000);  // a count of items that are not there
  const std::string bytes = writer.Take();
  ByteReader whole(bytes);
  EXPECT_EQ(whole.Number(), 7u);
  EXPECT_EQ(whole.Sized(), "seven");
  EXPECT_EQ(whole.Count(8), 0u);
  EXPECT_FALSE(whole.ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ByteReader part(std::string_view(bytes).substr(0, size));
    part.Number();
    part.Sized();
    part.Number();
    EXPECT_FALSE(part.ok()) << size;
  }
}

class StateDirectoryTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return temp_.path() + "/" + name; }
  static std::string ErrorOf(const std::string& path) {
    return std::string(StateDirectory::Open(path).status().ToString());
  }
  testing::TempDirectory temp_;
};

TEST_F(StateDirectoryTest, IsCreatedForItsOwnerAlone) {
  const auto directory = StateDirectory::Open(Path("new"));
  ASSERT_TRUE(directory.ok()) << directory.status();
  struct stat status = {};
  ASSERT_EQ(::stat(Path("new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ASSERT_TRUE((*directory)->OpenFile("file", /*create=*/true).ok());
  ASSERT_EQ(::stat(Path("new/file").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_TRUE(absl::IsNotFound((*directory)->OpenFile("none", /*create=*/false).status()));
}

TEST_F(StateDirectoryTest, BelongsToOneAtATime) {
  auto first = StateDirectory::Open(temp_.path());
  ASSERT_TRUE(first.ok());
  EXPECT_NE(ErrorOf(temp_.path()).find("another server uses it"), std::string::npos);
  first->reset();
  EXPECT_TRUE(StateDirectory::Open(temp_.path()).ok());
}

TEST_F(StateDirectoryTest, BelongsToOneAlsoWithoutItsFiles) {
  const auto first = StateDirectory::Open(temp_.path());
  ASSERT_TRUE(first.ok());
  ::unlink(Path("lock").c_str());
  EXPECT_NE(ErrorOf(temp_.path()).find("another server uses it"), std::string::npos);
}

// A server of an earlier version locks this file alone.
TEST_F(StateDirectoryTest, TheLockOfAnEarlierServerHolds) {
  temp_.Write("lock", "");
  const base::UniqueFd lock(::open(Path("lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_NE(ErrorOf(temp_.path()).find("another server uses it"), std::string::npos);
}

TEST_F(StateDirectoryTest, NothingIsCreatedInThePlaceOfAFile) {
  const auto directory = *StateDirectory::Open(temp_.path());
  temp_.Write("file", "old");
  const absl::Status status = directory->OpenFile("file", /*create=*/true).status();
  EXPECT_EQ(std::string(status.message()), "file: cannot create: File exists");
  EXPECT_EQ(testing::ReadFile(Path("file")), "old");
}

TEST_F(StateDirectoryTest, WhatOthersMayEnterIsRefused) {
  for (const mode_t mode : {0750, 0701, 0777}) {
    ASSERT_EQ(::chmod(temp_.path().c_str(), mode), 0);
    EXPECT_NE(ErrorOf(temp_.path()).find("chmod 700"), std::string::npos) << mode;
  }
  ASSERT_EQ(::chmod(temp_.path().c_str(), 0700), 0);
}

TEST_F(StateDirectoryTest, LinksAndPipesAreRefused) {
  temp_.Write("elsewhere", "secret");
  const auto directory = *StateDirectory::Open(Path("d"));
  ASSERT_EQ(::symlink("../elsewhere", Path("d/link").c_str()), 0);
  EXPECT_FALSE(directory->OpenFile("link", /*create=*/true).ok());
  EXPECT_FALSE(directory->OpenFile("link", /*create=*/false).ok());
  ASSERT_EQ(::mkfifo(Path("d/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(directory->OpenFile("pipe", /*create=*/false).ok());
  ASSERT_EQ(::symlink("d", Path("to_d").c_str()), 0);
  EXPECT_FALSE(StateDirectory::Open(Path("to_d")).ok());
  EXPECT_FALSE(StateDirectory::Open(Path("elsewhere")).ok());
  EXPECT_FALSE(StateDirectory::Open(Path("no/parent")).ok());
}

}  // namespace
}  // namespace quire::files
