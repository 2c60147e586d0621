#include "engine/output/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::engine {

StopPatterns::StopPatterns(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) {
    QUIRE_CHECK(!string.empty()) << "an empty stop string";
    std::vector<int32_t>& borders = borders_.emplace_back(string.size() + 1, 0);
    int32_t border = 0;
    for (size_t m = 1; m < string.size(); ++m) {
      while (border > 0 && string[m] != string[border]) border = borders[border];
      if (string[m] == string[border]) ++border;
      borders[m + 1] = border;
    }
  }
}

int32_t StopPatterns::Advance(int32_t index, int32_t matched, char byte) const {
  const std::string& string = strings_[index];
  while (matched > 0 && string[matched] != byte) matched = borders_[index][matched];
  return string[matched] == byte ? matched + 1 : 0;
}

StopMatcher::StopMatcher(std::shared_ptr<const StopPatterns> patterns, bool include_stop)
    : patterns_(std::move(patterns)), include_stop_(include_stop), matched_(patterns_->size()) {}

int32_t StopMatcher::Step(char byte, std::vector<int32_t>& matched, int32_t& ended) const {
  int32_t longest = 0;
  for (int32_t i = 0; i < patterns_->size(); ++i) {
    matched[i] = patterns_->Advance(i, matched[i], byte);
    const size_t length = patterns_->string(i).size();
    if (matched[i] == static_cast<int32_t>(length)) {
      if (ended < 0 || length > patterns_->string(ended).size()) ended = i;
      // Where the text may not stop, the string is plain text. The next match may then begin within
      // it.
      matched[i] = patterns_->Border(i);
    }
    longest = std::max(longest, matched[i]);
  }
  return longest;
}

int32_t StopMatcher::NumShown(int32_t size) const {
  return static_cast<int32_t>(std::count(is_shown_.end() - size, is_shown_.end(), true));
}

int32_t StopMatcher::Feed(std::string_view text, bool is_shown, bool may_stop,
                          std::string& released) {
  const auto length = [this](int32_t i) {
    return static_cast<int32_t>(patterns_->string(i).size());
  };
  for (const char byte : text) {
    if (is_shown) held_.push_back(byte);
    int32_t ended = -1;
    int32_t longest = Step(byte, matched_, ended);  // from here on, in bytes that are not hidden
    int32_t num_stop = ended < 0 ? 0 : length(ended);
    if (hides_) {
      is_shown_.push_back(is_shown);
      num_stop = NumShown(num_stop);
      is_shown_.erase(is_shown_.begin(), is_shown_.end() - longest);
      longest = NumShown(longest);
      int32_t ended_shown = -1;
      if (is_shown) longest = std::max(longest, Step(byte, matched_shown_, ended_shown));
      if (ended_shown >= 0 && (ended < 0 || length(ended_shown) >= length(ended))) {
        ended = ended_shown;
        num_stop = length(ended);
      }
      if (!is_shown) longest = std::max(longest, *std::ranges::max_element(matched_shown_));
    }
    if (ended >= 0 && may_stop) {
      released.append(held_, 0, held_.size() - static_cast<size_t>(num_stop));
      held_.clear();
      return ended;
    }
    const size_t num_free = held_.size() - static_cast<size_t>(longest);
    released.append(held_, 0, num_free);
    held_.erase(0, num_free);
  }
  return -1;
}

int32_t StopMatcher::Push(std::string_view text, bool may_stop, std::string& released) {
  if (patterns_->empty()) {
    released.append(text);
    return -1;
  }
  const int32_t stopped = Feed(text, /*is_shown=*/true, may_stop, released);
  if (stopped >= 0 && include_stop_) released.append(patterns_->string(stopped));
  return stopped;
}

int32_t StopMatcher::PushHidden(std::string_view unfinished, std::string_view token, bool may_stop,
                                std::string& released) {
  if (patterns_->empty()) return -1;
  if (!std::exchange(hides_, true)) {
    matched_shown_ = matched_;
    is_shown_.assign(held_.size(), true);
  }
  Feed(unfinished, /*is_shown=*/false, /*may_stop=*/false, released);
  const int32_t stopped = Feed(token, /*is_shown=*/false, may_stop, released);
  if (stopped >= 0) {
    const std::string& string = patterns_->string(stopped);
    if (string.size() <= token.size()) released.append(unfinished);
    if (include_stop_) released.append(string);
  }
  return stopped;
}

std::string StopMatcher::Flush() { return std::exchange(held_, std::string()); }

}  // namespace quire::engine
