package check_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

var rules = check.Rules{Topics: map[string][]check.Handler{
	"moved": {{Name: "screen", Ordered: true}, {Name: "ledger", Once: true, Ordered: true}},
}}

var counted = map[string][]check.Handler{
	"moved": {{Name: "screen", Ordered: true, Counted: true}, {Name: "ledger", Once: true, Ordered: true}},
}

func id(n int64) check.ID { return check.ID{15: byte(n)} }

// fine is a history of three events of an item, which are numbered from 1, as it should be.
func fine() ([]check.Line, check.State) {
	var lines []check.Line
	var s check.State
	for n := int64(1); n <= 3; n++ {
		lines = append(lines,
			check.Line{Kind: check.Tx, At: n, Who: "writer", Tx: fmt.Sprint(n), Say: check.Unknown, Events: []check.ID{id(n)}},
			check.Line{Kind: check.Tx, At: n, Who: "writer", Tx: fmt.Sprint(n), Say: check.Committed, Events: []check.ID{id(n)}})
		s.Rows = append(s.Rows, check.Row{Event: id(n), Topic: "moved", Item: "a", N: n})
		s.Effects = append(s.Effects, check.Effect{Handler: "ledger", Event: id(n), Topic: "moved", Item: "a", N: n})
	}
	for n := int64(1); n <= 3; n++ {
		lines = append(lines, call(n, check.Start), call(n, check.Done))
	}
	return lines, s
}

func call(n int64, say string) check.Line {
	return check.Line{Kind: check.Call, At: 10 + n, Who: "worker", Handler: "screen", Event: id(n), Attempt: 1, Say: say, Topic: "moved", Item: "a", N: n}
}

func text(t *testing.T, lines []check.Line) string {
	t.Helper()
	var b strings.Builder
	for _, l := range lines {
		line, err := json.Marshal(l)
		require.NoError(t, err)
		b.WriteString("\n" + string(line))
	}
	return b.String()
}

// TestCheckFindsWhatIsPlanted: nothing is wrong with a fine history, and each thing that is made wrong is found, with its kind.
func TestCheckFindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plant func(lines *[]check.Line, s *check.State, r *check.Rules)
		want  string // the kinds
	}{
		"nothing": {func(*[]check.Line, *check.State, *check.Rules) {}, "[]"},
		"a loss at a handler": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			*l = (*l)[:len(*l)-2]
		}, "[lost]"},
		"a call that never returned": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			*l = (*l)[:len(*l)-1]
		}, "[lost]"},
		"a lost effect": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Effects = s.Effects[:2]
		}, "[lost]"},
		"a phantom": {func(l *[]check.Line, s *check.State, _ *check.Rules) {
			*l = append(*l, check.Line{Kind: check.Tx, Tx: "9", Say: check.Aborted, Events: []check.ID{id(9)}}, call(9, check.Start))
		}, "[phantom]"},
		"a phantom that nobody knows": {func(l *[]check.Line, s *check.State, _ *check.Rules) {
			*l = append(*l, call(9, check.Start))
		}, "[phantom]"},
		"an effect of a phantom": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Effects = append(s.Effects, check.Effect{Handler: "ledger", Event: id(9), Topic: "moved", Item: "a", N: 9})
		}, "[phantom]"},
		"disorder of calls": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			n := len(*l)
			(*l)[n-4], (*l)[n-3], (*l)[n-2], (*l)[n-1] = (*l)[n-2], (*l)[n-1], (*l)[n-4], (*l)[n-3]
		}, "[out of order]"},
		"a call before the one before it is done": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			n := len(*l)
			(*l)[n-3], (*l)[n-2] = (*l)[n-2], (*l)[n-3]
		}, "[out of order]"},
		"disorder of effects": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Effects[1], s.Effects[2] = s.Effects[2], s.Effects[1]
		}, "[out of order]"},
		"a double effect": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Effects = append(s.Effects, s.Effects[2])
		}, "[double]"},
		"a duplicate after a fault": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			*l = append(*l, call(3, check.Start), call(3, check.Done))
		}, "[]"},
		"a duplicate without any fault": {func(l *[]check.Line, _ *check.State, r *check.Rules) {
			*l = append(*l, call(3, check.Start), call(3, check.Done))
			r.Calm = true
		}, "[double]"},
		"two calls at once without any fault": {func(l *[]check.Line, _ *check.State, r *check.Rules) {
			*l = append((*l)[:len(*l)-1], call(3, check.Start), call(3, check.Done))
			r.Calm = true
		}, "[double]"},
		"a retry without any fault": {func(l *[]check.Line, _ *check.State, r *check.Rules) {
			*l = append((*l)[:len(*l)-1], call(3, check.Fail), call(3, check.Start), call(3, check.Done))
			r.Calm = true
		}, "[]"},
		"a call before its time": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Rows[2].NotBefore = 14
		}, "[early]"},
		"another payload": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			(*l)[len(*l)-1].Item = "b"
		}, "[lost wrong]"},
		"a row that is gone": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Rows, s.Effects = s.Rows[:2], s.Effects[:2]
		}, "[broken phantom phantom]"},
		"a row of an aborted transaction": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			(*l)[5].Say = check.Aborted
		}, "[broken]"},
		"an unknown outcome without a row": {func(l *[]check.Line, s *check.State, _ *check.Rules) {
			*l = append(*l, check.Line{Kind: check.Tx, Tx: "9", Say: check.Unknown, Events: []check.ID{id(9)}})
		}, "[]"},
		"a call of an unknown outcome without a row": {func(l *[]check.Line, s *check.State, _ *check.Rules) {
			*l = append(*l, check.Line{Kind: check.Tx, Tx: "9", Say: check.Unknown, Events: []check.ID{id(9)}}, call(9, check.Start))
		}, "[phantom]"},
		"an unknown outcome with a row that is lost": {func(l *[]check.Line, s *check.State, _ *check.Rules) {
			(*l)[5].Say = check.Unknown
			*l = (*l)[:len(*l)-2]
		}, "[lost]"},
		"a retry that is counted": {func(l *[]check.Line, _ *check.State, r *check.Rules) {
			r.Topics = counted
			again := call(3, check.Start)
			again.Attempt = 2
			*l = append((*l)[:len(*l)-1], call(3, check.Fail), again, call(3, check.Done))
		}, "[]"},
		"a retry that is not counted": {func(l *[]check.Line, _ *check.State, r *check.Rules) {
			r.Topics = counted
			*l = append((*l)[:len(*l)-1], call(3, check.Fail), call(3, check.Start), call(3, check.Done))
		}, "[extra]"},
		"a replay of an event that is refused": {func(l *[]check.Line, s *check.State, r *check.Rules) {
			r.Topics = counted
			s.Rows[2].Doomed = true
			*l = append((*l)[:len(*l)-1], call(3, check.Gone), call(3, check.Start), call(3, check.Gone))
			s.Dead = []check.Dead{{Handler: "screen", Event: id(3), Reason: "refused"}}
		}, "[]"},
		"something that is left behind": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Left = []string{"1 sessions"}
		}, "[left]"},
		"what was noted in between": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Noted = []check.Violation{{Kind: check.Back, Text: "the cursor"}, {Kind: check.Again, Event: id(3), Text: "is in table queue"}}
		}, "[ended again went back]"},
		"a goroutine that is left behind": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			*l = append(*l, check.Line{Kind: check.Behind, Who: "worker", Say: "goroutine 7 [select]:"})
		}, "[left]"},
		"an unknown outcome with a row": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			(*l)[5].Say = check.Unknown
		}, "[]"},
		"a death without a reason": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Rows[2].Doomed = true
			s.Dead = []check.Dead{{Handler: "screen", Event: id(3)}}
		}, "[died]"},
		"the death of an innocent": {func(_ *[]check.Line, s *check.State, _ *check.Rules) {
			s.Dead = []check.Dead{{Handler: "screen", Event: id(3), Reason: "too many attempts"}}
		}, "[died]"},
		"the death of a doomed one": {func(l *[]check.Line, s *check.State, _ *check.Rules) {
			*l = append((*l)[:len(*l)-1], call(3, check.Gone))
			s.Rows[2].Doomed = true
			s.Dead = []check.Dead{{Handler: "screen", Event: id(3), Reason: "refused"}}
		}, "[]"},
		"a wrong answer": {func(l *[]check.Line, _ *check.State, _ *check.Rules) {
			*l = append(*l, check.Line{Kind: check.Bad, Who: "writer", Say: "not a duplicate", Event: id(3)})
		}, "[wrong]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, s := fine()
			r := rules
			test.plant(&lines, &s, &r)
			account, err := check.Check(strings.NewReader(text(t, lines)), s, r)
			require.NoError(t, err)
			kinds := []string{}
			for _, v := range account.Violations {
				kinds = append(kinds, v.Kind)
			}
			require.Equal(t, test.want, fmt.Sprint(kinds), "%v", account.Violations)
		})
	}
}

// TestHistoryOfOneEvent: the shortest history has the lines about an event and the faults at that time, and nothing else.
func TestHistoryOfOneEvent(t *testing.T) {
	t.Parallel()
	lines, _ := fine()
	far := check.Line{Kind: check.Fault, At: 100_000_000, Who: "driver", Say: "kill-worker"}
	near := check.Line{Kind: check.Fault, At: 11, Who: "driver", Say: "cut-reply"}
	still := check.Line{Kind: check.Still, At: 12, Who: "worker", For: 2_000_000}
	other := check.Line{Kind: check.Still, At: 12, Who: "another worker", For: 2_000_000}
	got, err := check.History(strings.NewReader(text(t, append(lines, far, near, still, other))+"\n{\"k\":\"ca"), id(2))
	require.NoError(t, err)
	require.Len(t, got, 6)
	require.Contains(t, got[0], "transaction 2 with 1 events: unknown")
	require.Contains(t, got[2], "fault: cut-reply")
	require.Contains(t, strings.Join(got, "\n"), "screen starts it, attempt 1: moved a number 2")
	require.Contains(t, strings.Join(got, "\n"), "still for 2.000 s")
}
