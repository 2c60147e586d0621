#include "base/flags/flag_set.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Values {
  std::string prompt;
  std::optional<double> temperature;
  std::vector<std::string> stop;
  uint64_t seed = 0;
  int32_t priority = 0;
  bool ignore_eos = false;
  absl::Duration timeout;
};

FlagSet MakeFlags(Values* values) {
  FlagSet flags("quire test [flags]", "Tests.");
  flags.Section("All");
  flags.Add("prompt", "TEXT", "a prompt", &values->prompt);
  flags.Add("temperature", "T", "a temperature", &values->temperature);
  flags.Add("stop", "TEXT", "a stop", &values->stop);
  flags.Add("seed", "S", "a seed", &values->seed);
  flags.Add("priority", "P", "a priority", &values->priority);
  flags.AddSwitch("ignore_eos", "a switch", &values->ignore_eos);
  flags.Add("timeout", "TIME", "a time", &values->timeout);
  flags.AddHabits("prompt", {"p", "text_prompt"});
  flags.AddHabits("ignore_eos", {"no_eos"});
  return flags;
}

std::string ErrorOf(const std::vector<std::string>& args) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  const absl::Status status = flags.Parse(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(FlagSetTest, TakesBothFormsSwitchesAndRepetition) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  ASSERT_TRUE(
      flags
          .Parse({"--prompt", "a = b", "--temperature=0.5", "--stop", "x", "--stop=y=z", "--seed",
                  "18446744073709551615", "--priority", "-3", "--ignore_eos", "--timeout", "1m30s"})
          .ok());
  EXPECT_EQ(values.prompt, "a = b");
  EXPECT_EQ(values.temperature, 0.5);
  EXPECT_THAT(values.stop, ElementsAre("x", "y=z"));
  EXPECT_EQ(values.seed, 18446744073709551615u);
  EXPECT_EQ(values.priority, -3);
  EXPECT_TRUE(values.ignore_eos);
  EXPECT_EQ(values.timeout, absl::Seconds(90));
  EXPECT_TRUE(flags.IsSet("prompt"));
  EXPECT_FALSE(flags.help_requested());
}

TEST(FlagSetTest, LeavesWhatIsNotGivenAlone) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  ASSERT_TRUE(flags.Parse({"--ignore_eos=false"}).ok());
  EXPECT_EQ(values.temperature, std::nullopt);
  EXPECT_FALSE(values.ignore_eos);
  EXPECT_FALSE(flags.IsSet("temperature"));
}

TEST(FlagSetTest, AnEmptyValueAndOneThatLooksLikeAFlagAreValues) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  ASSERT_TRUE(flags.Parse({"--prompt=", "--stop", "--- the end"}).ok());
  EXPECT_TRUE(flags.IsSet("prompt"));
  EXPECT_THAT(values.stop, ElementsAre("--- the end"));
}

TEST(FlagSetTest, HyphensAndUnderscoresAreEqual) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  ASSERT_TRUE(flags.Parse({"--ignore-eos"}).ok());
  EXPECT_TRUE(values.ignore_eos);
  EXPECT_TRUE(flags.IsSet("ignore_eos"));
}

TEST(FlagSetTest, NamesTheUnknownFlagAndTheNearest) {
  EXPECT_EQ(ErrorOf({"--temprature", "1"}),
            "--temprature: unknown flag; did you mean --temperature?");
  EXPECT_EQ(ErrorOf({"--ignore-eso=1"}), "--ignore-eso: unknown flag; did you mean --ignore_eos?");
  EXPECT_EQ(ErrorOf({"--nothing_like_it"}), "--nothing_like_it: unknown flag; see --help");
  EXPECT_EQ(ErrorOf({"-x"}), "-x: unknown flag; see --help");
  EXPECT_EQ(ErrorOf({"--"}), "--: unknown flag; see --help");

  FlagSet short_name("usage", "summary");
  int32_t n = 0;
  short_name.Add("n", "N", "a flag of one letter", &n);
  for (const char* wrong : {"-x", "--h", "-5", "--"}) {
    EXPECT_EQ(short_name.Parse({wrong}).message(),
              std::string(wrong) + ": unknown flag; see --help");
  }
}

TEST(FlagSetTest, AHabitIsAnsweredWithTheRightFlag) {
  EXPECT_EQ(ErrorOf({"-p", "x"}), "-p: unknown flag; use --prompt TEXT");
  EXPECT_EQ(ErrorOf({"--text-prompt=x"}), "--text-prompt: unknown flag; use --prompt TEXT");
  EXPECT_EQ(ErrorOf({"--no_eos"}), "--no_eos: unknown flag; use --ignore_eos");
}

TEST(FlagSetTest, AnArgumentThatIsNoFlagIsRefusedUnlessItIsAnOperand) {
  EXPECT_EQ(ErrorOf({"stray"}), "unexpected argument \"stray\": every argument is a --flag");
  Values values;
  FlagSet suggesting = MakeFlags(&values);
  suggesting.SuggestForOperand("prompt");
  EXPECT_EQ(suggesting.Parse({"stray"}).message(),
            "unexpected argument \"stray\"; did you mean --prompt stray?");
  EXPECT_EQ(suggesting.Parse({"two words"}).message(),
            "unexpected argument \"two words\"; did you mean --prompt \"two words\"?");

  std::string from, to = "unset";
  FlagSet copying("copy FROM [TO]", "Copies.");
  copying.AddOperand("FROM", "a file", &from);
  copying.AddOperand("TO", "another", &to);
  bool force = false;
  copying.AddSwitch("force", "a switch", &force);
  ASSERT_TRUE(copying.Parse({"a", "--force"}).ok());
  EXPECT_EQ(from, "a");
  EXPECT_EQ(to, "unset");
  EXPECT_TRUE(force);
  EXPECT_THAT(copying.Help(), AllOf(HasSubstr("\n  FROM "), HasSubstr("\n  TO ")));

  FlagSet again("copy FROM [TO]", "Copies.");
  again.AddOperand("FROM", "a file", &from);
  again.AddOperand("TO", "another", &to);
  ASSERT_TRUE(again.Parse({"-", "--", "--to"}).ok());
  EXPECT_EQ(from, "-");
  EXPECT_EQ(to, "--to");
  EXPECT_EQ(again.Parse({"c"}).message(), "unexpected argument \"c\"");
}

TEST(FlagSetTest, AForgottenValueDoesNotEatTheNextFlag) {
  EXPECT_EQ(ErrorOf({"--prompt", "--seed", "1"}), "--prompt: want a value: --prompt TEXT");
  EXPECT_EQ(ErrorOf({"--prompt", "--seed=1"}), "--prompt: want a value: --prompt TEXT");
  EXPECT_EQ(ErrorOf({"--prompt", "--sede", "1"}), "--prompt: want a value: --prompt TEXT");
  EXPECT_EQ(ErrorOf({"--prompt", "--help"}), "--prompt: want a value: --prompt TEXT");
  EXPECT_EQ(ErrorOf({"--prompt"}), "--prompt: want a value: --prompt TEXT");
}

TEST(FlagSetTest, NothingIsSetBeforeAllIsRead) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  EXPECT_FALSE(flags.Parse({"--seed", "1", "--unknown"}).ok());
  EXPECT_EQ(values.seed, 0u);
}

TEST(FlagSetTest, LaterAssignmentsOverrideAndErrorsNameTheSource) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  const std::vector<Assignment> two = {{"seed", "1", "SEED"}, {"seed", "2", "--seed"}};
  ASSERT_TRUE(flags.Apply(two).ok());
  EXPECT_EQ(values.seed, 2u);
  const std::vector<Assignment> bad = {{"seed", "x", "file:3: seed"}};
  EXPECT_EQ(flags.Apply(bad).message(),
            "file:3: seed: want a whole number, not negative, got \"x\"");
}

TEST(FlagSetTest, SaysWhatAValueShouldBe) {
  EXPECT_THAT(ErrorOf({"--seed", "-1"}), AllOf(HasSubstr("--seed"), HasSubstr("\"-1\"")));
  EXPECT_THAT(ErrorOf({"--seed", "1x"}), HasSubstr("\"1x\""));
  EXPECT_THAT(ErrorOf({"--seed", "18446744073709551616"}), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf({"--temperature", "warm"}), HasSubstr("want a number"));
  EXPECT_THAT(ErrorOf({"--ignore_eos=perhaps"}), HasSubstr("want true or false"));
  EXPECT_THAT(ErrorOf({"--timeout", "soon"}), HasSubstr("want a time such as"));
  for (const char* wrong : {"-1s", "-1", "inf", "nan", "1e300", "2147483648"}) {
    EXPECT_THAT(ErrorOf({"--timeout", wrong}), HasSubstr("want a time from 0 to 2147483647s"));
  }
}

TEST(FlagSetTest, ABareNumberIsSeconds) {
  absl::Duration value;
  ASSERT_TRUE(ParseValue("0.25", &value).ok());
  EXPECT_EQ(value, absl::Milliseconds(250));
}

TEST(FlagSetTest, HelpShowsEveryFlagInNarrowLines) {
  Values values;
  FlagSet flags = MakeFlags(&values);
  flags.Add("a_flag_with_a_very_long_name_indeed", "VALUE",
            std::string(30, 'w') + " " + std::string(40, 'v'), &values.prompt);
  ASSERT_TRUE(flags.Parse({"--seed", "1", "--help", "--unknown"}).ok());
  EXPECT_TRUE(flags.help_requested());
  const std::string help = flags.Help();
  for (const Flag& flag : flags.flags()) EXPECT_THAT(help, HasSubstr("--" + flag.name));
  size_t begin = 0;
  while (begin < help.size()) {
    const size_t end = help.find('\n', begin);
    ASSERT_NE(end, help.npos);
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(FlagSetTest, HelpHasGroupsDefaultsAndTheLinesOfATextAsTheyAre) {
  int32_t size = 7;
  FlagSet flags("quire test", "One.\n\n  two  blanks");
  flags.Add({.name = "size",
             .value_name = "N",
             .help = "first\n  second",
             .default_text = "7",
             .set = IntegerSetter(&size, 1, 9)});
  flags.Section("Rest");
  std::string name;
  flags.Add("name", "NAME", std::string(50, 'x'), &name);
  flags.SetEpilogue("End.");
  EXPECT_EQ(flags.Help(),
            "usage: quire test\n\nOne.\n\n  two  blanks\n"
            "  --size N                          first\n"
            "                                      second (default 7)\n"
            "\nRest:\n"
            "  --name NAME                       " +
                std::string(50, 'x') +
                "\n\n  --help                            print this text\n\nEnd.\n");
}

TEST(SetterTest, AnIntegerStaysInItsRange) {
  int32_t small = 0;
  const Setter set = IntegerSetter(&small, -2, int64_t{1} << 40);
  EXPECT_TRUE(set("-2").ok());
  EXPECT_EQ(small, -2);
  EXPECT_TRUE(set("2147483647").ok());
  for (const char* wrong : {"-3", "2147483648", "", "1x", " 1", "+1"}) {
    EXPECT_THAT(std::string(set(wrong).message()),
                HasSubstr("want an integer -2..2147483647, got \"" + std::string(wrong) + "\""));
  }
  EXPECT_EQ(small, 2147483647);
}

TEST(SetterTest, AChoiceIsOneOfItsWords) {
  std::string value = "a";
  const Setter set = ChoiceSetter(&value, {"a", "b"});
  EXPECT_TRUE(set("b").ok());
  EXPECT_EQ(set("c").message(), "want a | b, got \"c\"");
  EXPECT_EQ(value, "b");
}

TEST(ParseIdListTest, TakesListsAndNothingElse) {
  EXPECT_THAT(ParseIdList("1, 2,3").value(), ElementsAre(1, 2, 3));
  for (const char* bad : {"", "1,,2", "1,", "a", "-1", "1 2", "2147483648"}) {
    EXPECT_FALSE(ParseIdList(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace quire::base
