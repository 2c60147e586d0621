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

int32_t StopMatcher::Push(std::string_view text, bool may_stop, std::string& released) {
  if (patterns_->empty()) {
    released.append(text);
    return -1;
  }
  for (const char byte : text) {
    held_.push_back(byte);
    int32_t longest = 0;   // bytes of the text's end that could still become a stop string
    int32_t stopped = -1;  // the longest stop string that ends here
    for (int32_t i = 0; i < patterns_->size(); ++i) {
      matched_[i] = patterns_->Advance(i, matched_[i], byte);
      const auto length = static_cast<int32_t>(patterns_->string(i).size());
      if (matched_[i] == length) {
        if (stopped < 0 || length > static_cast<int32_t>(patterns_->string(stopped).size())) {
          stopped = i;
        }
        // If may_stop is false, the string is plain text. The next match may then begin within it.
        matched_[i] = patterns_->Border(i);
      }
      longest = std::max(longest, matched_[i]);
    }
    if (stopped >= 0 && may_stop) {
      const size_t length = include_stop_ ? 0 : patterns_->string(stopped).size();
      released.append(held_, 0, held_.size() - length);
      held_.clear();
      return stopped;
    }
    const size_t num_free = held_.size() - static_cast<size_t>(longest);
    released.append(held_, 0, num_free);
    held_.erase(0, num_free);
  }
  return -1;
}

std::string StopMatcher::Flush() { return std::exchange(held_, std::string()); }

}  // namespace quire::engine
