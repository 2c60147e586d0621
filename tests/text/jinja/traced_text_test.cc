// Tests that whatever a template does with the content of a message, its bytes stay content, and
// that the template's own bytes do not become content where each byte can be traced.
//
// Contents have Greek letters and white space alone, and templates have none of the letters. So
// each Greek letter of an output must be marked, in whatever case.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <rapidcheck.h>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

#include "tests/testing/test_data.h"
#include "text/jinja/template.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

using Json = nlohmann::ordered_json;

struct Operation {
  const char* expression;  // of E, the input, and c, a content
  // Makes its result of the whole input, so that bytes of the template become content too.
  bool rewrites = false;
};

constexpr Operation kOperations[] = {
    {"c"},
    {"'Z' ~ c"},
    {"E|trim"},
    {"E|string"},
    {"E|safe"},
    {"E|reverse"},
    {"E|first|default('Z')"},
    {"E|last|default('Z')"},
    {"E|list|join('Z')"},
    {"E|list|slice(2)|first|join"},
    {"E|replace('α', 'Z')"},
    {"E|replace('Z', c)"},
    {"E|replace('', 'Z', 2)"},
    {"E|indent(2, true)"},
    {"E|indent(c)"},
    {"E|center(20)"},
    {"E|truncate(5, true, 'Z', 0)"},
    {"E|truncate(7, true, c[:2], 0)"},
    {"'%s Z %s'|format(E, c)"},
    {"'%-9s%9.3s%%'|format(E, c)"},
    {"'%(a)sZ'|format(a=E)"},
    {"E|replace('%', '') ~ '%s' % c"},
    {"(E|replace('%', '') ~ '%s') % c"},
    {"'Z{}{{Z{}'.format(E, c)"},
    {"'{a}{b[0]}Z'.format(a=E, b=[c])"},
    {"(E|escape) ~ c"},
    {"(E|e) + c"},
    {"c + (E|e)"},
    {"E[::-1]"},
    {"E[1:4]"},
    {"E[::2]"},
    {"E[0]|default('Z')"},
    {"E[-1]|default('Z')"},
    {"E.split('β')|join('Z')"},
    {"E.split()|last|default('Z')"},
    {"E.split('Z', 1)[-1]"},
    {"E.rsplit(none, 1)|join('Z')"},
    {"E.splitlines()|join('Z')"},
    {"E.partition('α')|join('Z')"},
    {"E.rpartition('Z')[2]"},
    {"E.strip('Z')"},
    {"E.lstrip()"},
    {"E.rstrip('α')"},
    {"E.removeprefix('Z')"},
    {"E.removesuffix(c)"},
    {"E.ljust(9, 'Z')"},
    {"E.rjust(9, c[0]|default(' ', true))"},
    {"E.center(30)"},
    {"E.zfill(9)"},
    {"E.replace('Z', c)"},
    {"'Z'.join([E, c])"},
    {"E.join(['Z', c, 'Z'])"},
    {"E ~ 'Z' ~ c"},
    {"E + 'Z'"},
    {"E * 2"},
    {"c if E else 'Z'"},
    {"E or 'Z'"},
    {"({'k': E}.items()|list)[0][1]"},
    {"{E: 1}|list|first"},
    {"{'Z': E}.get('Z')"},
    {"[E, 'Z']|sort|first"},
    {"[E, c]|max"},
    {"[E]|unique|first"},
    {"[[E]]|sum(start=[])|first"},
    {"{'a': E}|dictsort|first|last"},
    {"[{'k': E}]|groupby('k')|first|first"},
    {"[{'k': E}]|map(attribute='k')|first"},
    {"[E]|map('trim')|first"},
    {"[E, 'Z']|select('string')|join('Z')"},
    {"[E]|batch(2, c)|first|join('Z')"},
    {"cycler(E, 'Z').next()"},
    {"dict(a=E).a"},
    {"namespace(a=E).a"},
    {"E|upper", true},
    {"E|lower", true},
    {"E|title", true},
    {"E|capitalize", true},
    {"E.upper()", true},
    {"E.swapcase()", true},
    {"E.title()", true},
    {"E|urlencode", true},
    {"E|tojson", true},
    {"{E: [c, 'Z']}|tojson(indent=2)", true},
    {"[E, c]|tojson(separators=(c, 'Z'))", true},
    {"[E]|tojson|from_json|first", true},
    {"({E: E}|tojson|from_json).items()|first|join('Z')", true},
    {"[E, c]|string", true},
    {"{'a': E}|string", true},
    {"'%r Z'|format(E)", true},
    {"'%c'|format(945 + E|length % 3)", true},
    {"strftime_now('Z' ~ E|replace('%', ''))", true},
};

constexpr const char* kStatements[] = {
    "{{ E }}",
    "{% set x %}Z{{ E }}{% endset %}{{ x }}{{ x[1:] }}",
    "{% macro m(a, b='Z') %}Z{{ a }}{{ b }}{% endmacro %}{{ m(E) }}{{ m('Z', b=E) }}",
    ("{% macro m() %}Z{{ caller() }}{{ kwargs.k }}{% endmacro %}"
     "{% call m(k=c) %}{{ E }}{% endcall %}"),
    "{% for ch in E %}{{ ch }}{{ loop.nextitem }}Z{% endfor %}",
    "{% filter trim %} Z{{ E }}{% endfilter %}",
    "{% set ns = namespace(t=E) %}{% set ns.t = ns.t ~ 'Z' %}{{ ns.t }}",
    "{% with x = E %}{{ x }}{% endwith %}",
    "{% generation %}{{ E }}{% endgeneration %}",
    "{% set a, b = [E, c] %}{{ b ~ a }}",
    "{% if c in E %}{{ E }}{% else %}{{ c }}Z{% endif %}",
};

// The bytes of the output that are marked, or those that are not.
std::string Marked(const TracedText& text, bool marked) {
  std::string out;
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    const bool is_marked = !text.marks.empty() && text.marks[i] == '\1';
    if (is_marked == marked) out.push_back(text.bytes[i]);
  }
  return out;
}

// True if a byte is one of a Greek letter. Its first byte is 0xCD to 0xCF.
bool HasGreek(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<uint8_t>(c) >= 0xCD && static_cast<uint8_t>(c) <= 0xCF;
  });
}

std::string AnyContent() {
  std::string text;
  for (int i = *rc::gen::inRange(0, 9); i > 0; --i) {
    text += *rc::gen::element<std::string>("α", "β", "γ", "α", " ", "\n");
  }
  return text;
}

TEST(TracedTextTest, WhateverATemplateDoesContentStaysContent) {
  int num_rendered = 0, num_exact = 0;
  EXPECT_TRUE(rc::check([&] {
    std::string expression = "c";
    bool rewrites = false;
    for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
      const Operation& operation = *rc::gen::elementOf(
          std::vector<Operation>(std::begin(kOperations), std::end(kOperations)));
      expression =
          absl::StrReplaceAll(operation.expression, {{"E", absl::StrCat("(", expression, ")")}});
      rewrites = rewrites || operation.rewrites;
    }
    const std::string statement = *rc::gen::elementOf(
        std::vector<std::string>(std::begin(kStatements), std::end(kStatements)));
    const std::string source =
        absl::StrReplaceAll(statement, {{"E", absl::StrCat("(", expression, ")")}});
    RC_LOG() << source << std::endl;
    const absl::StatusOr<Template> parsed = Template::Create(source);
    RC_ASSERT(parsed.ok());
    const Json context = {{"c", AnyContent()}};
    const ContentStrings contents = {&context["c"].get_ref<const std::string&>()};
    const absl::Time now = absl::UnixEpoch();
    const auto text = parsed->RenderTraced(context, contents, now);
    const auto plain = parsed->Render(context, now);
    RC_ASSERT(text.status() == plain.status());
    if (!text.ok()) return;
    ++num_rendered;
    RC_LOG() << text->bytes << std::endl;
    RC_ASSERT(text->bytes == *plain);
    RC_ASSERT(text->marks.empty() || text->marks.size() == text->bytes.size());
    RC_ASSERT(!HasGreek(Marked(*text, false)));
    if (rewrites) return;
    ++num_exact;
    RC_ASSERT(Marked(*text, true).find('Z') == std::string::npos);
    RC_ASSERT(parsed->RenderTraced(context, {}, now)->marks.empty());
  }));
  EXPECT_GT(num_rendered, 50);
  EXPECT_GT(num_exact, 20);
}

TEST(TracedTextTest, EveryOperationAlone) {
  const Json context = {{"c", "αβ γ\n"}};
  const ContentStrings contents = {&context["c"].get_ref<const std::string&>()};
  for (const Operation& operation : kOperations) {
    for (const char* input : {"c", "('Z' ~ c ~ 'Z')", "'Z'"}) {
      const std::string source =
          absl::StrCat("{{ ", absl::StrReplaceAll(operation.expression, {{"E", input}}), " }}");
      SCOPED_TRACE(source);
      const auto text =
          Template::Create(source)->RenderTraced(context, contents, absl::UnixEpoch());
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_FALSE(HasGreek(Marked(*text, false))) << text->bytes;
      if (!operation.rewrites) {
        EXPECT_EQ(Marked(*text, true).find('Z'), std::string::npos) << text->bytes;
      }
    }
  }
}

TEST(TracedTextTest, AKeywordThatIsAContentIsRefusedByName) {
  const Json context = {{"c", "α"}};
  const ContentStrings contents = {&context["c"].get_ref<const std::string&>()};
  const auto parsed = Template::Create("{{ dict(**{c: 1})|list|first }}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->RenderTraced(context, contents, absl::UnixEpoch()).status().message(),
            "line 1: keywords must not come from a literal content");
  EXPECT_EQ(parsed->Render(context, absl::UnixEpoch()).value(), "α");
}

// Renders conversations whose contents are Greek, and expects that exactly their letters, and white
// space, are marked.
void ExpectExact(const std::string& name, const std::string& source) {
  SCOPED_TRACE(name);
  const absl::StatusOr<Template> parsed = Template::Create(source);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  int num_rendered = 0;
  const bool wants_tools =
      source.find("tools | ") != std::string::npos || source.find("in tools") != std::string::npos;
  for (const std::vector<std::string>& roles :
       {std::vector<std::string>{"user"},
        {"system", "user"},
        {"user", "assistant", "user"},
        {"system", "user", "assistant", "user", "assistant", "user"}}) {
    Json context = {{"messages", Json::array()},
                    {"add_generation_prompt", true},
                    {"tools", wants_tools ? Json::array() : Json()},
                    {"documents", nullptr},
                    {"functions", "[]"},  // of one template, as is the next
                    {"datetime", "now"},
                    {"bos_token", "<s>"},
                    {"eos_token", "</s>"}};
    for (const std::string& role : roles) {
      context["messages"].push_back({{"role", role}, {"content", "  αβγ δ\n\nεζ "}});
    }
    ContentStrings contents;
    for (const Json& message : context["messages"]) {
      contents.insert(&message["content"].get_ref<const std::string&>());
    }
    const auto text = parsed->RenderTraced(context, contents, absl::UnixEpoch());
    if (!text.ok()) continue;  // a template may refuse a role
    ++num_rendered;
    EXPECT_EQ(text->bytes, parsed->Render(context, absl::UnixEpoch()).value());
    EXPECT_FALSE(HasGreek(Marked(*text, false))) << text->bytes;
    EXPECT_EQ(StripLeft(Marked(*text, true), " \nαβγδεζ"), "") << text->bytes;
    EXPECT_TRUE(HasGreek(Marked(*text, true))) << text->bytes;
  }
  EXPECT_GT(num_rendered, 0);
}

// Expects the same of each template in `folder`, and returns their number.
int NumExact(const std::string& folder) {
  int num = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".jinja") continue;
    ExpectExact(file.path().filename(), testing::ReadFile(file.path()));
    ++num;
  }
  return num;
}

TEST(TracedTextTest, TemplatesAreTracedByteByByte) {
  EXPECT_EQ(NumExact(testing::TestSourcePath("text/jinja/testdata")), 6);
  if (const auto published = testing::TestDataPath("chat-templates/templates")) {
    EXPECT_EQ(NumExact(*published), 55);
  }
}

}  // namespace
}  // namespace quire::jinja
