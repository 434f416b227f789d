package deliveryhistory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/deliveryhistory"
)

func TestLogAndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history")
	log, err := deliveryhistory.Open(path)
	require.NoError(t, err)
	tx, a, b, c := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	require.NoError(t, log.Tx(tx, deliveryhistory.Unknown, a, b))
	require.NoError(t, log.Delivery(a, 1, "w1"))
	require.NoError(t, log.Tx(tx, deliveryhistory.Committed, a, b))
	require.NoError(t, log.Tx(uuid.New(), deliveryhistory.Aborted, c))
	require.NoError(t, log.Close())

	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("\ndelivery " + b.String()[:20]) // torn
	require.NoError(t, err)
	require.NoError(t, f.Close())
	again, err := deliveryhistory.Open(path)
	require.NoError(t, err)
	require.NoError(t, again.Delivery(a, 2, "w2"))
	require.NoError(t, again.Close())

	h, err := deliveryhistory.Read(path)
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]deliveryhistory.Outcome{a: deliveryhistory.Committed, b: deliveryhistory.Committed, c: deliveryhistory.Aborted}, h.Outcomes)
	require.Equal(t, map[uuid.UUID]int{a: 2}, h.Deliveries)

	require.NoError(t, os.WriteFile(path, []byte("\nnonsense ."), 0o600))
	_, err = deliveryhistory.Read(path)
	require.EqualError(t, err, `read history: line 1: unknown record "nonsense"`)
}

// TestCheck breaks each invariant once.
func TestCheck(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890000-0000-7000-8000-000000000001")
	one := func(status string, attempts int, lastError string) map[uuid.UUID]deliveryhistory.Row {
		return map[uuid.UUID]deliveryhistory.Row{id: {ID: id, Status: status, Attempts: attempts, MaxAttempts: 2, LastError: lastError}}
	}
	unlimited := one("delivered", 3, "")
	unlimited[id] = deliveryhistory.Row{ID: id, Status: "delivered", Attempts: 3}
	for name, c := range map[string]struct {
		outcome deliveryhistory.Outcome
		seen    int
		rows    map[uuid.UUID]deliveryhistory.Row
		given   deliveryhistory.Conditions
		want    []string
	}{
		"fine":                          {deliveryhistory.Committed, 1, one("delivered", 1, ""), deliveryhistory.Conditions{}, nil},
		"dead with a reason":            {deliveryhistory.Committed, 2, one("dead", 2, "why"), deliveryhistory.Conditions{Faults: true}, nil},
		"unknown and there":             {deliveryhistory.Unknown, 1, one("delivered", 1, ""), deliveryhistory.Conditions{}, nil},
		"unknown and not there":         {deliveryhistory.Unknown, 0, nil, deliveryhistory.Conditions{}, nil},
		"aborted":                       {deliveryhistory.Aborted, 0, nil, deliveryhistory.Conditions{}, nil},
		"redelivered after a fault":     {deliveryhistory.Committed, 2, one("delivered", 2, ""), deliveryhistory.Conditions{Faults: true}, nil},
		"lost by an async commit":       {deliveryhistory.Committed, 0, nil, deliveryhistory.Conditions{AsyncCommit: true}, nil},
		"unfinished":                    {deliveryhistory.Committed, 0, one("pending", 0, ""), deliveryhistory.Conditions{Unfinished: true}, nil},
		"lost":                          {deliveryhistory.Committed, 0, nil, deliveryhistory.Conditions{}, []string{"I1 event " + id.String() + ": committed, but has no row"}},
		"left pending":                  {deliveryhistory.Committed, 0, one("pending", 0, ""), deliveryhistory.Conditions{}, []string{"I1 event " + id.String() + ": pending at the end"}},
		"delivered to nobody":           {deliveryhistory.Committed, 0, one("delivered", 1, ""), deliveryhistory.Conditions{}, []string{"I1 event " + id.String() + ": delivered by its row, but no handler saw it"}},
		"dead without reason":           {deliveryhistory.Committed, 1, one("dead", 1, ""), deliveryhistory.Conditions{}, []string{"I1 event " + id.String() + ": dead without a reason"}},
		"aborted and delivered":         {deliveryhistory.Aborted, 1, nil, deliveryhistory.Conditions{}, []string{"I2 event " + id.String() + `: aborted, but delivered 1 times, row ""`}},
		"phantom":                       {deliveryhistory.Committed, 1, nil, deliveryhistory.Conditions{AsyncCommit: true}, []string{"I3 event " + id.String() + ": committed and delivered 1 times, but has no row"}},
		"unknown, no row, delivered":    {deliveryhistory.Unknown, 1, nil, deliveryhistory.Conditions{}, []string{"I3 event " + id.String() + ": unknown and delivered 1 times, but has no row"}},
		"enqueued by nobody":            {"", 1, one("delivered", 1, ""), deliveryhistory.Conditions{}, []string{"I2 event " + id.String() + ": delivered 1 times, but nobody enqueued it"}},
		"more deliveries than attempts": {deliveryhistory.Committed, 2, one("delivered", 1, ""), deliveryhistory.Conditions{Faults: true}, []string{"I6 event " + id.String() + ": seen 2, attempts 1, max 2"}},
		"more attempts than allowed":    {deliveryhistory.Committed, 2, one("delivered", 3, ""), deliveryhistory.Conditions{Faults: true}, []string{"I6 event " + id.String() + ": seen 2, attempts 3, max 2"}},
		"limit not in the row":          {deliveryhistory.Committed, 2, unlimited, deliveryhistory.Conditions{Faults: true}, nil},
		"more than the known limit":     {deliveryhistory.Committed, 2, unlimited, deliveryhistory.Conditions{Faults: true, MaxAttempts: 2}, []string{"I6 event " + id.String() + ": seen 2, attempts 3, max 2"}},
		"without a state":               {deliveryhistory.Committed, 0, one("", 0, ""), deliveryhistory.Conditions{}, []string{"I11 event " + id.String() + ": has no state"}},
		"twice without a fault":         {deliveryhistory.Committed, 2, one("delivered", 2, ""), deliveryhistory.Conditions{}, []string{"I9 event " + id.String() + ": seen 2, attempts 2, without any fault"}},
		"still processing":              {deliveryhistory.Committed, 1, one("processing", 1, ""), deliveryhistory.Conditions{}, []string{"I11 event " + id.String() + ": processing at the end"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &deliveryhistory.History{Outcomes: map[uuid.UUID]deliveryhistory.Outcome{}, Deliveries: map[uuid.UUID]int{}}
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
	require.Empty(t, deliveryhistory.CheckFinal(one("delivered", 1, ""), one("delivered", 1, "")))
	require.Empty(t, deliveryhistory.CheckFinal(one("pending", 1, ""), one("dead", 2, "")))
	require.Len(t, deliveryhistory.CheckFinal(one("delivered", 1, ""), one("pending", 1, "")), 1)
	require.Len(t, deliveryhistory.CheckFinal(one("dead", 2, ""), one("delivered", 3, "")), 1)
	require.Len(t, deliveryhistory.CheckFinal(one("dead", 2, ""), nil), 1)
}
