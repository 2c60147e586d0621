#include "text/tokenizer/unigram_model.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "base/interrupt.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

constexpr double kUnknownPenalty = 10.0;  // SentencePiece's kUnkPenalty

ByteTrie TrieOf(const std::vector<UnigramModel::Piece>& pieces) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  entries.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces[i].text.empty()) entries.emplace_back(pieces[i].text, static_cast<int32_t>(i));
  }
  return ByteTrie(std::move(entries));
}

}  // namespace

UnigramModel::UnigramModel(const UnigramModelConfig& config, const std::vector<Piece>& pieces)
    : config_(config), trie_(TrieOf(pieces)) {
  scores_.reserve(pieces.size());
  for (const Piece& piece : pieces) scores_.push_back(piece.score);
  if (!scores_.empty()) {
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  }
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    byte_tokens_[byte] = trie_.Find(absl::StrFormat("<0x%02X>", byte));
  }
}

bool UnigramModel::FindBest(std::string_view word, std::vector<Best>& best) const {
  best.assign(word.size() + 1, Best());
  const auto offer = [&](size_t end, const Best& candidate) {
    if (best[end].begin == kNoBegin || candidate.score > best[end].score) best[end] = candidate;
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t character = base::DecodeUtf8(word, begin).length;
    const double score = best[begin].score;
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < word.size();) {
      node = trie_.Next(node, static_cast<uint8_t>(word[end++]));
      if (node == ByteTrie::kNone) break;
      const int32_t id = trie_.Value(node);
      if (id < 0) continue;
      offer(end, {score + scores_[static_cast<size_t>(id)], static_cast<uint32_t>(begin), id});
      has_character = has_character || end == begin + character;
    }
    if (!has_character) {
      offer(begin + character,
            {score + unknown_score_, static_cast<uint32_t>(begin), config_.unknown_id});
    }
    begin += character;
    if (base::Interrupted(static_cast<int64_t>(character))) return false;
  }
  return true;
}

void UnigramModel::EmitUnknown(std::string_view word, uint32_t begin, uint32_t end,
                               std::vector<WordToken>& out) const {
  // The text of the unknown token, "<unk>", becomes that token even with byte fallback.
  const int32_t itself = trie_.Find(word.substr(begin, end - begin));
  if (itself >= 0) {
    out.push_back({itself, begin, end});
    return;
  }
  const auto has_token = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)] >= 0; };
  const std::string_view text = word.substr(begin, end - begin);
  if (config_.byte_fallback && std::all_of(text.begin(), text.end(), has_token)) {
    for (uint32_t i = begin; i < end; ++i) {
      out.push_back({byte_tokens_[static_cast<uint8_t>(word[i])], i, i + 1});
    }
  } else if (config_.unknown_id >= 0) {
    out.push_back({config_.unknown_id, begin, end});
  }
}

bool UnigramModel::covers_all() const {
  return config_.byte_fallback &&
         std::ranges::all_of(byte_tokens_, [](int32_t id) { return id >= 0; });
}

void UnigramModel::EncodeWord(std::string_view word, std::vector<WordToken>& out) const {
  if (word.empty()) return;
  thread_local std::vector<Best> best;         // scratch
  thread_local std::vector<WordToken> tokens;  // of the word, from the last to the first
  if (!FindBest(word, best)) return;
  tokens.clear();
  for (auto end = static_cast<uint32_t>(word.size()); end > 0; end = best[end].begin) {
    tokens.push_back({best[end].id, best[end].begin, end});
  }
  for (size_t i = tokens.size(); i-- > 0;) {
    if (tokens[i].id != config_.unknown_id) {
      out.push_back(tokens[i]);
      continue;
    }
    const uint32_t begin = tokens[i].begin;
    while (i > 0 && tokens[i - 1].id == config_.unknown_id) --i;
    EmitUnknown(word, begin, tokens[i].end, out);
  }
  // The scratch memory of a huge word is freed. It would otherwise stay allocated until the thread
  // ends.
  if (best.capacity() > 64 * 1024) {
    std::vector<Best>().swap(best);
    std::vector<WordToken>().swap(tokens);
  }
}

}  // namespace quire::text
