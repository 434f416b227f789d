package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/examples/users/user"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
)

// TestRun runs the demo twice with one database and one cluster, so that the second run finds the data of the first.
func TestRun(t *testing.T) {
	t.Parallel()
	url := outboxtest.Postgres(t).Config().ConnString()
	brokers, stop, err := connect(t.Context(), "")
	require.NoError(t, err)
	defer stop()
	for range 2 {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), environment{users: url, brokers: brokers[0]}, &out))
		require.Regexp(t, `\d+ messages are in Kafka, out of order, [1-9]\d* of them repeats\n`, out.String())
		require.Regexp(t, `[1-9]\d* events applied, [1-9]\d* duplicates, [1-9]\d* too late, 0 dead letters\n`, out.String())
		account := regexp.MustCompile(`(?m)^events .*$`).FindAllString(out.String(), -1)
		require.Len(t, account, 2, out.String())
		for _, line := range account {
			require.Equal(t, "events 275, users 75, cards 75, deleted 25, tombstones 25, wrong cards 0", line)
		}
	}
}

// TestInterrupt stops the demo in the middle of its traffic.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	url := outboxtest.Postgres(t).Config().ConnString()
	out := writerFunc(func(p []byte) (int, error) { interrupt(); return len(p), nil })
	require.ErrorIs(t, run(ctx, environment{users: url}, out), context.Canceled)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRunNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, run(t.Context(), environment{users: "postgres://localhost:1/none?connect_timeout=1"}, io.Discard), "connect")
	url := outboxtest.Postgres(t).Config().ConnString()
	require.ErrorContains(t, run(t.Context(), environment{users: url, brokers: "127.0.0.1:1"}, io.Discard),
		"create topic sc.domain.user in Kafka at [127.0.0.1:1]: ")
}

// TestCompare checks that the comparison can fail.
func TestCompare(t *testing.T) {
	t.Parallel()
	u := user.User{ID: uuid.New(), Version: 2, Name: "ada"}
	good := cards.Card{UserID: u.ID, Version: 2, Name: "ada"}
	old, lost, extra := good, good, cards.Card{UserID: uuid.New()}
	old.Version, lost.Deleted = 1, true
	for name, test := range map[string]struct {
		cards             []cards.Card
		tombstones, wrong int
	}{
		"good": {[]cards.Card{good}, 0, 0}, "none": {nil, 0, 1}, "old": {[]cards.Card{old}, 0, 1},
		"lost": {[]cards.Card{lost}, 1, 1}, "extra": {[]cards.Card{good, extra}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tombstones, wrong := compare([]user.User{u}, test.cards)
			require.Equal(t, test.tombstones, tombstones)
			require.Len(t, wrong, test.wrong)
		})
	}
}

// publisher accepts all events except those in refused.
type publisher struct {
	refused uuid.UUID
	sent    []publish.Outgoing
}

func (p *publisher) Publish(_ context.Context, events []publish.Outgoing) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		if e.ID == p.refused {
			errs[i] = errors.New("refused")
			continue
		}
		p.sent = append(p.sent, e)
	}
	return errs
}

// TestUnruly checks that results are in the order of the events, whatever the order in which they were sent.
func TestUnruly(t *testing.T) {
	t.Parallel()
	var events []publish.Outgoing
	for range 100 {
		events = append(events, publish.Outgoing{Event: outbox.Event{ID: uuid.New()}})
	}
	p := &publisher{refused: events[41].ID}
	u := &unruly{publisher: p}
	for i, err := range u.Publish(t.Context(), events) {
		require.Equal(t, i == 41, err != nil)
	}
	require.NotEqual(t, events[:41], p.sent[:41])
	u.flush(t.Context())
	require.Len(t, p.sent, u.sent)
	require.Positive(t, u.again)
	require.Equal(t, 99, u.sent-u.again)
}
