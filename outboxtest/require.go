package outboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/absent"
	"github.com/outboxgen/outboxgen/internal/inline"
	"github.com/outboxgen/outboxgen/outbox"
)

// Querier is what reads the events: a transaction, which sees what it has enqueued itself, a connection or
// a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// RequireEnqueued returns the payload of the oldest event of topic for which match is true, whether it has
// been delivered or not; a nil match is always true. Without one the test fails and lists the events of the
// topic by id, status and keys; payloads, which may be sensitive, are not shown. Events of a topic that
// deletes on ack are gone once they are delivered.
func RequireEnqueued[P any](t testing.TB, db Querier, topic outbox.Topic[P], match func(P) bool) P {
	t.Helper()
	payload, seen, found := find(t, db, topic, match)
	if !found {
		t.Fatalf("no event of %s matches; there are %s", topic, seen)
	}
	return payload
}

// RequireNotEnqueued fails the test if there is an event of topic for which match is true; a nil match is
// always true.
func RequireNotEnqueued[P any](t testing.TB, db Querier, topic outbox.Topic[P], match func(P) bool) {
	t.Helper()
	if _, seen, found := find(t, db, topic, match); found {
		t.Fatalf("an event of %s matches; the last of these: %s", topic, seen)
	}
}

// Drain runs the handlers of what is due, one after another in the test's own goroutine, where they may
// call FailNow, and returns what came of it. Trouble with the database fails the test; a handler's error
// does not: look at the report.
func Drain(t testing.TB, d *outbox.Dispatcher) outbox.DrainReport {
	t.Helper()
	if d == nil {
		t.Fatal("drain: no dispatcher given (nil)")
	}
	report, err := d.Drain(inline.With(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// DrainListener is Drain for a listener, which it attaches if it is new.
func DrainListener(t testing.TB, l *outbox.Listener) outbox.DrainReport {
	t.Helper()
	if l == nil {
		t.Fatal("drain: no listener given (nil)")
	}
	report, err := l.Drain(inline.With(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// find returns the first match, and a list of the events up to it.
func find[P any](t testing.TB, db Querier, topic outbox.Topic[P], match func(P) bool) (payload P, seen string, found bool) {
	t.Helper()
	if absent.Is(db) {
		t.Fatalf("read events of %s: no transaction, connection or pool given (nil)", topic)
	}
	schema := topic.Schema
	if schema == "" {
		schema = "outbox"
	}
	query := "SELECT id, status, coalesce(dedupe_key, ''), payload FROM " + pgx.Identifier{schema, "events"}.Sanitize() +
		" WHERE namespace = $1 AND topic = $2 ORDER BY created_at, id"
	if topic.Log {
		query = "SELECT id, 'in the log', coalesce(dedupe_key, ''), payload FROM " + pgx.Identifier{schema, "log"}.Sanitize() +
			" WHERE namespace = $1 AND topic = $2 ORDER BY seq"
	}
	rows, err := db.Query(t.Context(), query, topic.Namespace, topic.Name)
	if err != nil {
		t.Fatalf("read events of %s: %v", topic, err)
	}
	var (
		list        []string
		id          uuid.UUID
		status, key string
		raw         []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &status, &key, &raw}, func() error {
		if found {
			return nil
		}
		var p P
		line := fmt.Sprintf("%s %s", id, status)
		if key != "" {
			line += fmt.Sprintf(" key %q", key)
		}
		if json.Unmarshal(raw, &p) != nil {
			line += " (payload does not decode)"
		} else if match == nil || match(p) {
			payload, found = p, true
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatalf("read events of %s: %v", topic, err)
	}
	if len(list) == 0 {
		return payload, "none", false
	}
	return payload, fmt.Sprintf("%d:\n\t%s", len(list), strings.Join(list, "\n\t")), found
}
