package otel_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	people "github.com/outboxgen/outboxgen/generator/testdata/sensitive/want"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/queue"
)

// greeter is a handler whose errors and panics hold all that it gets.
type greeter struct {
	people.UnimplementedPeopleHandlers
	panics bool
}

func (g *greeter) HandleJoined(_ context.Context, d outbox.Delivery[people.Joined]) error {
	if g.panics {
		panic(d.Payload)
	}
	return outbox.Permanent(fmt.Errorf("cannot greet %v, %+v, %#v, %s", d, d.Payload, d.Payload, d.Payload.Wallet))
}

// TestSensitiveValuesAreMasked: spans and metrics have no value of a sensitive field, although the errors and panics of
// handlers print their payloads.
func TestSensitiveValuesAreMasked(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	for _, panics := range []bool{false, true} {
		require.NoError(t, pgx.BeginFunc(root, pool, func(tx pgx.Tx) error {
			phone := secret
			_, err := people.EnqueueJoined(root, tx, people.Joined{
				PersonID: uuid.New(), Email: secret + "@example.com", Phone: &phone, Pin: 471147, Tokens: []string{secret}, Home: people.Address{City: "Berlin"},
				Wallet: &people.Wallet{Cards: []people.Card{{Number: "471147114711", Expires: payload.Date{Year: 2030, Month: 1, Day: 1}}}, Named: map[string]people.Card{}},
			})
			return err
		}))
		d, err := people.NewPeopleDispatcher(pool, &greeter{panics: panics}, queue.Config{
			Observer: r.Observer(), Middleware: []outbox.Middleware{r.Middleware},
		})
		require.NoError(t, err)
		report, err := d.Drain(root)
		require.NoError(t, err)
		require.Equal(t, 1, report.Dead+report.Retried)
	}
	require.Contains(t, r.named("process people/joined")[0].Status().Description, "[masked]", "the text of the error is there")
	r.requireNoSecret()
	for _, s := range r.spans.Ended() {
		require.NotContains(t, fmt.Sprint(s.Attributes(), s.Events(), s.Status()), "471147")
	}
}
