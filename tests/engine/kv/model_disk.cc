#include "tests/engine/kv/model_disk.h"

#include <iterator>
#include <utility>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

constexpr size_t kMostKept = 100;  // blocks

}  // namespace

void ModelDisk::Offer(int32_t block, int32_t parent, std::string_view root_key,
                      std::span<const int32_t> tokens) {
  ASSERT_FALSE(offered_.contains(block)) << "block " << block << " was not withdrawn";
  ASSERT_EQ(std::ssize(tokens), block_size_) << "block " << block << " is not whole";
  Name name = {std::string(root_key), {}};
  if (parent >= 0) {
    ASSERT_TRUE(offered_.contains(parent)) << "block " << block << " follows an unknown one";
    name = offered_.at(parent).name;
    ASSERT_EQ(name.first, root_key) << "block " << block << " follows one of another root";
  }
  name.second.insert(name.second.end(), tokens.begin(), tokens.end());
  Copy(block, name);  // it may be copied from now on
  offered_[block] = {.name = std::move(name)};
  ++counts_["offer"];
}

void ModelDisk::Withdraw(int32_t block) {
  const auto it = offered_.find(block);
  if (it == offered_.end()) return;
  ASSERT_FALSE(discards_all_) << "block " << block << " may be unsound";
  ++counts_[it->second.is_copied ? "withdraw" : "withdraw before the copy"];
  offered_.erase(it);
}

void ModelDisk::Discard(int32_t block) {
  const auto it = offered_.find(block);
  if (it == offered_.end()) return;
  kept_.erase(it->second.name);
  offered_.erase(it);
  ++counts_["discard"];
}

std::vector<uint64_t> ModelDisk::Copy(int32_t block, const Name& name) const {
  const auto& [root, tokens] = name;
  std::vector<uint64_t> hashes;
  uint64_t hash = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    hash = HashAfter(hash, tokens[i]);
    if (i + block_size_ < tokens.size()) continue;
    const Slot& slot = memory_[block * block_size_ + i % block_size_];
    EXPECT_TRUE(slot.hash == hash && slot.root == root) << "block " << block << ", token " << i;
    hashes.push_back(slot.hash);
  }
  return hashes;
}

bool ModelDisk::CopyOne(uint32_t random) {
  if (offered_.empty()) return false;
  auto it = std::next(offered_.begin(), random % offered_.size());
  for (size_t seen = 0; it->second.is_copied; ++seen) {
    if (seen == offered_.size()) return false;
    if (++it == offered_.end()) it = offered_.begin();
  }
  auto& [block, offered] = *it;
  if (kept_.size() == kMostKept) kept_.erase(std::next(kept_.begin(), random % kMostKept));
  kept_[offered.name] = Copy(block, offered.name);
  offered.is_copied = true;
  return true;
}

const ModelDisk::Name* ModelDisk::PickKept(uint32_t random) const {
  return kept_.empty() ? nullptr : &std::next(kept_.begin(), random % kept_.size())->first;
}

std::vector<std::vector<uint64_t>> ModelDisk::Read(const Name& name) const {
  const auto& [root, tokens] = name;
  std::vector<std::vector<uint64_t>> blocks;
  for (auto end = tokens.begin(); end != tokens.end();) {
    end += block_size_;
    const auto it = kept_.find({root, {tokens.begin(), end}});
    if (it == kept_.end()) break;
    blocks.push_back(it->second);
  }
  return blocks;
}

}  // namespace quire::engine
