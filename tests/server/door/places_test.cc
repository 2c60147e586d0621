#include "server/door/places.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "server/door/acceptor.h"

namespace quire::server::door {
namespace {

TEST(PlacesTest, AreLimitedInAllAndByAddress) {
  Places places(3, 2);
  Turned why{};
  auto a1 = places.Take("a", why);
  auto a2 = places.Take("a", why);
  ASSERT_TRUE(a1 && a2);
  EXPECT_FALSE(places.Take("a", why));
  EXPECT_EQ(why, Turned::kAddress);
  auto b1 = places.Take("b", why);
  ASSERT_TRUE(b1);
  EXPECT_FALSE(places.Take("c", why));
  EXPECT_EQ(why, Turned::kFull);
  a1.reset();
  const Places::Place moved = *std::move(a2);
  EXPECT_TRUE(places.Take("c", why));  // the place of `a1` was given back at once
  EXPECT_TRUE(places.Take("a", why));
}

TEST(PlacesTest, GreedyAddressesLeaveAsManyAsEachHas) {
  constexpr size_t kPlaces = 100;
  for (const size_t num_greedy : {size_t{1}, size_t{3}, size_t{9}}) {
    Places places(kPlaces, 0);
    Turned why{};
    std::vector<Places::Place> taken;
    for (size_t i = 0; i < kPlaces; ++i) {
      for (size_t address = 0; address < num_greedy; ++address) {
        auto place = places.Take(std::to_string(address), why);
        if (place) taken.push_back(*std::move(place));
      }
    }
    EXPECT_EQ(why, Turned::kAddress);
    const size_t each = kPlaces / (num_greedy + 1);
    EXPECT_GE(taken.size(), num_greedy * each);
    EXPECT_LE(taken.size(), num_greedy * (each + 1));
    EXPECT_TRUE(places.Take("another", why));
  }
}

TEST(PlacesTest, AnAddressThatHasGoneTakesNoPart) {
  Places places(100, 0);
  Turned why{};
  EXPECT_TRUE(places.Take("gone", why));
  const auto take_all = [&](const std::string& key) {
    std::vector<Places::Place> taken;
    while (auto place = places.Take(key, why)) taken.push_back(*std::move(place));
    return taken;
  };
  const std::vector<Places::Place> first = take_all("a");
  EXPECT_EQ(first.size(), 50u) << "half: another may come";
  EXPECT_EQ(take_all("b").size(), 33u) << "a third";
}

TEST(PlacesTest, AnAddressMayHaveOnePlace) {
  Places places(3, 1);
  Turned why{};
  const auto only = places.Take("a", why);
  ASSERT_TRUE(only);
  EXPECT_FALSE(places.Take("a", why));
  EXPECT_EQ(why, Turned::kAddress);
  EXPECT_TRUE(places.Take("b", why));
}

TEST(PlacesTest, AServerOfOnePlaceHasIt) {
  Places places(1, 0);
  Turned why{};
  const auto only = places.Take("a", why);
  ASSERT_TRUE(only);
  EXPECT_FALSE(places.Take("b", why));
  EXPECT_EQ(why, Turned::kFull);
}

sockaddr_storage V6(const char (&bytes)[17]) {
  sockaddr_storage address{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(443);
  std::copy_n(bytes, 16, v6.sin6_addr.s6_addr);
  return address;
}

TEST(AddressTest, AnIpv6NetworkIsOneAddressAndAMappedIpv4IsItself) {
  const auto one = V6("\x20\x01\x0d\xb8\0\0\0\1\0\0\0\0\0\0\0\1");
  const auto same = V6("\x20\x01\x0d\xb8\0\0\0\1\xff\xff\0\0\0\0\0\2");
  const auto other = V6("\x20\x01\x0d\xb8\0\0\0\2\0\0\0\0\0\0\0\1");
  EXPECT_EQ(AddressKey(one), AddressKey(same));
  EXPECT_NE(AddressKey(one), AddressKey(other));
  EXPECT_EQ(AddressText(one), "[2001:db8:0:1::1]:443");
  EXPECT_EQ(AddressText(V6("\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1")), "127.0.0.1:443");
  EXPECT_EQ(AddressKey(V6("\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1")), "127.0.0.1");
}

}  // namespace
}  // namespace quire::server::door
