#include "base/resource_name.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace quire::base {
namespace {

TEST(ResourceNameTest, NewNamesAreNamesOfTheirCollectionAndDiffer) {
  std::set<std::string> names;
  for (int i = 0; i < 1000; ++i) names.insert(NewResourceName("things"));
  EXPECT_EQ(names.size(), 1000);
  std::set<char> digits;
  for (const std::string& name : names) {
    EXPECT_TRUE(IsResourceName("things", name)) << name;
    digits.insert(name.begin() + 7, name.end());
  }
  EXPECT_EQ(digits.size(), 32) << "every digit occurs";
}

TEST(ResourceNameTest, NothingElseIsAName) {
  const std::string good = "things/0123456789abcdefghjkmnpqrs";
  ASSERT_TRUE(IsResourceName("things", good));
  EXPECT_FALSE(IsResourceName("thing", good));
  EXPECT_FALSE(IsResourceName("others", good));
  EXPECT_FALSE(IsResourceName("things", good + "0"));
  EXPECT_FALSE(IsResourceName("things", good.substr(0, good.size() - 1)));
  for (const char c : {'i', 'l', 'o', 'u', 'A', '/', '\0', '\n', ' '}) {
    std::string bad = good;
    bad.back() = c;
    EXPECT_FALSE(IsResourceName("things", bad)) << c;
  }
  EXPECT_FALSE(IsResourceName("things", "things/"));
  EXPECT_FALSE(IsResourceName("things", ""));
}

}  // namespace
}  // namespace quire::base
