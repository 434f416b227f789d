package outboxtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/seal"
)

// Querier reads the events. It is a connection, a pool, or a transaction, which also sees the events that it has enqueued
// itself.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// RequireEnqueued returns the payload of the oldest event of topic for which match is true, whether or not it has been
// delivered. A nil match is always true. Payloads are decoded as for a handler: those of older versions pass through their
// upcasters. One that no handler would get, because it does not decode or has a newer version, never matches. If no event matches, the test fails and lists the events of the topic by id,
// status and key; it does not show payloads, because they may be sensitive. A topic that deletes on ack has no events that
// were delivered.
func RequireEnqueued[P any](t testing.TB, db Querier, topic outbox.Topic[P], match func(P) bool) P {
	t.Helper()
	payload, seen, found := find(t, db, topic, match)
	if !found {
		t.Fatalf("no event of %s matches; there are %s", topic.Untyped(), seen)
	}
	return payload
}

// WithKeyring returns t with a context that has k: RequireEnqueued and RequireNotEnqueued open what is sealed with it, and
// Drain gives it to a dispatcher or listener that has no keyring. Without it they use seal.ForTests. Code under test
// gets the context of what WithKeyring returns, or one of seal.ContextWithKeyring.
func WithKeyring(t testing.TB, k seal.Keyring) testing.TB {
	return withContext{t, seal.ContextWithKeyring(t.Context(), k)}
}

type withContext struct {
	testing.TB
	ctx context.Context
}

func (t withContext) Context() context.Context { return t.ctx }

// contextOf returns the context of t, with the keyring for tests if it has none.
func contextOf(t testing.TB) context.Context {
	if seal.KeyringFromContext(t.Context()) != nil {
		return t.Context()
	}
	return seal.ContextWithKeyring(t.Context(), seal.ForTests())
}

// unreadable says in the list of events why a payload is not compared. Only the error of what is sealed is shown: others
// may be of the user's code, and have a value.
func unreadable(err error) string {
	var sealed *sealing.Fault
	if errors.As(err, &sealed) {
		return " (payload does not open: " + sealed.Error() + ")"
	}
	return " (payload does not decode)"
}

// RequireNotEnqueued fails the test if there is an event of topic for which match is true. A nil match is always true.
func RequireNotEnqueued[P any](t testing.TB, db Querier, topic outbox.Topic[P], match func(P) bool) {
	t.Helper()
	if _, seen, found := find(t, db, topic, match); found {
		t.Fatalf("an event of %s matches; the last of these: %s", topic.Untyped(), seen)
	}
}

// Drainer is a *queue.Dispatcher or a *listener.Listener.
type Drainer interface {
	Drain(ctx context.Context) (queue.Report, error)
}

// Drain handles all events that are due, one after another in the test's goroutine, where handlers may call FailNow. It
// returns a report of the results. The events of a topic with batches come in batches, which do not wait to fill. It
// attaches a listener that is new. An error of the database fails the test. An error of a handler does not: check the
// report.
func Drain(t testing.TB, d Drainer) queue.Report {
	t.Helper()
	if isnil.Is(d) {
		t.Fatal("drain: no dispatcher or listener given (nil)")
	}
	report, err := d.Drain(config.Inline(contextOf(t)))
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// find returns the first match and a list of the events up to it.
func find[P any](t testing.TB, db Querier, topic outbox.Topic[P], match func(P) bool) (payload P, seen string, found bool) {
	t.Helper()
	if isnil.Is(db) {
		t.Fatalf("read events of %s: no transaction, connection or pool given (nil)", topic.Untyped())
	}
	of := topic.Untyped().Spec()
	schema := cmp.Or(of.Schema, "outbox")
	query := "SELECT id, coalesce(status, 'without state'), coalesce(dedupe_key, ''), tenant_id, version, payload FROM " + pgx.Identifier{schema, "event_status"}.Sanitize() +
		" WHERE namespace = $1 AND topic = $2 ORDER BY created_at, id"
	if of.Log {
		query = "SELECT id, 'in the log', coalesce(dedupe_key, ''), tenant_id, version, payload FROM " + pgx.Identifier{schema, "log"}.Sanitize() +
			" WHERE namespace = $1 AND topic = $2 ORDER BY seq"
	}
	rows, err := db.Query(t.Context(), query, of.Namespace, of.Name)
	if err != nil {
		t.Fatalf("read events of %s: %v", topic.Untyped(), err)
	}
	var (
		list        []string
		id          uuid.UUID
		tenant      uuid.NullUUID
		status, key string
		version     int
		raw         []byte
	)
	current := topic.Untyped().Version()
	ctx := contextOf(t)
	decoder := config.Opener(topic.Untyped())
	_, err = pgx.ForEachRow(rows, []any{&id, &status, &key, &tenant, &version, &raw}, func() error {
		if found {
			return nil
		}
		line := fmt.Sprintf("%s %s", id, status)
		if key != "" {
			line += fmt.Sprintf(" key %q", key)
		}
		switch p, err := decoder.Open(ctx, sealing.Event{ID: id, Tenant: tenant}, version, raw); {
		case version > current:
			line += fmt.Sprintf(" (payload has version %d, the topic knows %d)", version, current)
		case err != nil:
			line += unreadable(err)
		case match == nil || match(*p.(*P)):
			payload, found = *p.(*P), true
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatalf("read events of %s: %v", topic.Untyped(), err)
	}
	if len(list) == 0 {
		return payload, "none", false
	}
	return payload, fmt.Sprintf("%d:\n\t%s", len(list), strings.Join(list, "\n\t")), found
}
