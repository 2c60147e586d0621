#include "client/flags.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::client {
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

TEST(FlagSetTest, NamesTheUnknownFlagAndTheNearest) {
  EXPECT_THAT(ErrorOf({"--temprature", "1"}), AllOf(HasSubstr("unknown flag --temprature"),
                                                    HasSubstr("did you mean --temperature?")));
  EXPECT_EQ(ErrorOf({"--nothing_like_it"}), "unknown flag --nothing_like_it");
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("unexpected argument \"stray\""));
  EXPECT_THAT(ErrorOf({"--"}), HasSubstr("unknown flag --"));
}

TEST(FlagSetTest, AForgottenValueDoesNotEatTheNextFlag) {
  EXPECT_THAT(ErrorOf({"--prompt", "--seed", "1"}),
              HasSubstr("--prompt needs a value: --prompt TEXT"));
  EXPECT_THAT(ErrorOf({"--prompt"}), HasSubstr("--prompt needs a value"));
}

TEST(FlagSetTest, SaysWhatAValueShouldBe) {
  EXPECT_THAT(ErrorOf({"--seed", "-1"}), AllOf(HasSubstr("--seed"), HasSubstr("\"-1\"")));
  EXPECT_THAT(ErrorOf({"--seed", "1x"}), HasSubstr("\"1x\""));
  EXPECT_THAT(ErrorOf({"--seed", "18446744073709551616"}), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf({"--temperature", "warm"}), HasSubstr("want a number"));
  EXPECT_THAT(ErrorOf({"--ignore_eos=perhaps"}), HasSubstr("want true or false"));
  EXPECT_THAT(ErrorOf({"--timeout", "soon"}), HasSubstr("want a time"));
  EXPECT_THAT(ErrorOf({"--timeout", "-1s"}), HasSubstr("at least 0"));
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
  for (const std::string& name : flags.names()) EXPECT_THAT(help, HasSubstr("--" + name));
  size_t begin = 0;
  while (begin < help.size()) {
    const size_t end = help.find('\n', begin);
    ASSERT_NE(end, help.npos);
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(ParseIdListTest, TakesListsAndNothingElse) {
  EXPECT_THAT(ParseIdList("1, 2,3").value(), ElementsAre(1, 2, 3));
  for (const char* bad : {"", "1,,2", "1,", "a", "-1", "1 2", "2147483648"}) {
    EXPECT_FALSE(ParseIdList(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace quire::client
