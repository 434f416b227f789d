package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// checkLog: the sequence and the defaults of the log number its events as listeners need it.
func checkLog(ctx context.Context, e *examination) (found []Finding, err error) {
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		_, _, err := e.db.CheckSequence(ctx, q)
		return err
	})
	if errors.Is(err, schemadb.ErrSequence) {
		return []Finding{{
			Severity: SeverityError, Text: err.Error(),
			Means: "listeners refuse to start, because they would miss events",
			Fix:   "run what the text says; docs/run/listeners.md explains it",
		}}, nil
	}
	return nil, err
}

// checkListeners: the cursors belong to this cluster, and no listener lags more than it may.
func checkListeners(ctx context.Context, e *examination) (found []Finding, err error) {
	list, err := e.shards(ctx)
	restored := false
	for _, s := range list {
		switch {
		case s.State == ListenerRestored:
			if !restored {
				found = append(found, Finding{
					Severity: SeverityError,
					Text: "the database was restored from a dump, moved, or upgraded: " +
						"the positions of listeners are those of another cluster",
					Means: "listeners refuse to start, because they would miss or repeat events",
					Fix:   e.command("listener rebase"),
				})
			}
			restored = true
		case s.MaxLag > 0 && s.Lag > s.MaxLag:
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("listener %s, shard %d, lags %s, more than its max_lag of %s", s.Listener, s.Shard,
					age(s.Lag), age(s.MaxLag)),
				Means: "its events are handled late, and the log keeps them for it",
				Fix:   e.command("listener list") + " shows its state; docs/operate/runbook.md says what to do for each",
			})
		case s.State == ListenerBlocked && s.Lag >= longDue:
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("listener %s, shard %d, is blocked by event %v: %d attempts have failed", s.Listener,
					s.Shard, s.Head.UUID, s.Attempts),
				Means: "the events behind it wait until it succeeds or is out of attempts",
				Fix:   "fix the cause, or: " + e.command("listener skip "+s.Listener),
			})
		}
	}
	return found, err
}

// shards is List, bounded in time.
func (e *examination) shards(ctx context.Context) ([]ListenerStatus, error) {
	within, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	return e.Listeners(within)
}

// literal quotes text for SQL that is shown to somebody.
func literal(text string) string {
	quoted := []byte{'\''}
	for i := range len(text) {
		if text[i] == '\'' {
			quoted = append(quoted, '\'')
		}
		quoted = append(quoted, text[i])
	}
	return string(append(quoted, '\''))
}
