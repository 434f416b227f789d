package history_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/history"
)

func TestLogAndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history")
	log, err := history.Open(path)
	require.NoError(t, err)
	tx, a, b, c := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	require.NoError(t, log.Tx(tx, history.Unknown, a, b))
	require.NoError(t, log.Delivery(a, 1, "w1"))
	require.NoError(t, log.Tx(tx, history.Committed, a, b))
	require.NoError(t, log.Tx(uuid.New(), history.Aborted, c))
	require.NoError(t, log.Close())

	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("\ndelivery " + b.String()[:20]) // torn
	require.NoError(t, err)
	require.NoError(t, f.Close())
	again, err := history.Open(path)
	require.NoError(t, err)
	require.NoError(t, again.Delivery(a, 2, "w2"))
	require.NoError(t, again.Close())

	h, err := history.Read(path)
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]history.Outcome{a: history.Committed, b: history.Committed, c: history.Aborted}, h.Outcomes)
	require.Equal(t, map[uuid.UUID]int{a: 2}, h.Deliveries)

	require.NoError(t, os.WriteFile(path, []byte("\nnonsense ."), 0o600))
	_, err = history.Read(path)
	require.EqualError(t, err, `read history: line 1: unknown record "nonsense"`)
}

// TestCheck breaks each invariant once.
func TestCheck(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890000-0000-7000-8000-000000000001")
	one := func(status string, attempts int, lastError string) map[uuid.UUID]history.Row {
		return map[uuid.UUID]history.Row{id: {ID: id, Status: status, Attempts: attempts, MaxAttempts: 2, LastError: lastError}}
	}
	unlimited := one("delivered", 3, "")
	unlimited[id] = history.Row{ID: id, Status: "delivered", Attempts: 3}
	for name, c := range map[string]struct {
		outcome history.Outcome
		seen    int
		rows    map[uuid.UUID]history.Row
		given   history.Conditions
		want    []string
	}{
		"fine":                          {history.Committed, 1, one("delivered", 1, ""), history.Conditions{}, nil},
		"dead with a reason":            {history.Committed, 2, one("dead", 2, "why"), history.Conditions{Faults: true}, nil},
		"unknown and there":             {history.Unknown, 1, one("delivered", 1, ""), history.Conditions{}, nil},
		"unknown and not there":         {history.Unknown, 0, nil, history.Conditions{}, nil},
		"aborted":                       {history.Aborted, 0, nil, history.Conditions{}, nil},
		"redelivered after a fault":     {history.Committed, 2, one("delivered", 2, ""), history.Conditions{Faults: true}, nil},
		"lost by an async commit":       {history.Committed, 0, nil, history.Conditions{AsyncCommit: true}, nil},
		"unfinished":                    {history.Committed, 0, one("pending", 0, ""), history.Conditions{Unfinished: true}, nil},
		"lost":                          {history.Committed, 0, nil, history.Conditions{}, []string{"I1 event " + id.String() + ": committed, but has no row"}},
		"left pending":                  {history.Committed, 0, one("pending", 0, ""), history.Conditions{}, []string{"I1 event " + id.String() + ": pending at the end"}},
		"delivered to nobody":           {history.Committed, 0, one("delivered", 1, ""), history.Conditions{}, []string{"I1 event " + id.String() + ": delivered by its row, but no handler saw it"}},
		"dead without reason":           {history.Committed, 1, one("dead", 1, ""), history.Conditions{}, []string{"I1 event " + id.String() + ": dead without a reason"}},
		"aborted and delivered":         {history.Aborted, 1, nil, history.Conditions{}, []string{"I2 event " + id.String() + `: aborted, but delivered 1 times, row ""`}},
		"phantom":                       {history.Committed, 1, nil, history.Conditions{AsyncCommit: true}, []string{"I3 event " + id.String() + ": committed and delivered 1 times, but has no row"}},
		"unknown, no row, delivered":    {history.Unknown, 1, nil, history.Conditions{}, []string{"I3 event " + id.String() + ": unknown and delivered 1 times, but has no row"}},
		"enqueued by nobody":            {"", 1, one("delivered", 1, ""), history.Conditions{}, []string{"I2 event " + id.String() + ": delivered 1 times, but nobody enqueued it"}},
		"more deliveries than attempts": {history.Committed, 2, one("delivered", 1, ""), history.Conditions{Faults: true}, []string{"I6 event " + id.String() + ": seen 2, attempts 1, max 2"}},
		"more attempts than allowed":    {history.Committed, 2, one("delivered", 3, ""), history.Conditions{Faults: true}, []string{"I6 event " + id.String() + ": seen 2, attempts 3, max 2"}},
		"limit not in the row":          {history.Committed, 2, unlimited, history.Conditions{Faults: true}, nil},
		"more than the known limit":     {history.Committed, 2, unlimited, history.Conditions{Faults: true, MaxAttempts: 2}, []string{"I6 event " + id.String() + ": seen 2, attempts 3, max 2"}},
		"without a state":               {history.Committed, 0, one("", 0, ""), history.Conditions{}, []string{"I11 event " + id.String() + ": has no state"}},
		"twice without a fault":         {history.Committed, 2, one("delivered", 2, ""), history.Conditions{}, []string{"I9 event " + id.String() + ": seen 2, attempts 2, without any fault"}},
		"still processing":              {history.Committed, 1, one("processing", 1, ""), history.Conditions{}, []string{"I11 event " + id.String() + ": processing at the end"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &history.History{Outcomes: map[uuid.UUID]history.Outcome{}, Deliveries: map[uuid.UUID]int{}}
			if c.outcome != "" {
				h.Outcomes[id] = c.outcome
			}
			if c.seen > 0 {
				h.Deliveries[id] = c.seen
			}
			var got []string
			for _, v := range h.Check(c.rows, c.given) {
				got = append(got, v.String())
			}
			require.Equal(t, c.want, got)
		})
	}
	require.Empty(t, history.CheckFinal(one("delivered", 1, ""), one("delivered", 1, "")))
	require.Empty(t, history.CheckFinal(one("pending", 1, ""), one("dead", 2, "")))
	require.Len(t, history.CheckFinal(one("delivered", 1, ""), one("pending", 1, "")), 1)
	require.Len(t, history.CheckFinal(one("dead", 2, ""), one("delivered", 3, "")), 1)
	require.Len(t, history.CheckFinal(one("dead", 2, ""), nil), 1)
}
