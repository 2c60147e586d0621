// Our engine beside Python's Jinja2: testdata/*.json, written by make_goldens.py.

#include <cstdint>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "engine/tokenizer/jinja/template.h"
#include "tests/testing/test_data.h"

namespace quire::engine::jinja {
namespace {

using Json = nlohmann::ordered_json;

// The scripts' NOW, as strftime_now shows it anywhere.
absl::Time Now() {
  return absl::FromCivil(absl::CivilSecond(2024, 7, 26, 12, 0, 0), absl::LocalTimeZone());
}

absl::StatusOr<std::string> Render(const std::string& source, const Json& context) {
  absl::StatusOr<Template> parsed = Template::Create(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(context, Now());
}

Json Goldens(std::string_view name) {
  const std::string text = testing::ReadFile(
      testing::TestSourcePath("engine/tokenizer/jinja/testdata/" + std::string(name)));
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string Fnv1a(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return absl::StrFormat("%016x", hash);
}

TEST(JinjaGoldenTest, SnippetsRenderAsInPython) {
  const Json goldens = Goldens("snippets.json");
  ASSERT_GT(goldens.size(), 500u);
  int rendered = 0, failed = 0;
  for (const Json& golden : goldens) {
    const auto source = golden["template"].get<std::string>();
    SCOPED_TRACE(source);
    const absl::StatusOr<std::string> text =
        Render(source, golden.value("context", Json::object()));
    if (golden.contains("output")) {
      EXPECT_TRUE(text.ok()) << text.status();
      if (text.ok()) {
        EXPECT_EQ(*text, golden["output"].get<std::string>());
      }
      ++rendered;
      continue;
    }
    ++failed;
    EXPECT_FALSE(text.ok()) << "Python fails (" << golden.dump() << "), we print: " << *text;
    if (text.ok()) continue;
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    if (golden.contains("raised")) {
      EXPECT_EQ(std::string(text.status().message()), golden["raised"].get<std::string>());
    }
  }
  EXPECT_GT(rendered, 300);
  EXPECT_GT(failed, 100);
}

TEST(JinjaGoldenTest, RealTemplatesLoadAndRenderAsInPython) {
  QUIRE_TEST_DATA_OR_SKIP(material, "chat-templates");
  std::map<std::string, bool> loaded;
  int equal = 0, both_fail = 0;
  for (const Json& golden : Goldens("templates.json")) {
    const auto name = golden["template"].get<std::string>();
    SCOPED_TRACE(golden.dump());
    const absl::StatusOr<Template> parsed =
        Template::Create(testing::ReadFile(material + "/templates/" + name));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    loaded[name] = parsed.ok();
    if (!parsed.ok()) continue;
    const Json context = Json::parse(
        testing::ReadFile(material + "/minja-contexts/" + golden["context"].get<std::string>()),
        nullptr, false);
    const absl::StatusOr<std::string> text = parsed->Render(context, Now());
    if (golden.contains("hash")) {
      EXPECT_TRUE(text.ok()) << text.status();
      if (!text.ok()) continue;
      EXPECT_EQ(Fnv1a(*text), golden["hash"].get<std::string>()) << *text;
      equal += Fnv1a(*text) == golden["hash"].get<std::string>() ? 1 : 0;
    } else if (golden.contains("raised")) {
      EXPECT_EQ(std::string(text.status().message()), golden["raised"].get<std::string>());
    } else {
      both_fail += text.ok() ? 0 : 1;
    }
  }
  int num_loaded = 0;
  for (const auto& [name, ok] : loaded) num_loaded += ok ? 1 : 0;
  RecordProperty("loaded", num_loaded);
  std::printf("templates loaded: %d of %zu; renderings equal to Python's: %d; both fail: %d\n",
              num_loaded, loaded.size(), equal, both_fail);
  EXPECT_EQ(num_loaded, 55);
}

// The cases of llama.cpp, where Python's Jinja2 gives the same.
TEST(JinjaGoldenTest, PublishedCasesRenderAsExpected) {
  QUIRE_TEST_DATA_OR_SKIP(path, "chat-templates/expected/llama.cpp_2025-02.json");
  const Json file = Json::parse(testing::ReadFile(path), nullptr, false);
  int checked = 0;
  for (const Json& test_case : file["cases"]) {
    SCOPED_TRACE(test_case["name"].get<std::string>());
    const Json& python = test_case["python_jinja2"];
    const absl::StatusOr<std::string> text =
        Render(test_case["template"].get<std::string>(), {{"messages", file["conversation"]},
                                                          {"add_generation_prompt", true},
                                                          {"bos_token", test_case["bos_token"]},
                                                          {"eos_token", test_case["eos_token"]}});
    if (!python.is_object() || !python.contains("output")) {
      EXPECT_FALSE(text.ok());
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, python["output"].get<std::string>());
    if (!test_case["agrees_with_python_jinja2"].get<bool>()) continue;
    std::string expected = test_case["expected_output_jinja"].get<std::string>();
    if (expected.empty()) expected = test_case["expected_output_heuristic"].get<std::string>();
    EXPECT_EQ(*text, expected);
    ++checked;
  }
  EXPECT_EQ(checked, 22);
}

}  // namespace
}  // namespace quire::engine::jinja
