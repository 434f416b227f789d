package main

import (
	"regexp"
	"time"
)

// namedTakes is what a named test takes at most, alone.
const namedTakes = 30 * time.Second

// namedTests are the tests that show what cases cannot, by the ids of the mutants.
var namedTests = []struct {
	of    *regexp.Regexp
	tests []string
}{
	{
		regexp.MustCompile(`^(SessionGuard|SessionPath|SessionPathKeep|SessionPathRestore|ScanWhole|ListenerLock|LimitLock|BellPatience):`),
		[]string{"internal/testing/statements.TestSettingsEndWithTheirTransaction"},
	},
	{regexp.MustCompile(`^BellLocked:`), []string{"internal/testing/statements.TestBellLockedSeesOnlyTheBell"}},
	{regexp.MustCompile(`^SnapshotHolder:`), []string{"internal/testing/statements.TestSnapshotHolderIsTheOldest"}},
	{regexp.MustCompile(`^(sequence log_seq|table log):`), []string{"internal/testing/statements.TestLogIsNumberedInOrder"}},
	{regexp.MustCompile(`^function event_id:`), []string{"internal/testing/statements.TestEventIDTellsItsTime"}},
	{
		regexp.MustCompile(`^function claim_turns:`),
		[]string{"internal/testing/statements.TestTurnsAreClaimedInOrder", "internal/testing/statements.TestStartsOfOneMomentAreAdded"},
	},
	{regexp.MustCompile(`^function wake:`), []string{"internal/testing/statements.TestWakeRingsOnlySleepers"}},
	{regexp.MustCompile(`^(index \w+_correlation|FindByCorrelation):`), []string{"internal/testing/statements.TestChainsAreFoundByIndexes"}},
	{regexp.MustCompile(`^ListenerRateTake:`), []string{"internal/testing/statements.TestRateCountsForAPeriod"}},
	{regexp.MustCompile(`^function processed_events_owned:`), []string{"internal/testing/statements.TestConsumerOwnsItsTransaction"}},
}
