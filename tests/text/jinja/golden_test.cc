// Compares our engine with Python's Jinja2. make_goldens.py wrote Python's results to
// testdata/*.json.

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "tests/testing/test_data.h"
#include "text/jinja/template.h"

namespace quire::jinja {
namespace {

using Json = nlohmann::ordered_json;

// Returns the time NOW of make_goldens.py. It is a local time, so that strftime_now prints the same
// in every time zone.
absl::Time Now() {
  return absl::FromCivil(absl::CivilSecond(2024, 7, 26, 12, 0, 0), absl::LocalTimeZone());
}

absl::StatusOr<std::string> Render(const std::string& source, const Json& context) {
  absl::StatusOr<Template> parsed = Template::Create(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(context, Now());
}

Json Goldens(std::string_view name) {
  const std::string text =
      testing::ReadFile(testing::TestSourcePath("text/jinja/testdata/" + std::string(name)));
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

using NamedContexts = std::vector<std::pair<std::string, Json>>;

// Returns the contexts with which make_goldens.py renders every template: those of contexts.json
// behind `contexts`.
NamedContexts ContextsBehind(NamedContexts contexts) {
  for (const Json& row : Goldens("contexts.json")) {
    contexts.emplace_back(row["name"].get<std::string>(), row["context"]);
  }
  return contexts;
}

// Returns the string that outcome() of make_goldens.py returns for the same result. If `expected`
// is "error", every error gives "error". Otherwise an error gives a string with the message of the
// error.
std::string OutcomeOf(const absl::StatusOr<std::string>& text, const std::string& expected) {
  if (text.ok()) return Fnv1a(*text).substr(8);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  if (expected == "error") return expected;
  return absl::StrCat("raised: ", text.status().message());
}

struct Counts {
  int loaded = 0;
  int beyond = 0;  // texts that only our engine renders
};

// Expects that each template of `goldens`, read from `folder`, renders each context as in
// Python.
Counts ExpectAsInPython(std::string_view goldens, const std::string& folder,
                        const NamedContexts& contexts) {
  int loaded = 0, texts = 0, raised = 0, errors = 0, beyond = 0;
  for (const Json& golden : Goldens(goldens)) {
    const auto name = golden["template"].get<std::string>();
    const std::string source = testing::ReadFile(folder + "/" + name);
    const absl::StatusOr<Template> parsed = Template::Create(source);
    EXPECT_TRUE(parsed.ok()) << name << ": " << parsed.status();
    if (!parsed.ok()) continue;
    ++loaded;
    EXPECT_EQ(golden["outcomes"].size(), contexts.size());
    if (golden["outcomes"].size() != contexts.size()) continue;
    for (size_t i = 0; i < contexts.size(); ++i) {
      const auto expected = golden["outcomes"][i].get<std::string>();
      const absl::StatusOr<std::string> text = parsed->Render(contexts[i].second, Now());
      // Some templates use llama.cpp's filter from_json. Python has no such filter and fails.
      if (text.ok() && expected == "error" && source.find("| from_json") != std::string::npos) {
        ++beyond;
        continue;
      }
      const std::string outcome = OutcomeOf(text, expected);
      EXPECT_EQ(outcome, expected) << name << ", " << contexts[i].first << ": "
                                   << (text.ok() ? *text : text.status().ToString());
      if (outcome != expected) continue;
      ++(text.ok() ? texts : expected == "error" ? errors : raised);
    }
  }
  std::printf(
      "templates loaded: %d; equal to Python's: %d texts, %d raised; %d fail in both; %d render "
      "here alone (from_json)\n",
      loaded, texts, raised, errors, beyond);
  return {.loaded = loaded, .beyond = beyond};
}

TEST(JinjaGoldenTest, TemplatesLoadAndRenderAsInPython) {
  const NamedContexts contexts = ContextsBehind({});
  ASSERT_GE(contexts.size(), 40u);
  const std::string own = testing::TestSourcePath("text/jinja/testdata");
  EXPECT_EQ(ExpectAsInPython("own_templates.json", own, contexts).loaded, 6);
}

class PublishedTemplatesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PublishedTemplatesTest, LoadAndRenderAsInPython) {
  const std::string material = *testing::TestDataPath(GetParam());
  NamedContexts minjas;
  for (const char* name : {"simple.json", "system.json", "tool_use.json"}) {
    const std::string text = testing::ReadFile(material + "/minja-contexts/" + name);
    minjas.emplace_back(name, Json::parse(text, nullptr, /*allow_exceptions=*/false));
  }
  const Counts counts =
      ExpectAsInPython("templates.json", material + "/templates", ContextsBehind(minjas));
  EXPECT_EQ(counts.loaded, 55);
  EXPECT_EQ(counts.beyond, 10);
}

// Renders the test cases of llama.cpp. Each text must equal that of Jinja2 in Python. Where
// llama.cpp agrees with Python, the text must also equal that of llama.cpp.
TEST_P(PublishedTemplatesTest, RenderTheCasesOfLlamaCpp) {
  const std::string path = *testing::TestDataPath(GetParam()) + "/expected/llama.cpp_2025-02.json";
  const Json file = Json::parse(testing::ReadFile(path), nullptr, false);
  ASSERT_EQ(file["cases"].size(), 30u);
  int checked = 0, differ = 0, fail = 0;
  for (const Json& test_case : file["cases"]) {
    SCOPED_TRACE(test_case["name"].get<std::string>());
    const Json& python = test_case["python_jinja2"];
    const absl::StatusOr<std::string> text =
        Render(test_case["template"].get<std::string>(), {{"messages", file["conversation"]},
                                                          {"add_generation_prompt", true},
                                                          {"bos_token", test_case["bos_token"]},
                                                          {"eos_token", test_case["eos_token"]}});
    if (!python.is_object() || !python.contains("output")) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
      ++fail;
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, python["output"].get<std::string>());
    // Here llama.cpp gives another text, because it merges the system message into the first user
    // message, or trims text.
    if (!test_case["agrees_with_python_jinja2"].get<bool>()) {
      ++differ;
      continue;
    }
    std::string expected = test_case["expected_output_jinja"].get<std::string>();
    if (expected.empty()) expected = test_case["expected_output_heuristic"].get<std::string>();
    EXPECT_EQ(*text, expected);
    ++checked;
  }
  EXPECT_EQ(checked, 22);
  EXPECT_EQ(differ, 5);
  EXPECT_EQ(fail, 3);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedTemplatesTest);
INSTANTIATE_TEST_SUITE_P(Chat, PublishedTemplatesTest,
                         ::testing::ValuesIn(testing::IfTestData<std::string>({"chat-templates"},
                                                                              {"chat-templates"})));

}  // namespace
}  // namespace quire::jinja
