#include "files/record_log.h"

#include <csignal>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

#include "files/byte_codec.h"
#include "files/state_directory.h"
#include "tests/testing/temp_directory.h"

namespace quire::files {
namespace {

using Records = std::vector<std::string>;

class RecordLogTest : public ::testing::Test {
 protected:
  RecordLogTest() : directory_(*StateDirectory::Open(temp_.path())) {}

  std::string Path() const { return temp_.path() + "/log"; }
  std::string Bytes() const {
    std::ifstream file(Path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void SetBytes(std::string_view bytes) const { temp_.Write("log", bytes); }
  absl::StatusOr<std::unique_ptr<RecordLog>> Open(Records* records,
                                                  const std::string& identity = "of a test") {
    if (records != nullptr) records->clear();
    return RecordLog::Open(*directory_, "log", identity, [&](std::string_view record) {
      if (records != nullptr) records->emplace_back(record);
      return absl::OkStatus();
    });
  }
  Records Read() {
    Records records;
    const auto log = Open(&records);
    EXPECT_TRUE(log.ok()) << log.status();
    return records;
  }
  void Write(const Records& records) {
    auto log = *Open(nullptr);
    for (const std::string& record : records) ASSERT_TRUE(log->Append(record).ok());
    ASSERT_TRUE(log->Sync().ok());
    EXPECT_EQ(log->bytes(), std::ssize(Bytes()));
  }
  static absl::Status ReplaceBy(RecordLog& log, const Records& records) {
    size_t i = 0;
    return log.Replace([&](std::string& record) {
      if (i == records.size()) return false;
      record = records[i++];
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
        RC_ASSERT((*log)->Append(record).ok());
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

TEST_F(RecordLogTest, AFlippedByteEndsTheLog) {
  const Records records = {"one", "two", "three"};
  Write(records);
  const std::string whole = Bytes();
  const auto header = static_cast<int64_t>(whole.size()) - RecordLog::BytesOf(3) -
                      RecordLog::BytesOf(3) - RecordLog::BytesOf(5);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    SetBytes(bytes);
    Records read;
    const auto log = Open(&read);
    if (static_cast<int64_t>(i) < header) {
      EXPECT_FALSE(log.ok()) << i;
      EXPECT_EQ(Bytes(), bytes) << "nothing is lost by a damaged header";
      continue;
    }
    ASSERT_TRUE(log.ok()) << i << log.status();
    ASSERT_LT(read.size(), 3u) << i;
    EXPECT_TRUE(std::equal(read.begin(), read.end(), records.begin())) << i;
    EXPECT_GT((*log)->num_cut_off(), 0) << i;
  }
}

TEST_F(RecordLogTest, ARecordAtAnotherPlaceIsNone) {
  Write({"aaaa", "bbbb"});
  std::string bytes = Bytes();
  const size_t size = RecordLog::BytesOf(4);
  bytes.erase(bytes.size() - 2 * size, size);
  SetBytes(bytes);
  EXPECT_EQ(Read(), Records());
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
  ASSERT_TRUE(log->Append("one").ok());
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  rlimit all = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &all), 0);
  const rlimit few = {.rlim_cur = static_cast<rlim_t>(log->bytes() + 20), .rlim_max = all.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &few), 0);
  const absl::Status status = log->Append("a longer record");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &all), 0);
  std::signal(SIGXFSZ, old);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(log->is_broken());
  EXPECT_FALSE(log->Append("two").ok());
  EXPECT_FALSE(log->Sync().ok());
  EXPECT_TRUE(ReplaceBy(*log, {"one"}).ok());
  EXPECT_TRUE(log->Append("two").ok());
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
  ASSERT_EQ(::mkfifo(Path("d/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(directory->OpenFile("pipe", /*create=*/false).ok());
  ASSERT_EQ(::symlink("d", Path("to_d").c_str()), 0);
  EXPECT_FALSE(StateDirectory::Open(Path("to_d")).ok());
  EXPECT_FALSE(StateDirectory::Open(Path("elsewhere")).ok());
  EXPECT_FALSE(StateDirectory::Open(Path("no/parent")).ok());
}

}  // namespace
}  // namespace quire::files
