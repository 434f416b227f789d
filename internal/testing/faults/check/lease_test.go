package check_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

var leasedRules = check.Rules{
	Topics: map[string][]check.Handler{"mailed": {{Name: "mail", Leased: true}}},
	Lease:  3 * time.Second,
	Limits: []check.Limit{
		{Topic: "mailed", AtOnce: []check.Value{{N: 4}}},
		{Topic: "mailed", PerTenant: true, AtOnce: []check.Value{{N: 2}}, Starts: 3, Period: time.Second},
	},
}

// story is a history of events of two tenants: those with even numbers are of tenant 0, the others of tenant 1.
type story struct {
	lines []check.Line
	s     check.State
	r     check.Rules
	calls map[string]int64 // of a process
}

func (s *story) add(ms int64, l check.Line) {
	l.At = ms * 1000
	s.lines = append(s.lines, l)
}

// begin adds that a process begins with event n. It returns a function that adds what becomes of the call.
func (s *story) begin(ms int64, who string, n int64) func(ms int64, say string) {
	if s.calls == nil {
		s.calls, s.r = make(map[string]int64), leasedRules
	}
	s.calls[who]++
	l := check.Line{Kind: check.Call, Who: who, Handler: "mail", Event: id(n), Call: s.calls[who], Topic: "mailed", Item: "a", N: n}
	say := func(ms int64, what string) {
		l.Say = what
		s.add(ms, l)
	}
	say(ms, check.Start)
	for _, row := range s.s.Rows {
		if row.Event == id(n) {
			return say
		}
	}
	s.s.Rows = append(s.s.Rows, check.Row{Event: id(n), Topic: "mailed", Item: "a", N: n, Tenant: fmt.Sprint(n % 2)})
	s.add(0, check.Line{Kind: check.Tx, Tx: fmt.Sprint(n), Say: check.Committed, Events: []check.ID{id(n)}})
	return say
}

// TestCheckFindsOverlaps: two handlers may have an event at once only if the first was told to let go of it, or could not be told.
func TestCheckFindsOverlaps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plant func(s *story)
		want  string // the kinds
	}{
		"a retry": {func(s *story) {
			s.begin(1000, "w1", 1)(1100, check.Fail)
			s.begin(1200, "w2", 1)(1300, check.Done)
		}, "[]"},
		"two at once": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.begin(1200, "w2", 1)(1300, check.Done)
			first(2000, check.Done)
		}, "[overlap]"},
		"two at once, of one process": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.begin(1200, "w1", 1)(1300, check.Done)
			first(2000, check.Done)
		}, "[overlap]"},
		"two at once, the first of which is not the one before": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.begin(1100, "w2", 1)(1110, check.Told)
			s.begin(1200, "w3", 1)(1300, check.Done)
			first(2000, check.Done)
		}, "[overlap overlap]"},
		"two at once, and the first does not end": {func(s *story) {
			s.begin(1000, "w1", 1)
			s.begin(1200, "w2", 1)(1300, check.Done)
			s.begin(1400, "w1", 2)(1500, check.Done)
		}, "[overlap]"},
		"the first was killed": {func(s *story) {
			s.begin(1000, "w1", 1)
			s.begin(1200, "w2", 1)(1300, check.Done)
		}, "[]"},
		"the first was told": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			first(3700, check.Told)
			s.begin(4010, "w2", 1)(5000, check.Done)
			first(6000, check.Done)
		}, "[]"},
		"the first was told too late": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			second := s.begin(3600, "w2", 1)
			first(3700, check.Told)
			second(5000, check.Done)
			first(6000, check.Done)
		}, "[overlap]"},
		"the first stood still": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.begin(4010, "w2", 1)(5000, check.Done)
			s.add(6000, check.Line{Kind: check.Still, Who: "w1", For: 4_000_000})
			first(6000, check.Told)
			first(6010, check.Done)
		}, "[]"},
		"the first stood still, and is not told afterwards": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.add(6000, check.Line{Kind: check.Still, Who: "w1", For: 4_000_000})
			s.begin(6500, "w2", 1)(6600, check.Done)
			first(7000, check.Done)
		}, "[overlap]"},
		"the first stood still as the second began, and is not told afterwards": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			second := s.begin(4010, "w2", 1)
			s.add(6000, check.Line{Kind: check.Still, Who: "w1", For: 4_000_000})
			first(7000, check.Done)
			second(8000, check.Done)
		}, "[overlap]"},
		"the first stood still as the second began, and is told afterwards": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			second := s.begin(4010, "w2", 1)
			s.add(6000, check.Line{Kind: check.Still, Who: "w1", For: 4_000_000})
			first(6050, check.Told)
			first(7000, check.Done)
			second(8000, check.Done)
		}, "[]"},
		"both stood still": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			second := s.begin(4010, "w2", 1)
			s.add(6000, check.Line{Kind: check.Still, Who: "w1", For: 4_000_000})
			s.add(7000, check.Line{Kind: check.Still, Who: "w2", For: 2_000_000})
			first(7200, check.Done)
			second(8000, check.Done)
		}, "[]"},
		"another one stood still": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.begin(4010, "w2", 1)(5000, check.Done)
			s.add(6000, check.Line{Kind: check.Still, Who: "w3", For: 4_000_000})
			first(6010, check.Done)
		}, "[overlap]"},
		"the second stood still before it began": {func(s *story) {
			first := s.begin(4500, "w1", 1)
			s.add(5000, check.Line{Kind: check.Still, Who: "w2", For: 4_000_000})
			second := s.begin(5001, "w2", 1)
			second(5002, check.Told)
			second(5003, check.Fail)
			first(6010, check.Done)
		}, "[]"},
		"an operator took the lease": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.add(1500, check.Line{Kind: check.Moved, Who: "driver", Handler: "mail", For: 100_000})
			s.begin(1600, "w2", 1)(1700, check.Done)
			first(2500, check.Told)
			first(2501, check.Done)
		}, "[]"},
		"an operator took the lease of another handler": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			s.add(1500, check.Line{Kind: check.Moved, Who: "driver", Handler: "screen", For: 100_000})
			s.begin(1600, "w2", 1)(1700, check.Done)
			first(2500, check.Done)
		}, "[overlap]"},
		"it was told as it ended": {func(s *story) {
			first := s.begin(1000, "w1", 1)
			first(1500, check.Done)
			first(1500, check.Told)
			s.begin(1600, "w1", 1)(1700, check.Done)
		}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &story{}
			test.plant(s)
			require.Equal(t, test.want, fmt.Sprint(s.kinds(t)))
		})
	}
}

// kinds checks the story and returns the kinds of its violations.
func (s *story) kinds(t *testing.T) []string {
	t.Helper()
	account := s.check(t)
	kinds := []string{}
	for _, v := range account.Violations {
		if v.Kind != check.Lost { // some stories end before their events are done
			kinds = append(kinds, v.Kind)
		}
	}
	return kinds
}

func (s *story) check(t *testing.T) *check.Account {
	t.Helper()
	account, err := check.Check(strings.NewReader(text(t, s.lines)), s.s, s.r)
	require.NoError(t, err)
	return account
}

// TestCheckFindsExceededLimits: no more calls for a key begin than its limit allows, of what is running and within a period.
func TestCheckFindsExceededLimits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plant func(s *story)
		want  string // the kinds
	}{
		"as many as a tenant may": {func(s *story) {
			s.together(1000, "w1", 2, 4)
		}, "[]"},
		"more than a tenant may": {func(s *story) {
			s.together(1000, "w1", 2, 4, 6)
		}, "[over a limit]"},
		"more than a tenant may, in several processes": {func(s *story) {
			a, b, c := s.begin(1000, "w1", 2), s.begin(1001, "w2", 4), s.begin(1002, "w3", 6)
			a(1500, check.Done)
			b(1500, check.Done)
			c(1500, check.Done)
		}, "[over a limit]"},
		"as many as a topic may": {func(s *story) {
			s.together(1000, "w1", 1, 2, 3, 4)
		}, "[]"},
		"more than a topic may": {func(s *story) {
			s.r.Limits = s.r.Limits[:1]
			s.together(1000, "w1", 1, 2, 3, 4, 5)
		}, "[over a limit]"},
		"one after the other": {func(s *story) {
			for i := range int64(9) {
				s.together(1000*i, "w1", 10+2*i)
			}
		}, "[]"},
		"an event that was taken over counts once": {func(s *story) {
			first := s.begin(1000, "w1", 2)
			first(3700, check.Told)
			s.together(4010, "w2", 2, 4)
			first(8000, check.Done)
		}, "[]"},
		"one whose process stood still": {func(s *story) {
			first := s.begin(1000, "w1", 2)
			s.together(5000, "w2", 4, 6)
			s.add(7000, check.Line{Kind: check.Still, Who: "w1", For: 5_900_000})
			first(7000, check.Told)
		}, "[]"},
		"one that was killed": {func(s *story) {
			s.begin(1000, "w1", 2)
			s.together(5000, "w2", 4, 6)
		}, "[]"},
		"one that failed": {func(s *story) {
			s.begin(1000, "w1", 2)(1050, check.Fail)
			s.together(1100, "w2", 4, 6)
		}, "[]"},
		"a limit that was lowered": {func(s *story) {
			s.r.Limits[1].AtOnce = append(s.r.Limits[1].AtOnce, check.Value{From: 100_000, N: 1})
			s.together(20_000, "w1", 2, 4)
		}, "[over a limit]"},
		"a limit that was lowered just now": {func(s *story) {
			s.r.Limits[1].AtOnce = append(s.r.Limits[1].AtOnce, check.Value{From: 19_900_000, N: 1})
			s.together(20_000, "w1", 2, 4)
		}, "[]"},
		"a limit that was lowered for a while": {func(s *story) {
			s.r.Limits[1].AtOnce = append(s.r.Limits[1].AtOnce, check.Value{From: 100_000, N: 1}, check.Value{From: 19_900_000, N: 2})
			s.together(20_000, "w1", 2, 4)
		}, "[]"},
		"as many as may start": {func(s *story) {
			for i := range int64(3) {
				s.begin(1000+i, "w1", 2*i)(1000+i, check.Done)
			}
		}, "[]"},
		"more than may start": {func(s *story) {
			for i := range int64(4) {
				s.begin(1000+100*i, "w1", 2*i)(1000+100*i, check.Done)
			}
		}, "[over a limit]"},
		"retries that are more than may start": {func(s *story) {
			for i := range int64(4) {
				s.begin(1000+100*i, "w1", 2)(1000+100*i, check.Fail)
			}
		}, "[over a limit]"},
		"the next period": {func(s *story) {
			for i := range int64(9) {
				s.begin(1000+350*i, "w1", 2*i)(1000+350*i, check.Done)
			}
		}, "[]"},
		"starts that a process was late with": {func(s *story) {
			s.begin(1000, "w1", 2)(1000, check.Done)
			s.begin(1000, "w1", 4)(1000, check.Done)
			s.begin(1000, "w1", 6)(1000, check.Done)
			s.add(1200, check.Line{Kind: check.Still, Who: "w2", For: 3_000_000})
			s.begin(1201, "w2", 8)(1201, check.Done)
		}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &story{calls: make(map[string]int64), r: leasedRules}
			s.r.Limits = append([]check.Limit{}, s.r.Limits...)
			test.plant(s)
			require.Equal(t, test.want, fmt.Sprint(s.kinds(t)))
		})
	}
}

// together has a process handle events at once for 50 milliseconds.
func (s *story) together(ms int64, who string, events ...int64) {
	ends := make([]func(int64, string), len(events))
	for i, n := range events {
		ends[i] = s.begin(ms, who, n)
	}
	for _, end := range ends {
		end(ms+50, check.Done)
	}
}

// TestAccountSaysHowNearLimitsWere: an account in which no limit was reached would prove nothing.
func TestAccountSaysHowNearLimitsWere(t *testing.T) {
	t.Parallel()
	s := &story{}
	s.together(1000, "w1", 2, 4, 1)
	s.add(2500, check.Line{Kind: check.Still, Who: "w1", For: 500_000})
	s.begin(2501, "w1", 6)(2501, check.Told)
	a := s.check(t)
	require.Equal(t, []int{4, 1, 1}, []int{a.Leased, a.Told, a.Unsure})
	require.Equal(t, []string{
		"limit of mailed: 3 calls, at most 3 of 4 at once (so many 0 times), at most 0 of 0 starts in a period (0 times)",
		"limit of mailed per tenant: 3 calls, at most 2 of 2 at once (so many 1 times), at most 2 of 3 starts in a period (0 times)",
	}, []string{a.Limits[0].String(), a.Limits[1].String()})
}
