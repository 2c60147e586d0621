#include "text/chat_template.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

#include "tests/testing/test_data.h"

namespace quire::text {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::string TestDataFile(const std::string& name) {
  return testing::ReadFile(testing::TestSourcePath("text/jinja/testdata/" + name));
}

std::unique_ptr<ChatTemplate> Load(const std::string& source) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> loaded =
      ChatTemplate::Create(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *std::move(loaded) : nullptr;
}

std::string LoadError(const std::string& source) {
  const auto loaded = ChatTemplate::Create(source, {});
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument) << source;
  return std::string(loaded.status().message());
}

TEST(ChatTemplateTest, RendersSmolLm2) {
  const auto chat = Load(TestDataFile("smollm2.jinja"));
  EXPECT_EQ(chat->Render({{"user", "Hi"}}, true).value().text,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat->Render({{"system", "Be kind."}, {"user", "Hi"}, {"assistant", "Hello"}}, false)
                .value()
                .text,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n");
  EXPECT_EQ(chat->Render({}, true).value().text, "<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, KnownFamiliesRenderAsInPython) {
  const Json goldens = Json::parse(TestDataFile("chats.json"), nullptr, false);
  ASSERT_EQ(goldens.size(), 48u);
  for (const Json& golden : goldens) {
    SCOPED_TRACE(golden.dump());
    const auto chat = Load(TestDataFile(golden["template"].get<std::string>()));
    std::vector<ChatMessage> messages;
    for (const Json& message : golden["messages"]) {
      messages.push_back(
          {message["role"].get<std::string>(), message["content"].get<std::string>()});
    }
    const auto prompt = chat->Render(messages, golden["add_generation_prompt"].get<bool>());
    if (golden.contains("output")) {
      ASSERT_TRUE(prompt.ok()) << prompt.status();
      EXPECT_EQ(prompt->text, golden["output"].get<std::string>());
    } else {
      EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(ChatTemplateTest, RaiseExceptionIsInvalidArgumentWithItsText) {
  const auto chat = Load(
      "{% if messages|length != 1 %}{{ raise_exception('one message, please') }}{% endif %}ok");
  EXPECT_EQ(chat->Render({{"user", "a"}}, true).value().text, "ok");
  const auto refused = chat->Render({}, true);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(refused.status().message()), "one message, please");
}

TEST(ChatTemplateTest, WhatWeLackIsRefusedAtLoadByNameAndLine) {
  EXPECT_EQ(LoadError("a\n{{ x|sparkle }}"), "line 2: the filter 'sparkle' is not supported");
  EXPECT_EQ(LoadError("{% if false %}\n\n{{ x is shiny }}{% endif %}"),
            "line 3: the test 'shiny' is not supported");
  EXPECT_EQ(LoadError("{{ x.sparkle() }}"), "line 1: the method 'sparkle' is not supported");
  EXPECT_EQ(LoadError("{{ [1]|map('sparkle')|list }}"),
            "line 1: the filter 'sparkle' is not supported");
  EXPECT_EQ(LoadError("{{ [1]|selectattr('a', 'shiny')|list }}"),
            "line 1: the test 'shiny' is not supported");
  EXPECT_EQ(LoadError("\n{% block a %}{% endblock %}"),
            "line 2: the tag {% block %} is not supported");
  EXPECT_EQ(LoadError("{% include 'x' %}"), "line 1: the tag {% include %} is not supported");
  EXPECT_EQ(LoadError("{% for x in y recursive %}{% endfor %}"),
            "line 1: a recursive loop is not supported");
  EXPECT_EQ(LoadError("{{ lipsum() }}"), "line 1: the function 'lipsum' is not supported");
  EXPECT_EQ(LoadError("{% macro m(a=b|sparkle) %}{% endmacro %}"),
            "line 1: the filter 'sparkle' is not supported");
  EXPECT_EQ(LoadError("{% for x in a %}{{ 'no end' }}"),
            "line 1: the template ends before {% endfor %}");
  EXPECT_EQ(LoadError("{{ 'x }}"), "line 1: a string is not closed");
}

TEST(ChatTemplateTest, ErrorsWhileRenderingNameTheLine) {
  EXPECT_EQ(
      Load("\n\n{{ messages[0].name.first }}")->Render({{"user", "a"}}, true).status().message(),
      "line 3: 'dict object' has no attribute 'name'");
  EXPECT_EQ(Load("{{ nothing() }}")->Render({}, true).status().message(),
            "line 1: 'nothing' is undefined");
  EXPECT_EQ(Load("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n{{ m() }}")
                ->Render({}, true)
                .status()
                .message(),
            "line 2: unsupported operand type(s) for +: 'int' and 'str'");
}

TEST(ChatTemplateTest, WhatWouldPrintAnAddressIsAnError) {
  for (const char* source :
       {"{{ 'a'.upper }}", "{{ range }}", "{{ messages|map('string') }}", "{{ {}.items }}"}) {
    EXPECT_THAT(std::string(Load(source)->Render({{"user", "a"}}, true).status().message()),
                HasSubstr("cannot be printed"))
        << source;
  }
}

TEST(ChatTemplateTest, VariablesAreThoseOfHuggingFace) {
  const auto chat = Load(
      "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ "
      "add_generation_prompt }}");
  EXPECT_EQ(chat->Render({}, true).value().text, "<s></s>TrueTrueTrue");
  EXPECT_EQ(chat->Render({}, false).value().text, "<s></s>TrueTrueFalse");
  const auto without = ChatTemplate::Create("{{ bos_token is defined }}", {});
  EXPECT_EQ((*without)->Render({}, true).value().text, "False");
}

TEST(ChatTemplateTest, RenderJsonKeepsTheOrderOfKeys) {
  const auto chat = Load("{{ tools|tojson }}{{ add_generation_prompt }}");
  EXPECT_EQ(chat->RenderJson({{"tools", {{{"zeta", 1}, {"alpha", {{"b", 2.0}, {"a", nullptr}}}}}}})
                .value(),
            R"([{"zeta": 1, "alpha": {"b": 2.0, "a": null}}]False)");
  EXPECT_FALSE(chat->RenderJson(Json::array()).ok());
}

TEST(ChatTemplateTest, SourceIsKept) { EXPECT_EQ(Load("a{{ 1 }}\n")->source(), "a{{ 1 }}\n"); }

TEST(ChatTemplateTest, ContentIsNeverTakenForTemplate) {
  const auto chat = Load("{{ messages[0].content }}");
  EXPECT_EQ(chat->Render({{"user", "{{ 1 + 1 }}{% break %}\n"}}, true).value().text,
            "{{ 1 + 1 }}{% break %}\n");
}

TEST(ChatTemplateTest, RendersFromManyThreads) {
  const auto chat = Load(TestDataFile("smollm2.jinja"));
  std::vector<std::thread> threads;
  std::vector<std::string> prompts(4);
  for (std::string& prompt : prompts) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) prompt = chat->Render({{"user", "Hi"}}, true).value().text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& prompt : prompts) EXPECT_EQ(prompt, prompts[0]);
}

}  // namespace
}  // namespace quire::text
