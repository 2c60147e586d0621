// Tests the limits on the steps, the text and the stack that a hostile template or context can use.

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

#include "base/interrupt.h"
#include "text/jinja/template.h"
#include "text/jinja/value_memory.h"

namespace quire::jinja {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

constexpr Limits kSmall = {.max_steps = 200'000, .max_output_bytes = 1 << 20};

std::string Error(const std::string& source, const Limits& limits = kSmall,
                  const Json& context = Json::object()) {
  const auto parsed = Template::Create(source);
  if (!parsed.ok()) return "load: " + std::string(parsed.status().message());
  const auto text = parsed->Render(context, absl::UnixEpoch(), limits);
  EXPECT_FALSE(text.ok()) << source;
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(text.status().message());
}

std::string Times(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(JinjaLimitsTest, StepsAreBounded) {
  EXPECT_THAT(
      Error("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
      HasSubstr("too many steps"));
  EXPECT_THAT(Error("{% set ns = namespace(l=[1, 2]) %}{% for i in range(60) %}{% set ns.l = ns.l "
                    "+ ns.l %}{% endfor %}"),
              HasSubstr("too many steps"));
  // The two elements of each list are the same list. Such a value is small in memory, but walking
  // it takes 2^60 steps.
  const std::string shared =
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}";
  for (const char* walk : {"{{ ns.l }}", "{{ ns.l|tojson }}", "{{ ns.l|string }}"}) {
    EXPECT_THAT(Error(shared + walk), HasSubstr("too many steps")) << walk;
  }
  EXPECT_THAT(Error("{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set ns.l = "
                    "[ns.l, ns.l] %}"
                    "{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}"),
              HasSubstr("too many steps"));
  EXPECT_THAT(Error("{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, "
                    "ns.t) %}{% endfor %}{{ {ns.t: 1} }}"),
              HasSubstr("too many steps"));
}

TEST(JinjaLimitsTest, TextIsBounded) {
  for (const char* source :
       {"{{ 'a' * 99999999999 }}", "{{ 'ab' * 600000 }}", "{{ 'x'.center(99999999) }}",
        "{{ '%9999999d' % 1 }}", "{{ 'x'|indent(99999999, true) }}",
        "{% set ns = namespace(s='abcdefgh') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s "
        "%}{% endfor %}",
        "{% set ns = namespace(s='abcdefgh') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s "
        "%}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set ns.s = "
        "ns.s|replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set ns.s = "
        "ns.s.replace('', 'bb') %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s.join([ns.s, "
        "ns.s, ns.s]) %}{% endfor %}",
        "{% set ns = namespace(s='{0}{0}') %}{% for i in range(40) %}{% set ns.s = "
        "ns.s.format(ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='<') %}{% for i in range(40) %}{% set ns.s = ns.s|forceescape "
        "%}{% endfor %}{{ 'a' * 2000000 }}"}) {
    Error(source);
  }
  EXPECT_THAT(Error("{% for i in range(90) %}{{ 'a' * 20000 }}{% endfor %}"),
              HasSubstr("longer than"));
  EXPECT_THAT(Error("{% set x %}{% for i in range(90) %}{{ 'a' * 20000 }}{% endfor %}{% endset %}"),
              HasSubstr("longer than"));
}

// What a template holds is counted in bytes of values and texts. Each of these templates stays far
// below the limit on steps.
TEST(JinjaLimitsTest, MemoryIsBounded) {
  const Limits little = {.max_memory_bytes = 1 << 20};
  const Json context = {{"letters", std::string(30'000, 'a')},
                        {"lines", std::string(30'000, '\n')}};
  const std::string forever = "{% for i in range(50000) %}";
  for (const std::string& source : {
           std::string("{% set l = [1] * 50000 %}"),
           std::string(
               "{% set ns = namespace(l=[1]) %}{% for i in range(17) %}{% set ns.l = ns.l + "
               "ns.l %}{% endfor %}"),
           std::string(
               "{% set ns = namespace(l=(1,)) %}{% for i in range(17) %}{% set ns.l = ns.l * "
               "2 %}{% endfor %}"),
           std::string("{% set l = letters.split('a') %}"),
           std::string("{% set l = lines.splitlines() %}"),
           std::string("{% set l = letters|list %}"),
           std::string("{% for c in letters %}{% endfor %}"),
           std::string("{% set l = range(30000)|map(attribute='x')|list %}"),
           std::string("{% set l = range(30000)|map('string')|list %}"),
           std::string("{% set l = range(30000)|batch(1)|list %}"),
           std::string("{% set l = (letters * 20, letters * 20) %}"),
           std::string(
               "{% set l = [1] * 8000 %}{% for a in l %}{% for b in l[1:] %}{% for c in l[2:] "
               "%}{% for d in l[3:] %}{% for e in l[4:] %}{% for f in l[5:] %}{{ 1 / 0 }}") +
               Times(6, "{% endfor %}"),
           "{% set ns = namespace(l=[]) %}" + forever + "{% set x = namespace() %}{% endfor %}",
           forever + "{% macro f() %}{% endmacro %}{% endfor %}",
           forever + "{% set x = cycler(1) %}{% endfor %}",
           std::string("{% set l = dict(range(9000)|batch(2)|list) %}"),
       }) {
    EXPECT_THAT(Error(source, little, context), HasSubstr("too much memory")) << source;
    EXPECT_THAT(Error(source + "{{ 1 / 0 }}", {}, context), HasSubstr("division by zero"))
        << source;
  }
}

TEST(JinjaLimitsTest, MemoryIsBoundedBeforeItIsTaken) {
  const Limits limits = {.max_memory_bytes = 2 << 20};
  const Json context = {{"letters", std::string(300'000, 'a')},
                        {"lines", std::string(300'000, '\n')}};
  for (const char* source : {"{% set l = [1] * 1000000 %}", "{% set l = letters.split('a') %}",
                             "{% set l = lines.splitlines() %}", "{% set l = letters|list %}",
                             "{% set l = letters * 50 %}",
                             "{% set l = [1] * 40000 %}{% set m = l + l %}{% set n = m + m %}"}) {
    const int64_t before = ValueMemory::OfThread();
    int64_t most = 0;
    const base::Interrupt look([&] {
      most = std::max(most, ValueMemory::OfThread() - before);
      return absl::OkStatus();
    });
    EXPECT_THAT(
        Error(std::string(source) + "{% for i in range(40000) %}{% endfor %}", limits, context),
        HasSubstr("too much memory"))
        << source;
    EXPECT_LE(most, limits.max_memory_bytes) << source;
  }
}

TEST(JinjaLimitsTest, EndsSoonWhenNobodyWaits) {
  int num_looks = 0;
  const base::Interrupt interrupt(
      [&] { return ++num_looks < 3 ? absl::OkStatus() : absl::DeadlineExceededError("late"); });
  EXPECT_THAT(Error("{% for i in range(99999) %}{% for j in range(150) %}{% endfor %}{% endfor %}",
                    Limits()),
              HasSubstr("nobody waits for it any more"));
  EXPECT_EQ(num_looks, 3);
  EXPECT_EQ(interrupt.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(JinjaLimitsTest, MemoryIsGivenBack) {
  const int64_t before = ValueMemory::OfThread();
  const auto parsed = Template::Create(
      "{% set ns = namespace(s='', l=[1, {'a': 'b'}, nothing]) %}{% macro m(x) %}{{ x }}{% "
      "endmacro "
      "%}{% for i in range(300) %}{% set ns.s = 'x' * 1000 %}{% set t = (ns.s + 'y').split('x') "
      "%}{% set u = {'k': [i] * 1000} %}{{ m(loop.changed(loop)) }}{% endfor %}{{ ns.s|length }}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const int64_t of_template = ValueMemory::OfThread();
  EXPECT_GT(of_template, before);
  const auto text =
      parsed->Render(Json::object(), absl::UnixEpoch(), {.max_memory_bytes = 1 << 20});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, ::testing::EndsWith("1000"));
  EXPECT_EQ(ValueMemory::OfThread(), of_template);
}

TEST(JinjaLimitsTest, RangeIsBoundedAsInTheSandbox) {
  EXPECT_THAT(Error("{{ range(100001)|length }}"), HasSubstr("range too big"));
  EXPECT_THAT(Error("{{ range(-9223372036854775807, 9223372036854775807, 3)|length }}"),
              HasSubstr("range too big"));
}

TEST(JinjaLimitsTest, RecursionIsBounded) {
  EXPECT_THAT(Error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("recurses too deep"));
  EXPECT_THAT(Error("{% macro f(n) %}{% for i in [n] %}{% if i %}{{ [f(i)]|join }}{% endif %}{% "
                    "endfor %}{% endmacro %}{{ f(1) }}"),
              HasSubstr("recurses too deep"));
  EXPECT_THAT(
      Error("{% macro f() %}{% call f() %}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}"),
      HasSubstr("recurses too deep"));
  // The limit on depth allows the recursion; the limit on the stack does not.
  EXPECT_THAT(Error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                    {.max_depth = 1'000'000, .max_stack_bytes = 200'000}),
              HasSubstr("recurses too deep"));
  const auto fine = Template::Create(
      "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}");
  EXPECT_TRUE(fine->Render(Json::object(), absl::UnixEpoch()).ok());
}

TEST(JinjaLimitsTest, ValuesNestBoundedly) {
  const std::string grow =
      "{% set ns = namespace(l=[]) %}{% for i in range(20000) %}{% set ns.l = ";
  for (const char* more : {"[ns.l]", "{'a': ns.l}", "(ns.l,)", "[ns.l]|list", "dict(a=ns.l)",
                           "[[ns.l]]|map('list')|list"}) {
    EXPECT_THAT(Error(grow + more + " %}{% endfor %}"), HasSubstr("nest too deep")) << more;
  }
  EXPECT_THAT(Error("{% set ns = namespace(l=[]) %}{% for i in range(20000) %}{% for x in [ns.l] "
                    "%}{% set ns.l = loop %}{% endfor %}{% endfor %}"),
              HasSubstr("nest too deep"));
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({std::move(deep)});
  EXPECT_THAT(Error("x", kSmall, {{"deep", deep}}), HasSubstr("nest too deep"));
}

TEST(JinjaLimitsTest, ANamespaceMayHoldItself) {
  const auto parsed = Template::Create(
      "{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{{ ns.me.me.l[0] == ns "
      "}}");
  EXPECT_EQ(parsed->Render(Json::object(), absl::UnixEpoch()).value(), "True");
  EXPECT_THAT(Error("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}"),
              HasSubstr("too deep"));
}

// loop.changed stores its argument. Without care, the loop object would own itself and never be
// freed. LeakSanitizer would report the leak.
TEST(JinjaLimitsTest, ALoopMayRememberItself) {
  const auto parsed = Template::Create("{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}");
  EXPECT_EQ(parsed->Render(Json::object(), absl::UnixEpoch()).value(), "TrueFalse");
}

TEST(JinjaLimitsTest, TheLargestWholeFloatFindsTheKeyOfItsInteger) {
  const auto parsed = Template::Create("{{ {9223372036854774784: 'a'}[9223372036854774784.0] }}");
  EXPECT_EQ(parsed->Render(Json::object(), absl::UnixEpoch()).value(), "a");
}

TEST(JinjaLimitsTest, DeepSourceIsAnErrorNotAnOverflow) {
  const int n = 20'000;
  for (const std::string& source : {
           "{{ " + Times(n, "(") + "1" + Times(n, ")") + " }}",
           "{{ " + Times(n, "[") + Times(n, "]") + " }}",
           "{{ " + Times(n, "{1:") + "1" + Times(n, "}") + " }}",
           "{{ " + Times(n, "not ") + "1 }}",
           "{{ " + Times(n, "- ") + "1 }}",
           "{{ 1" + Times(n, " + 1") + " }}",
           "{{ 1" + Times(n, " ** 1") + " }}",
           "{{ 1" + Times(n, " and 1") + " }}",
           "{{ 1" + Times(n, " if 1 else 1") + " }}",
           "{{ x" + Times(n, ".x") + " }}",
           "{{ x" + Times(n, "[0]") + " }}",
           "{{ x" + Times(n, "()") + " }}",
           "{{ x" + Times(n, "(x") + Times(n, ")") + " }}",
           "{{ x" + Times(n, "|trim") + " }}",
           "{{ x" + Times(n, " is string") + " }}",
           Times(n, "{% if 1 %}") + Times(n, "{% endif %}"),
           Times(n, "{% for x in y %}") + Times(n, "{% endfor %}"),
           Times(n, "{% macro m() %}") + Times(n, "{% endmacro %}"),
           Times(n, "{% filter trim %}"),
           "{% for " + Times(n, "(") + "a" + Times(n, ")") + " in b %}{% endfor %}",
       }) {
    EXPECT_THAT(Error(source), HasSubstr("load: line 1: ")) << source.substr(0, 40);
  }
  // A template may be long if it does not nest.
  EXPECT_TRUE(Template::Create("{% if 0 %}" + Times(5000, "{% elif 0 %}") + "{% endif %}{{ 1" +
                               Times(5000, " ~ 1") + " }}")
                  ->Render(Json::object(), absl::UnixEpoch())
                  .ok());
}

TEST(JinjaLimitsTest, LongChatsFit) {
  const auto parsed = Template::Create(
      "{% for m in messages %}{% if loop.index0 == messages|length - 1 %}!{% endif %}{{ '<' + "
      "m.role + '>' + m.content|trim }}{% endfor %}");
  Json messages = Json::array();
  for (int i = 0; i < 2000; ++i)
    messages.push_back({{"role", "user"}, {"content", std::string(2000, 'x')}});
  const auto text = parsed->Render({{"messages", messages}}, absl::UnixEpoch());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 2000u * 2006u + 1u);
}

}  // namespace
}  // namespace quire::jinja
