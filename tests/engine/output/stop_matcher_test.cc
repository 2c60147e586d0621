#include "engine/output/stop_matcher.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <rapidcheck.h>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

// Returns random texts of only three different letters, so that stop strings often occur and
// overlap.
rc::Gen<std::string> AnyText(int max_size) {
  return rc::gen::exec([max_size] {
    const auto size = *rc::gen::resize(100, rc::gen::inRange(0, max_size + 1));
    return *rc::gen::container<std::string>(size, rc::gen::element('a', 'b', 'c'));
  });
}

rc::Gen<std::vector<std::string>> AnyStops() {
  return rc::gen::exec([] {
    std::vector<std::string> stops(*rc::gen::element(0, 1, 2, 4));
    for (std::string& stop : stops) stop = *rc::gen::element('a', 'b', 'c') + *AnyText(6);
    return stops;
  });
}

// Cuts `text` at random into pieces. Some pieces are empty.
rc::Gen<std::vector<std::string>> AnyPieces(const std::string& text) {
  return rc::gen::exec([text] {
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < text.size();) {
      const auto size = *rc::gen::element<size_t>(0, 1, 2, 3, 5);
      pieces.push_back(text.substr(begin, size));
      begin += size;
    }
    return pieces;
  });
}

struct NaiveStop {
  int32_t stop = -1;
  size_t end = 0;  // the end of the stop string in the text
};

// Returns the stop string with the earliest end at or after `from`. If several end there, returns
// the longest.
NaiveStop FindStop(std::string_view text, const std::vector<std::string>& stops, size_t from = 1) {
  for (size_t end = from; end <= text.size(); ++end) {
    NaiveStop found;
    for (int32_t i = 0; i < std::ssize(stops); ++i) {
      if (text.substr(0, end).ends_with(stops[i]) &&
          (found.stop < 0 || stops[i].size() > stops[found.stop].size())) {
        found = {.stop = i, .end = end};
      }
    }
    if (found.stop >= 0) return found;
  }
  return {};
}

// Returns the length of the longest suffix of `text` that is a proper prefix of one of `stops`.
int64_t NaiveHeld(std::string_view text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t size = 1; size < stop.size(); ++size) {
      if (text.ends_with(stop.substr(0, size))) held = std::max(held, size);
    }
  }
  return static_cast<int64_t>(held);
}

TEST(StopMatcherTest, CutsAtTheEarliestStopHoweverTheTextIsSplit) {
  int num_stopped = 0;
  EXPECT_TRUE(rc::check([&] {
    const std::vector<std::string> stops = *AnyStops();
    const std::string text = *AnyText(40);
    const bool include_stop = *rc::gen::arbitrary<bool>();
    const NaiveStop expected = FindStop(text, stops);

    StopMatcher matcher(std::make_shared<StopPatterns>(stops), include_stop);
    std::string released;
    std::string seen;
    int32_t stopped = -1;
    for (const std::string& piece : *AnyPieces(text)) {
      stopped = matcher.Push(piece, true, released);
      seen += piece;
      if (stopped >= 0) break;
      // All text is released except a suffix that may be the beginning of a stop string.
      RC_ASSERT(std::ssize(released) == std::ssize(seen) - NaiveHeld(seen, stops));
      RC_ASSERT(matcher.num_held() == NaiveHeld(seen, stops));
      RC_ASSERT(std::string_view(text).starts_with(released));
    }
    RC_ASSERT((stopped >= 0) == (expected.stop >= 0));
    if (stopped >= 0) {
      ++num_stopped;
      RC_ASSERT(stops[stopped] == stops[expected.stop]);
      const size_t cut = expected.end - (include_stop ? 0 : stops[expected.stop].size());
      RC_ASSERT(released == text.substr(0, cut));
      RC_ASSERT(matcher.num_held() == 0);
    } else {
      RC_ASSERT(released + matcher.Flush() == text);
    }
  }));
  EXPECT_GT(num_stopped, 0);
}

TEST(StopMatcherTest, PlainTextWhereItMayNotStop) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<std::string> stops = *AnyStops();
    const std::string head = *AnyText(10);
    const std::string tail = *AnyText(10);
    const NaiveStop expected = FindStop(head + tail, stops, head.size() + 1);

    StopMatcher matcher(std::make_shared<StopPatterns>(stops), true);
    std::string released;
    RC_ASSERT(matcher.Push(head, false, released) == -1);
    const int32_t stopped = matcher.Push(tail, true, released);
    RC_ASSERT((stopped >= 0) == (expected.stop >= 0));
    RC_ASSERT(released + matcher.Flush() ==
              (head + tail).substr(0, stopped >= 0 ? expected.end : std::string::npos));
  }));
}

// One byte of a text, which is hidden or shown.
struct SeenByte {
  char byte;
  bool is_shown;
};

std::string Text(std::span<const SeenByte> bytes, bool only_shown) {
  std::string text;
  for (const SeenByte& seen : bytes) {
    if (seen.is_shown || !only_shown) text.push_back(seen.byte);
  }
  return text;
}

struct SeenPiece {
  std::string text;
  bool is_shown;
};

// Returns random pieces, a third of them hidden. A stop string often stands among them, parted by a
// hidden piece.
rc::Gen<std::vector<SeenPiece>> AnySeenPieces(const std::vector<std::string>& stops) {
  return rc::gen::exec([stops] {
    std::vector<SeenPiece> pieces;
    for (const std::string& piece : *AnyPieces(*AnyText(40))) {
      pieces.push_back({piece, *rc::gen::element(true, true, false)});
    }
    if (!stops.empty() && *rc::gen::element(true, true, true, false)) {
      const std::string stop = *rc::gen::elementOf(stops);
      const auto begin = *rc::gen::resize(100, rc::gen::inRange<size_t>(0, stop.size()));
      const auto place = *rc::gen::element<size_t>(0, 0, 0, 1, 2);
      pieces.insert(
          pieces.begin() + std::min(place, pieces.size()),
          {{stop.substr(0, begin), true}, {*AnyText(3), false}, {stop.substr(begin), true}});
    }
    return pieces;
  });
}

TEST(StopMatcherTest, HiddenBytesAreSearchedAndNotReleased) {
  int num_stopped_with = 0;     // by a string that has hidden bytes
  int num_stopped_without = 0;  // by a string that steps over hidden bytes
  EXPECT_TRUE(rc::check([&] {
    const std::vector<std::string> stops = *AnyStops();
    const bool include_stop = *rc::gen::arbitrary<bool>();
    const auto may_stop_from = *rc::gen::element<size_t>(0, 0, 5);
    StopMatcher matcher(std::make_shared<StopPatterns>(stops), include_stop);
    std::string released;
    int32_t stopped = -1;
    std::vector<SeenByte> seen;
    NaiveStop expected;  // end: the number of bytes shown before the string
    for (const auto& [piece, is_shown] : *AnySeenPieces(stops)) {
      const bool may_stop = seen.size() >= may_stop_from;
      stopped = is_shown ? matcher.Push(piece, may_stop, released)
                         : matcher.PushHidden("", piece, may_stop, released);
      for (const char byte : piece) {
        seen.push_back({byte, is_shown});
        const std::string all = Text(seen, false);
        const std::string shown = Text(seen, true);
        // Among strings as long, one in the text without hidden bytes wins: it is searched first.
        for (const bool only_shown : {true, false}) {
          if (!may_stop || (only_shown && !is_shown)) continue;
          for (int32_t i = 0; i < std::ssize(stops); ++i) {
            const size_t size = stops[i].size();
            if (!(only_shown ? shown : all).ends_with(stops[i])) continue;
            if (expected.stop >= 0 && size <= stops[expected.stop].size()) continue;
            expected = {.stop = i,
                        .end = only_shown
                                   ? shown.size() - size
                                   : Text(std::span(seen).first(all.size() - size), true).size()};
          }
        }
        if (expected.stop < 0) continue;
        if (!all.ends_with(stops[expected.stop])) ++num_stopped_without;
        if (!is_shown || !shown.ends_with(stops[expected.stop])) ++num_stopped_with;
        break;
      }
      RC_ASSERT((stopped >= 0) == (expected.stop >= 0));
      if (stopped >= 0) break;
      RC_ASSERT(Text(seen, true).starts_with(released));
      RC_ASSERT(std::ssize(released) + matcher.num_held() == std::ssize(Text(seen, true)));
      if (!may_stop) continue;
      // The text that is held back is no more than could still become part of a string.
      RC_ASSERT(matcher.num_held() <=
                std::max(NaiveHeld(Text(seen, true), stops), NaiveHeld(Text(seen, false), stops)));
    }
    if (stopped < 0) {
      RC_ASSERT(released + matcher.Flush() == Text(seen, true));
      return;
    }
    RC_ASSERT(stops[stopped] == stops[expected.stop]);
    RC_ASSERT(released == Text(seen, true).substr(0, expected.end) +
                              (include_stop ? stops[stopped] : std::string()));
    RC_ASSERT(matcher.num_held() == 0);
  }));
  EXPECT_GT(num_stopped_with, 0);
  EXPECT_GT(num_stopped_without, 0);
}

TEST(StopMatcherTest, HalfACharacterIsShownBeforeTheHiddenTokenThatStops) {
  for (const bool include_stop : {false, true}) {
    for (const char* stop : {"<x>", "?<x>"}) {
      StopMatcher matcher(std::make_shared<StopPatterns>(std::vector<std::string>{stop}),
                          include_stop);
      std::string released;
      EXPECT_EQ(matcher.Push("a", true, released), -1);
      EXPECT_EQ(matcher.PushHidden("?", "<y>", true, released), -1) << "the half comes later";
      EXPECT_EQ(matcher.PushHidden("?", "<x>", true, released), 0);
      const std::string before = stop[0] == '<' ? "a?" : "a";
      EXPECT_EQ(released, before + (include_stop ? stop : ""));
    }
  }
}

TEST(StopMatcherTest, AStringThatMayNotStopCanBeginTheOneThatDoes) {
  StopMatcher matcher(std::make_shared<StopPatterns>(std::vector<std::string>{"abab"}), false);
  std::string released;
  EXPECT_EQ(matcher.Push("abab", false, released), -1);
  EXPECT_EQ(matcher.num_held(), 2);
  EXPECT_EQ(matcher.Push("ab", true, released), 0);
  EXPECT_EQ(released, "ab");
}

TEST(StopMatcherTest, TakesBackAStopStringSplitOverManyPieces) {
  StopMatcher matcher(std::make_shared<StopPatterns>(std::vector<std::string>{"</stop>"}), false);
  std::string released;
  for (const char* piece : {"Hi <", "/", "st", "op", " </sto"}) {
    EXPECT_EQ(matcher.Push(piece, true, released), -1);
  }
  EXPECT_EQ(released, "Hi </stop ");
  EXPECT_EQ(matcher.num_held(), 5);
  EXPECT_EQ(matcher.Push("p> and more", true, released), 0);
  EXPECT_EQ(released, "Hi </stop ");
}

TEST(StopMatcherTest, TheOneThatEndsFirstWins) {
  const std::vector<std::string> stops = {"abcd", "bc", "abc"};
  StopMatcher matcher(std::make_shared<StopPatterns>(stops), false);
  std::string released;
  EXPECT_EQ(matcher.Push("xabcd", true, released), 2) << "the longest of those that end first";
  EXPECT_EQ(released, "x");
}

TEST(StopMatcherTest, WithoutStopStringsNothingIsHeldBack) {
  StopMatcher matcher(std::make_shared<StopPatterns>(std::vector<std::string>()), false);
  std::string released;
  EXPECT_EQ(matcher.Push("abc", true, released), -1);
  EXPECT_EQ(released, "abc");
  EXPECT_EQ(matcher.num_held(), 0);
}

}  // namespace
}  // namespace quire::engine
