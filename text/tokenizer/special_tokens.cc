#include "text/tokenizer/special_tokens.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "text/tokenizer/tokenizer_json_members.h"

namespace quire::text {
namespace {

using nlohmann::json;

// Returns the text of a token that is written as a string or as an object; empty for anything else.
std::string TextOf(const json& token) {
  const json& text = token.is_object() ? JsonMember(token, "content") : token;
  return text.is_string() ? text.get<std::string>() : std::string();
}

// The added tokens of a tokenizer.json, found by their texts: there may be thousands.
class AddedTokenList {
 public:
  explicit AddedTokenList(json& tokens) : tokens_(tokens) {
    for (size_t i = 0; i < tokens_.size(); ++i) positions_.emplace(TextOf(tokens_[i]), i);
  }

  json* Find(const std::string& text) {
    const auto it = positions_.find(text);
    return it == positions_.end() ? nullptr : &tokens_[it->second];
  }
  void Add(json token) {
    positions_.emplace(TextOf(token), tokens_.size());
    tokens_.push_back(std::move(token));
  }

 private:
  json& tokens_;
  std::unordered_map<std::string, size_t> positions_;
};

}  // namespace

absl::Status AddConfiguredTokens(const json& tokenizer_config, const PieceList& pieces,
                                 json& added_tokens) {
  AddedTokenList list(added_tokens);
  const json& decoder = JsonMember(tokenizer_config, "added_tokens_decoder");
  if (decoder.is_object()) {
    for (const auto& [key, token] : decoder.items()) {
      int32_t id = -1;
      if (!token.is_object() || !absl::SimpleAtoi(key, &id)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tokenizer_config.json: added_tokens_decoder: want an object by id, got \"", key,
            "\""));
      }
      json added = token;
      if (json* const known = list.Find(TextOf(token))) {
        added["id"] = (*known)["id"];
        *known = std::move(added);
      } else {
        added["id"] = id;
        list.Add(std::move(added));
      }
    }
  }
  const auto add_special = [&](const std::string& text) {
    if (json* const known = list.Find(text)) {
      (*known)["special"] = true;
      // Absent, it would follow from `special`.
      if (!known->contains("normalized")) (*known)["normalized"] = true;
      return;
    }
    const auto piece = std::ranges::find(pieces, text, &PieceList::value_type::first);
    if (text.empty() || piece == pieces.end()) return;
    list.Add({{"id", piece->second}, {"content", text}, {"special", true}});
  };
  for (const auto& [name, text] : NamedSpecialTokens(tokenizer_config)) add_special(text);
  // The first key is the older name of the second. A list under the second rules over it.
  const json& older = JsonMember(tokenizer_config, "additional_special_tokens");
  const json& extra = JsonMember(tokenizer_config, "extra_special_tokens");
  const json& further = extra.is_array() && !extra.empty() ? extra : older;
  if (!further.is_array()) return absl::OkStatus();
  for (const json& token : further) add_special(TextOf(token));
  return absl::OkStatus();
}

std::map<std::string, std::string> NamedSpecialTokens(const json& tokenizer_config) {
  std::map<std::string, std::string> texts;
  const auto add = [&](const std::string& name, const json& token) {
    if (std::string text = TextOf(token); !text.empty()) texts.emplace(name, std::move(text));
  };
  if (!tokenizer_config.is_object()) return texts;
  for (const auto& [key, value] : tokenizer_config.items()) {
    if (key.ends_with("_token")) add(key, value);
  }
  const json& extra = JsonMember(tokenizer_config, "extra_special_tokens");
  if (extra.is_object()) {
    for (const auto& [name, token] : extra.items()) add(name, token);
  }
  return texts;
}

std::string SpecialTokenText(const json& tokenizer_config, std::string_view key) {
  return TextOf(JsonMember(tokenizer_config, std::string(key).c_str()));
}

}  // namespace quire::text
