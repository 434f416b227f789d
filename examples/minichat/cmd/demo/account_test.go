package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// ids of the turns and events of the example.
var (
	turnA, turnB, turnC, turnD     = newTurn(), newTurn(), newTurn(), newTurn()
	eventA, eventB, eventC, eventX = uuid.New(), uuid.New(), uuid.New(), uuid.New()
	startA, startB, startC, startD = uuid.New(), uuid.New(), uuid.New(), uuid.New()
	tenant, other                  = uuid.New(), uuid.New()
)

func newTurn() events.TurnID { return events.TurnID(uuid.New()) }

// example is a correct history: turn A is delivered after a failure, B is delivered again after the kill, C becomes a
// dead letter, D is rolled back and refused, and the first attempt to finalise B failed. The start of C was shown twice,
// and the other service got the start of B twice.
func example() history {
	starts := func() map[uuid.UUID][]uuid.UUID {
		return map[uuid.UUID][]uuid.UUID{tenant: {startA, startB}, other: {startC, startD}}
	}
	return history{
		attempts: []attempt{
			{turnA, known(eventA), committed},
			{turnA, known(eventA), duplicate},
			{turnB, known(eventX), rolledBack},
			{turnB, known(eventB), committed},
			{turnC, known(eventC), committed},
			{turnD, uuid.NullUUID{}, rolledBack},
			{newTurn(), uuid.NullUUID{}, refused},
		},
		deliveries: []delivery{
			{turnA, eventA, 1, started}, {turnA, eventA, 1, failed}, {turnA, eventA, 2, started}, {turnA, eventA, 2, handled},
			{turnB, eventB, 1, started}, {turnB, eventB, 1, handled}, {turnB, eventB, 2, started}, {turnB, eventB, 2, handled},
			{turnC, eventC, 1, started}, {turnC, eventC, 1, failed},
		},
		events: []event{
			{eventA, turnA.String(), "delivered", ""},
			{eventB, turnB.String(), "delivered", ""},
			{eventC, turnC.String(), "dead", "not billable"},
		},
		finalized: []events.TurnID{turnA, turnB, turnC},
		ledger:    []uuid.UUID{eventA, eventB},
		kill:      kill{done: true, inHand: 3},

		started:   []events.TurnID{turnA, turnB, turnC, turnD},
		logged:    starts(),
		activity:  starts(),
		shown:     []shown{{turnA, startA}, {turnC, startC}, {turnB, startB}, {turnC, startC}, {turnD, startD}},
		analytics: starts(),
		messages:  5,
		died:      true,
	}
}

func TestSettleCorrectHistory(t *testing.T) {
	t.Parallel()
	require.Equal(t, Account{
		Committed: 3, RolledBack: 2, Refused: 1, Duplicates: 1,
		Delivered: 2, Retried: 1, Redelivered: 1, InHand: 3, Dead: 1,
		Started: 4, Activity: 4, Shown: 4, ShownAgain: 1, Messages: 5, Analytics: 4,
		Correct: true, Problems: []string{},
	}, settle(example()))
}

func TestSettleFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*history)
		want  string
	}{
		"lost":                   {func(h *history) { h.events = h.events[1:] }, "is lost"},
		"left":                   {func(h *history) { h.events[0].Status = "processing" }, "is left in status processing"},
		"dead without reason":    {func(h *history) { h.events[2].LastError = "" }, "dead without a reason"},
		"dead without a failure": {func(h *history) { h.events[1].Status, h.events[1].LastError = "dead", "why" }, "dead without a reason"},
		"delivered by nobody":    {func(h *history) { h.deliveries = h.deliveries[4:] }, "no handler got it done"},
		"rolled back and delivered": {func(h *history) {
			h.deliveries = append(h.deliveries, delivery{turnB, eventX, 1, started})
		}, "was rolled back, and reached a handler"},
		"turn rolled back and delivered": {func(h *history) {
			h.deliveries = append(h.deliveries, delivery{turnD, uuid.New(), 1, started})
		}, "was rolled back, and reached a handler"},
		"delivered from nowhere": {func(h *history) {
			h.deliveries = append(h.deliveries, delivery{newTurn(), uuid.New(), 1, started})
		}, "no producer knows it"},
		"rolled back and in the table": {func(h *history) {
			h.events = append(h.events, event{eventX, turnB.String(), "delivered", ""})
		}, "no producer committed it"},
		"two events of a turn": {func(h *history) {
			h.attempts = append(h.attempts, attempt{turnA, known(uuid.New()), committed})
		}, "was finalised twice"},
		"duplicate of nothing": {func(h *history) { h.attempts[1].Event = known(eventX) }, "which is not committed for it"},
		"turn without event":   {func(h *history) { h.finalized = append(h.finalized, turnD) }, "is finalised without an event"},
		"event without turn":   {func(h *history) { h.finalized = h.finalized[1:] }, "is committed without its turn"},
		"no effect":            {func(h *history) { h.ledger = h.ledger[1:] }, "without an entry in the ledger"},
		"effect of nothing":    {func(h *history) { h.ledger = append(h.ledger, eventX) }, "which no producer committed"},
		"nobody killed":        {func(h *history) { h.kill = kill{} }, "no worker was killed"},
		"killed when idle":     {func(h *history) { h.kill.inHand = 0 }, "no worker was killed"},
		"consumer never died":  {func(h *history) { h.died = false }, "did not die"},
		"start without event":  {func(h *history) { h.logged[tenant] = h.logged[tenant][1:] }, "4 turns were started, and the log has 3 events"},
		"start not written":    {func(h *history) { h.activity[tenant] = h.activity[tenant][1:] }, "the listener activity does not have"},
		"start written twice": {func(h *history) {
			h.activity[other] = append(h.activity[other], startD)
		}, "the listener activity does not have"},
		"start out of order":    {func(h *history) { slices.Reverse(h.analytics[other]) }, "the other service does not have"},
		"start not over Kafka":  {func(h *history) { delete(h.analytics, tenant) }, "the other service does not have"},
		"start of nobody":       {func(h *history) { h.analytics[uuid.New()] = []uuid.UUID{startA} }, "the other service 5"},
		"start not shown":       {func(h *history) { h.shown = h.shown[1:] }, "did not show it"},
		"shown and not started": {func(h *history) { h.shown = append(h.shown, shown{newTurn(), startA}) }, "5 turns were shown, and 4 were started"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := example()
			c.spoil(&h)
			a := settle(h)
			require.False(t, a.Correct)
			found := false
			for _, problem := range a.Problems {
				found = found || bytes.Contains([]byte(problem), []byte(c.want))
			}
			require.True(t, found, "%q is not among %q", c.want, a.Problems)

			var out bytes.Buffer
			require.NoError(t, a.write(&out, false))
			require.Contains(t, out.String(), "WRONG")
			require.Contains(t, out.String(), c.want)
		})
	}
}
